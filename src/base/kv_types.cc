#include "base/kv_types.h"

#include <optional>

#include "base/error.h"
#include "base/quote.h"

namespace lapidary {
namespace {

constexpr std::string_view kExpected = "f32, f16, bf16 or q8, or one for each as in k=q8,v=f16";

std::optional<DType> type_from_name(std::string_view name) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i8})
    if (kv_type_name(dtype) == name) return dtype;
  return {};
}

}  // namespace

bool is_kv_type(DType dtype) {
  return is_float(dtype) || dtype == DType::i8;
}

std::string_view kv_type_name(DType dtype) {
  return dtype == DType::i8 ? "q8" : dtype_name(dtype);
}

std::string kv_types_name(const KvTypes& types) {
  if (types.keys == types.values) return std::string(kv_type_name(types.keys));
  return fmt::format("k={},v={}", kv_type_name(types.keys), kv_type_name(types.values));
}

KvTypes kv_types_from_name(std::string_view name, std::string_view what) {
  if (const auto both = type_from_name(name)) return *both;
  const size_t comma = name.find(',');
  std::optional<DType> keys, values;
  if (comma != std::string_view::npos) {
    for (const std::string_view part : {name.substr(0, comma), name.substr(comma + 1)}) {
      if (part.starts_with("k=") && !keys) keys = type_from_name(part.substr(2));
      else if (part.starts_with("v=") && !values) values = type_from_name(part.substr(2));
    }
  }
  ensure(keys && values, ErrorCode::usage, "{}: expected {}, got {}", what, kExpected, quoted(name));
  return {*keys, *values};
}

size_t kv_row_bytes(DType dtype, int64_t n) {
  ensure(is_kv_type(dtype), ErrorCode::unsupported, "KV type: expected f32, f16, bf16 or q8, got {}",
         dtype_name(dtype));
  const size_t codes = static_cast<size_t>(n) * dtype_info(dtype).block_bytes;
  return dtype == DType::i8 ? codes + sizeof(float) : codes;
}

std::string_view kv_type_limit(DType dtype) {
  return dtype == DType::f16 ? "65504" : "3.4e38";
}

}  // namespace lapidary
