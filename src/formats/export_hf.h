// ModelSpec → config.json in the published spelling: import_hf the other way round.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spec/model_spec.h"

namespace lapidary {

struct HfTokenIds {
  std::optional<int64_t> bos, eos, pad;
  std::vector<int64_t> stops;
};

// `dtype`: "float32", "float16" or "bfloat16", what the weights are mostly stored as. Error(unsupported)
// naming layer and field when the file could not say what the spec says: what was made is read back by
// import_hf_config and compared.
std::string export_hf_config(const ModelSpec& spec, const std::string& family, const HfTokenIds& ids,
                             const std::string& dtype);

std::string export_generation_config(const HfTokenIds& ids);

}  // namespace lapidary
