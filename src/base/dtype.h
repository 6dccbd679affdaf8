// Number formats of stored tensors. Block formats are described bit by bit in blocks.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lapidary {

enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
};

struct DTypeInfo {
  std::string_view name;  // "f32", "bf16", "q4_k": ours, used in reports and JSON
  size_t block_elements;  // elements of one block; 1 for plain numbers
  size_t block_bytes;
};

const DTypeInfo& dtype_info(DType dtype);
inline std::string_view dtype_name(DType dtype) {
  return dtype_info(dtype).name;
}
std::optional<DType> dtype_from_name(std::string_view name);

bool is_float(DType dtype);      // f32, f16, bf16: what an unquantised weight may be
bool is_quantised(DType dtype);  // one of the block formats

// Bytes of one row of n elements. REQUIRES: n is a multiple of the block size.
size_t row_bytes(DType dtype, size_t n);

}  // namespace lapidary
