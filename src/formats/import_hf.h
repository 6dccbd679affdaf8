// Hugging Face config.json → ModelSpec, and HF tensor names ↔ slots. Family names live here and in
// import_gguf, and nowhere else.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "spec/model_spec.h"
#include "spec/tensor_table.h"

namespace lapidary {

struct HfConfig {
  ModelSpec spec;
  std::string family;  // "gemma4", "gemma3", "llama"
  std::optional<int64_t> bos_id, eos_id, pad_id;
  std::vector<int64_t> stop_ids;  // eos_token_id when it is a list
};

// Every spelling of docs/formats.md. Error(unsupported) on an unknown model_type, rope type or activation;
// Error(data) on a missing or contradictory field; each names the field, expected and got.
HfConfig import_hf_config(std::string_view json, const std::string& name);

}  // namespace lapidary
