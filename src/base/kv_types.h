// Number formats of a KV cache: keys and values apart. f32, f16, bf16, or "q8": int8 codes under one f32
// scale for each head and position (DType::i8).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace lapidary {

struct KvTypes {
  DType keys = DType::f32, values = DType::f32;
  constexpr KvTypes() = default;
  constexpr KvTypes(DType both) : keys(both), values(both) {}  // NOLINT: a type means both
  constexpr KvTypes(DType k, DType v) : keys(k), values(v) {}
  bool operator==(const KvTypes&) const = default;
};

bool is_kv_type(DType dtype);
std::string_view kv_type_name(DType dtype);       // "f32", "f16", "bf16", "q8"
std::string kv_types_name(const KvTypes& types);  // "f16"; "k=q8,v=f16" where they differ
// Reads what kv_types_name writes, "v=f16,k=q8" too. Error(usage) naming `what` and the part that is wrong.
KvTypes kv_types_from_name(std::string_view name, std::string_view what);

// Bytes of one position of one head: n numbers, and their scale.
size_t kv_row_bytes(DType dtype, int64_t n);
// The greatest magnitude that the type holds, as text for messages: "65504"; "3.4e38".
std::string_view kv_type_limit(DType dtype);

}  // namespace lapidary
