#include "base/dtype.h"

#include <array>

#include "base/error.h"

namespace lapidary {
namespace {

struct Entry {
  DType dtype;
  DTypeInfo info;
};

constexpr std::array kEntries = {
    Entry{DType::f64, {"f64", 1, 8}},       Entry{DType::f32, {"f32", 1, 4}},
    Entry{DType::f16, {"f16", 1, 2}},       Entry{DType::bf16, {"bf16", 1, 2}},
    Entry{DType::i64, {"i64", 1, 8}},       Entry{DType::i32, {"i32", 1, 4}},
    Entry{DType::i16, {"i16", 1, 2}},       Entry{DType::i8, {"i8", 1, 1}},
    Entry{DType::u64, {"u64", 1, 8}},       Entry{DType::u32, {"u32", 1, 4}},
    Entry{DType::u16, {"u16", 1, 2}},       Entry{DType::u8, {"u8", 1, 1}},
    Entry{DType::boolean, {"bool", 1, 1}},  Entry{DType::q8_0, {"q8_0", 32, 34}},
    Entry{DType::q4_0, {"q4_0", 32, 18}},   Entry{DType::q4_1, {"q4_1", 32, 20}},
    Entry{DType::q5_0, {"q5_0", 32, 22}},   Entry{DType::q5_1, {"q5_1", 32, 24}},
    Entry{DType::q2_k, {"q2_k", 256, 84}},  Entry{DType::q3_k, {"q3_k", 256, 110}},
    Entry{DType::q4_k, {"q4_k", 256, 144}}, Entry{DType::q5_k, {"q5_k", 256, 176}},
    Entry{DType::q6_k, {"q6_k", 256, 210}},
};

constexpr bool indexed_by_dtype() {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (static_cast<size_t>(kEntries[i].dtype) != i) return false;
  }
  return kEntries.size() == static_cast<size_t>(DType::q6_k) + 1;
}
static_assert(indexed_by_dtype(), "one entry per DType, in the order of the enum");

}  // namespace

const DTypeInfo& dtype_info(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  ensure(index < kEntries.size(), ErrorCode::internal, "dtype: {} is not a number format", index);
  return kEntries[index].info;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.info.name == name) return entry.dtype;
  }
  return std::nullopt;
}

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

bool is_quantised(DType dtype) {
  return dtype_info(dtype).block_elements > 1;
}

size_t row_bytes(DType dtype, size_t n) {
  const DTypeInfo& info = dtype_info(dtype);
  ensure(n % info.block_elements == 0, ErrorCode::internal, "row of {} {} elements: blocks hold {}", n,
         info.name, info.block_elements);
  size_t bytes = 0;
  ensure(!__builtin_mul_overflow(n / info.block_elements, info.block_bytes, &bytes), ErrorCode::data,
         "row of {} {} elements: its size in bytes overflows", n, info.name);
  return bytes;
}

}  // namespace lapidary
