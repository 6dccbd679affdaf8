#include "kvlab/plan/types.h"

#include <array>
#include <optional>

#include "base/error.h"
#include "base/quote.h"
#include "kvlab/plan/numbers.h"

namespace lapidary::kvlab {
namespace {

constexpr std::array kTypes = {DType::f32,  DType::f16,  DType::bf16, DType::i8,  DType::q8_0,
                               DType::q5_1, DType::q5_0, DType::q4_1, DType::q4_0};

std::optional<DType> type_from_name(std::string_view name) {
  for (const DType dtype : kTypes)
    if (kv_type_name(dtype) == name) return dtype;
  return {};
}

}  // namespace

bool runs_here(const KvTypes& types) {
  return is_kv_type(types.keys) && is_kv_type(types.values);
}

KvTypes plan_kv_types_from_name(std::string_view name, std::string_view what) {
  if (const auto both = type_from_name(name)) return *both;
  std::optional<DType> keys, values;
  if (const size_t comma = name.find(','); comma != std::string_view::npos) {
    for (const std::string_view part : {name.substr(0, comma), name.substr(comma + 1)}) {
      if (part.starts_with("k=") && !keys) keys = type_from_name(part.substr(2));
      else if (part.starts_with("v=") && !values) values = type_from_name(part.substr(2));
    }
  }
  ensure(keys && values, ErrorCode::usage,
         "{}: expected f32, f16, bf16, q8, or to price what others keep q8_0, q5_1, q5_0, q4_1, q4_0, or one "
         "for each as in k=q8,v=f16; got {}",
         what, quoted(name));
  return {*keys, *values};
}

int64_t plan_row_bytes(DType dtype, int64_t n) {
  if (is_kv_type(dtype)) return static_cast<int64_t>(kv_row_bytes(dtype, n));
  const DTypeInfo& info = dtype_info(dtype);
  return times(ceil_div(n, static_cast<int64_t>(info.block_elements)),
               static_cast<int64_t>(info.block_bytes));
}

DType weight_dtype_from_name(std::string_view name, std::string_view what) {
  const auto dtype = dtype_from_name(name);
  ensure(dtype && (is_float(*dtype) || is_quantised(*dtype)), ErrorCode::usage,
         "{}: expected f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k or q6_k, got {}",
         what, quoted(name));
  return *dtype;
}

}  // namespace lapidary::kvlab
