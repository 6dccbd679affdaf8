// The one list of a model's tensors. Loading, copying, saving, counting, quantising and sharding walk it;
// nothing else knows which exist.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "base/function_ref.h"
#include "base/tensor.h"
#include "spec/model_spec.h"

namespace lapidary {

enum class TensorKind : uint8_t {
  // the model
  token_embedding,  // [V, D]
  output_norm,      // [D]
  output_head,      // [V, D], untied models only
  ple_embedding,    // [V, L*P], gathered by row
  ple_projection,   // [L*P, D]
  ple_norm,         // [P]
  // a layer: attention
  attention_norm,       // [D]
  query,                // [H*Hd, D]
  key,                  // [K*Hd, D], owners only
  value,                // [K*Hd, D], owners only, absent when k_eq_v
  attention_output,     // [D, H*Hd]
  query_norm,           // [Hd]
  key_norm,             // [Hd], owners only
  post_attention_norm,  // [D]
  // a layer: FFN
  ffn_norm,  // [D]
  gate,
  up,             // [F, D]
  down,           // [D, F]
  post_ffn_norm,  // [D]
  // a layer: experts
  router,            // [E, D]
  router_scale,      // [D]
  expert_gate_up,    // [E, 2*Fe, D], gate rows first
  expert_down,       // [E, D, Fe]
  expert_scale,      // [E]
  dense_post_norm,   // [D]: on the dense branch's output
  expert_pre_norm,   // [D]
  expert_post_norm,  // [D]
  // a layer: per-layer embedding, end of layer
  ple_gate,       // [P, D]
  ple_output,     // [D, P]
  ple_post_norm,  // [D]
  layer_scalar,   // [1]
};

struct Slot {
  TensorKind kind{};
  int64_t layer = -1;  // -1: belongs to the model
  auto operator<=>(const Slot&) const = default;
};

std::string slot_name(const Slot& slot);  // "layers.3.query", "token_embedding"

enum class DTypeRule {
  any_weight,
  float_only
};  // float_only: norms, scalars, routers' scales: never quantised
enum class ShardAxis { none, rows, columns, experts };  // how tensor parallelism cuts it; none = replicated

struct TensorInfo {
  Slot slot;
  Shape shape;
  DTypeRule dtype_rule = DTypeRule::any_weight;
  ShardAxis shard_axis = ShardAxis::none;
  bool gathered =
      false;  // read by row, one row per token: touched bytes are one row, and the table may stay mapped
  bool required = true;
  bool is_matrix() const { return !gathered && shape.size() > 1; }  // multiplied by activations
};

// Calls f for every tensor of the model, in execution order.
void for_each_tensor(const ModelSpec& spec, FunctionRef<void(const TensorInfo&)> f);

// Calls f for every weight that is multiplied by activations, in the order of the table but the head first. A
// tied head is among them, in the slot of an untied one: its numbers are the token embedding's.
void for_each_matrix(const ModelSpec& spec, FunctionRef<void(const TensorInfo&)> f);

}  // namespace lapidary
