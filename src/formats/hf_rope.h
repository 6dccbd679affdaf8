// The two spellings of rotary settings in config.json: "rope_parameters", and the older rope_theta,
// rope_local_base_freq, rope_scaling.
#pragma once

#include "spec/json_fields.h"
#include "spec/model_spec.h"

namespace lapidary {

struct HfRopeRules {
  bool by_kind = false;   // settings differ between full and sliding layers (Gemma)
  bool need_full = true;  // there are layers of this kind
  bool need_sliding = false;
  bool scaling_required = false;  // older spelling: rope_scaling must say how full layers turn (Gemma 4)
  bool theta_optional = false;    // older spelling: rope_theta may be absent and means 10000 (Llama)
};

struct HfRopes {
  RopeSpec full, sliding;
};

// Error(unsupported) on another rope type or on a rope field that is not known; Error(data) on a missing or
// contradictory one.
HfRopes read_hf_ropes(JsonFields& config, const HfRopeRules& rules);

}  // namespace lapidary
