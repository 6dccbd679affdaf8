#include "base/tensor.h"

#include <fmt/ranges.h>

#include "base/blocks.h"
#include "base/error.h"

namespace lapidary {

std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Zeros are left out of the product, so that a shape is refused or not whatever the order of its sizes, and
// no partial product of an accepted shape overflows.
int64_t element_count(const Shape& shape, std::string_view what) {
  int64_t product = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    ensure(size >= 0, ErrorCode::data, "{}: shape {} has a negative size", what, shape_text(shape));
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, size, &product)) {
      fail(ErrorCode::data, "{}: the number of elements of shape {} overflows", what, shape_text(shape));
    }
  }
  return empty ? 0 : product;
}

int64_t TensorView::rows() const {
  int64_t product = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) product *= shape[i];
  return product;
}

int64_t TensorView::columns() const {
  return shape.empty() ? 1 : shape.back();
}

std::span<const std::byte> TensorView::row(int64_t index) const {
  ensure(index >= 0 && index < rows(), ErrorCode::internal, "row {} of a tensor of shape {}", index,
         shape_text(shape));
  const size_t stride = row_bytes(dtype, static_cast<size_t>(columns()));
  const size_t begin = static_cast<size_t>(index) * stride;
  ensure(begin <= bytes.size() && stride <= bytes.size() - begin, ErrorCode::internal,
         "row {} of {} {}: expected {} bytes at {}, got a view of {}", index, dtype_name(dtype),
         shape_text(shape), stride, begin, bytes.size());
  return bytes.subspan(begin, stride);
}

std::vector<float> to_floats(const TensorView& view) {
  std::vector<float> out(static_cast<size_t>(element_count(view.shape, "to_floats")));
  const auto columns = static_cast<size_t>(view.columns());
  for (int64_t r = 0; r < view.rows() && columns != 0; ++r) {
    decode_row(view.dtype, view.row(r), std::span(out).subspan(static_cast<size_t>(r) * columns, columns));
  }
  return out;
}

}  // namespace lapidary
