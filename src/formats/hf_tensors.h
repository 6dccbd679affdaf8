// Hugging Face tensor names ↔ slots.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "formats/bound_tensors.h"
#include "spec/model_spec.h"

namespace lapidary {

struct HfTensor {
  TensorView view;
  std::string file;  // for messages
};

// The name of a slot behind the prefix of the text model: "layers.3.self_attn.q_proj.weight". `family`
// chooses among spellings.
std::string hf_name(const Slot& slot, std::string_view family);

// Its name in a file that we write: behind the usual prefix.
std::string hf_saved_name(const Slot& slot, std::string_view family);

// Whether the file holds w where the model multiplies by 1 + w.
bool hf_norm_has_offset(TensorKind kind, std::string_view family);

// Binds every tensor of the spec, and accounts for every tensor of the checkpoint: what is neither a slot's
// nor known to be unused is an Error(data). Returns what was left out.
std::vector<SkippedTensor> bind_hf_tensors(const ModelSpec& spec, const std::string& family,
                                           const std::map<std::string, HfTensor>& tensors,
                                           const std::string& folder, BoundTensors& out);

}  // namespace lapidary
