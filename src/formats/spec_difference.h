// Where two specs differ: how a writer finds out that a format cannot say what the model is.
#pragma once

#include <optional>
#include <string>

#include "spec/model_spec.h"

namespace lapidary {

struct SpecDifference {
  std::string field;  // "layers[3].attention.scale"
  std::string wanted, got;
};

// The first field that differs. `as_floats`: numbers that are the same 32-bit float count as equal.
std::optional<SpecDifference> first_difference(const ModelSpec& wanted, const ModelSpec& got, bool as_floats);

}  // namespace lapidary
