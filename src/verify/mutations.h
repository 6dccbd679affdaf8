// Damage on purpose: one feature of a model broken at a time, as a real mistake would break it. A check that
// does not see them proves nothing (`verify --self-test`).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "spec/model_spec.h"
#include "spec/tensor_io.h"

namespace lapidary {

struct Mutant {
  ModelSpec spec;
  std::shared_ptr<const TensorSource> tensors;  // REQUIRES: the source that was mutated outlives it
  std::string where;                            // "layer 3", "window 512 -> 513 in 15 layers"
};

struct Mutation {
  std::string name;  // "layer_scalar := 1"
  // Nothing when the model lacks the feature; then `lacks` says what it lacks.
  std::optional<Mutant> (*apply)(const ModelSpec& spec, const TensorSource& source);
  std::string lacks;
  bool needs_long_prompt = false;  // shows only past the window
};

const std::vector<Mutation>& mutations();

}  // namespace lapidary
