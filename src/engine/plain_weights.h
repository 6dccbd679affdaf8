// Packed weights read back as plain numbers: what `verify` hands to the reference, so that the bytes that the
// engine multiplies by are the bytes that are checked.
#pragma once

#include <memory>

#include "spec/tensor_io.h"

namespace lapidary {

// `source`, whose read() answers for packed weights too: as float32, [N, K] or [E, N, K], decoded anew for
// each read but for the last one, which is kept until the next or until its slot is released. packed() stays.
std::shared_ptr<const TensorSource> with_plain_weights(std::shared_ptr<const TensorSource> source);

}  // namespace lapidary
