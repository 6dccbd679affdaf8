// Weights of any stored type as torch tensors. Written from the block layouts (docs/formats.md) a second
// time, in tensor operations: a mistake in base/blocks.cc does not repeat itself here.
#pragma once

#include <ATen/ATen.h>

#include "base/tensor.h"

namespace lapidary::reference {

// [view.shape], float32 for block formats (their values are defined in float32), the stored type else. Owns
// its memory. Error(unsupported) naming a type that is no weight type.
at::Tensor dequantise(const TensorView& view);

}  // namespace lapidary::reference
