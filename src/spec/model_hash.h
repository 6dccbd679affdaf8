// What a model is, in 128 bits: two models with the same hash compute the same numbers.
#pragma once

#include "base/hash.h"
#include "spec/model_spec.h"
#include "spec/tensor_io.h"

namespace lapidary {

// Over the spec as JSON and every tensor of its table: slot, number format, shape, bytes. Reads the whole
// model. Error(data) naming the slot when a tensor is missing.
Hash128 model_hash(const ModelSpec& spec, const TensorSource& source);

}  // namespace lapidary
