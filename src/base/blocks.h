// Block formats of GGUF: layouts in prose, decoding to float. Filled in by blocks.cc.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"

namespace lapidary {

// Decodes one row of `out.size()` elements. The scalar truth for every packed form; floats and block formats only.
// REQUIRES: bytes.size() == row_bytes(dtype, out.size()).
void decode_row(DType dtype, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace lapidary
