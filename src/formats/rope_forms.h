// One rotation, two ways to say it: by rule (config.json) and by a divisor for each frequency (GGUF).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "spec/model_spec.h"

namespace lapidary {

// What each frequency theta^(-2i/Hd) is divided by, [Hd/2]; 1e30 for a pair that stands still.
std::vector<float> rope_divisors(const RopeSpec& rope, int64_t head_dim);

// The rule behind divisors: plain, proportional or llama3, whichever gives these divisors (llama3: to the
// rounding of a float). Rules are returned as they are; nothing when there is no such rule.
std::optional<RopeSpec> rope_rule(const RopeSpec& rope, int64_t head_dim);

}  // namespace lapidary
