// Views of tensors: pointer, number format, shape. A view owns nothing; TensorData adds whoever keeps the
// bytes alive.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace lapidary {

using Shape =
    std::vector<int64_t>;  // row-major, outermost first: a weight [out, in] has rows of `in` elements

std::string shape_text(const Shape& shape);  // "[512, 256]"
// Product of the sizes; throws Error(data) naming `what` on a negative size or on overflow of int64.
int64_t element_count(const Shape& shape, std::string_view what);

struct TensorView {
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;

  int64_t rows() const;     // product of all sizes but the last (1 for a vector)
  int64_t columns() const;  // the last size
  std::span<const std::byte> row(int64_t index) const;
};

struct TensorData {
  TensorView view;
  std::shared_ptr<const void> owner;  // null when the bytes belong to a mapped file that outlives the source
};

// All elements as float, row by row; floats and block formats only.
std::vector<float> to_floats(const TensorView& view);

}  // namespace lapidary
