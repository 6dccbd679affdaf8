// Encoding rows of floats into stored number formats: the inverse of decode_row. Scalar, and a row's bytes
// depend on that row alone, so any number of threads gives the same file.
//
// Floats are rounded to nearest, ties to even. For block formats, scales (and minima) are searched so that
// the squared error of the row is small, after everything was rounded to what the format can hold; what a
// block format can hold exactly is found exactly, up to ambiguities of its scales.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"

namespace lapidary {

// Whether encode_row knows the format: f32, f16, bf16 and all block formats.
bool can_encode(DType dtype);

// False when an element is not finite, or so large that the format cannot hold it; `bytes` is then undefined.
// REQUIRES: can_encode(dtype); bytes.size() == row_bytes(dtype, row.size()).
[[nodiscard]] bool encode_row(DType dtype, std::span<const float> row, std::span<std::byte> bytes);

}  // namespace lapidary
