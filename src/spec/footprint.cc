#include "spec/footprint.h"

#include <algorithm>

#include "base/error.h"
#include "spec/tensor_table.h"

namespace lapidary {
namespace {

int64_t checked_product(int64_t a, int64_t b) {
  int64_t out = 0;
  ensure(!__builtin_mul_overflow(a, b, &out), ErrorCode::limit, "KV bytes: {} times {} is beyond 64 bits", a,
         b);
  return out;
}

int64_t checked_sum(int64_t a, int64_t b) {
  int64_t out = 0;
  ensure(!__builtin_add_overflow(a, b, &out), ErrorCode::limit, "KV bytes: {} plus {} is beyond 64 bits", a,
         b);
  return out;
}

}  // namespace

int64_t touched_elements(const ModelSpec& spec, const TensorInfo& info) {
  const int64_t all = element_count(info.shape, slot_name(info.slot));
  const bool head_reads_all = info.slot.kind == TensorKind::token_embedding && spec.tied_head;
  if (info.gathered && !head_reads_all) return info.shape.back();
  switch (info.slot.kind) {
    case TensorKind::expert_gate_up:
    case TensorKind::expert_down:
    case TensorKind::expert_scale: {
      const MoeSpec& moe = *spec.layers[static_cast<size_t>(info.slot.layer)].ffn->moe;
      return all / moe.n_experts * moe.top_k;
    }
    default: return all;
  }
}

int64_t kv_position_bytes(const AttentionSpec& attention, const KvTypes& types) {
  const size_t head =
      kv_row_bytes(types.keys, attention.head_dim) + kv_row_bytes(types.values, attention.head_dim);
  return checked_product(attention.n_kv_heads, static_cast<int64_t>(head));
}

ParameterCount count_parameters(const ModelSpec& spec) {
  ParameterCount out;
  for_each_tensor(spec, [&](const TensorInfo& info) {
    const int64_t all = element_count(info.shape, slot_name(info.slot));
    const int64_t touched = touched_elements(spec, info);
    out.resident += all;
    out.touched_per_token += touched;
    if (info.shape.size() > 1) {
      out.matrices_resident += all;
      out.matrices_touched_per_token += touched;
    }
  });
  return out;
}

KvBytes kv_bytes_per_token(const ModelSpec& spec, const KvTypes& types) {
  KvBytes out;
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (!layer.attention) continue;
    const int64_t bytes = kv_position_bytes(*layer.attention, types);
    const bool global = layer.attention->window == 0;
    int64_t& read = global ? out.read_global : out.read_sliding;
    read = checked_sum(read, bytes);
    if (!layer.owns_kv(i)) continue;
    int64_t& stored = global ? out.global : out.sliding;
    stored = checked_sum(stored, bytes);
  }
  return out;
}

int64_t kv_bytes_needed(const ModelSpec& spec, int64_t length, const KvTypes& types) {
  ensure(length >= 0, ErrorCode::usage, "KV bytes: length: expected 0 or more positions, got {}", length);
  int64_t sum = 0;
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (!layer.owns_kv(i)) continue;
    const int64_t window = layer.attention->window;
    const int64_t kept = window == 0 ? length : std::min(length, window);
    sum = checked_sum(sum, checked_product(kept, kv_position_bytes(*layer.attention, types)));
  }
  return sum;
}

}  // namespace lapidary
