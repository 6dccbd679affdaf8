#include "kernels/kv_layout.h"

#include <cstring>

#include "base/half.h"
#include "kernels/panels.h"

namespace lapidary::kernels {
namespace {

template <typename T>
T at(const std::byte* base, int64_t index) {
  T x;
  std::memcpy(&x, base + static_cast<size_t>(index) * sizeof x, sizeof x);
  return x;
}

float decoded(DType type, const std::byte* codes, int64_t index, const std::byte* scales, int64_t position) {
  switch (type) {
    case DType::f16: return f16_to_float(at<uint16_t>(codes, index));
    case DType::bf16: return bf16_to_float(at<uint16_t>(codes, index));
    case DType::i8: return static_cast<float>(at<int8_t>(codes, index)) * at<float>(scales, position);
    default: return at<float>(codes, index);
  }
}

}  // namespace

KvLayout kv_layout(const KvTypes& types, int64_t head_dim) {
  KvLayout l{.types = types, .head_dim = head_dim, .padded_dim = (head_dim + kLanes - 1) / kLanes * kLanes};
  const auto scales = [](DType type) { return kv_row_bytes(type, 0) * static_cast<size_t>(kBlock); };
  const auto codes = [](DType type, int64_t n) {
    return (kv_row_bytes(type, n) - kv_row_bytes(type, 0)) * static_cast<size_t>(kBlock);
  };
  l.key_scales_at = codes(types.keys, head_dim);
  l.values_at = l.key_scales_at + scales(types.keys);
  l.value_scales_at = l.values_at + codes(types.values, l.padded_dim);
  l.head_bytes = l.value_scales_at + scales(types.values);
  return l;
}

float kv_key(const KvLayout& l, const std::byte* head, int64_t position, int64_t d) {
  return decoded(l.types.keys, head, d * kBlock + position, head + l.key_scales_at, position);
}

float kv_value(const KvLayout& l, const std::byte* head, int64_t position, int64_t d) {
  return decoded(l.types.values, head + l.values_at, position * l.padded_dim + d, head + l.value_scales_at,
                 position);
}

}  // namespace lapidary::kernels
