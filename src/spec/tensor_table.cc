#include "spec/tensor_table.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace lapidary {
namespace {

// In the order of TensorKind.
constexpr std::array<std::string_view, 31> kNames = {"token_embedding",
                                                     "output_norm",
                                                     "output_head",
                                                     "ple_embedding",
                                                     "ple_projection",
                                                     "ple_norm",
                                                     "attention_norm",
                                                     "query",
                                                     "key",
                                                     "value",
                                                     "attention_output",
                                                     "query_norm",
                                                     "key_norm",
                                                     "post_attention_norm",
                                                     "ffn_norm",
                                                     "gate",
                                                     "up",
                                                     "down",
                                                     "post_ffn_norm",
                                                     "router",
                                                     "router_scale",
                                                     "expert_gate_up",
                                                     "expert_down",
                                                     "expert_scale",
                                                     "dense_post_norm",
                                                     "expert_pre_norm",
                                                     "expert_post_norm",
                                                     "ple_gate",
                                                     "ple_output",
                                                     "ple_post_norm",
                                                     "layer_scalar"};
static_assert(kNames[static_cast<size_t>(TensorKind::layer_scalar)] == "layer_scalar");

using Visitor = FunctionRef<void(const TensorInfo&)>;

// The tensors of one layer (or of the model, layer -1), given to the visitor as they are named.
class Walk {
 public:
  Walk(Visitor visit, int64_t layer) : visit_(visit), layer_(layer) {}

  void matrix(TensorKind kind, Shape shape, ShardAxis axis = ShardAxis::none) const {
    visit_({{kind, layer_}, std::move(shape), DTypeRule::any_weight, axis});
  }
  void table(TensorKind kind, Shape shape) const {
    visit_({{kind, layer_}, std::move(shape), DTypeRule::any_weight, ShardAxis::none, true});
  }
  void vector(TensorKind kind, int64_t size) const {
    visit_({{kind, layer_}, {size}, DTypeRule::float_only});
  }

 private:
  Visitor visit_;
  int64_t layer_;
};

void walk_attention(const Walk& walk, int64_t d, const AttentionSpec& a, bool owner, bool post_norm) {
  walk.vector(TensorKind::attention_norm, d);
  walk.matrix(TensorKind::query, {a.n_heads * a.head_dim, d}, ShardAxis::rows);
  if (owner) {
    walk.matrix(TensorKind::key, {a.n_kv_heads * a.head_dim, d}, ShardAxis::rows);
    if (!a.k_eq_v) walk.matrix(TensorKind::value, {a.n_kv_heads * a.head_dim, d}, ShardAxis::rows);
  }
  if (a.q_norm) walk.vector(TensorKind::query_norm, a.head_dim);
  if (a.k_norm && owner) walk.vector(TensorKind::key_norm, a.head_dim);
  walk.matrix(TensorKind::attention_output, {d, a.n_heads * a.head_dim}, ShardAxis::columns);
  if (post_norm) walk.vector(TensorKind::post_attention_norm, d);
}

void walk_experts(const Walk& walk, int64_t d, const MoeSpec& m) {
  walk.vector(TensorKind::dense_post_norm, d);
  walk.vector(TensorKind::router_scale, d);
  walk.matrix(TensorKind::router, {m.n_experts, d});
  walk.vector(TensorKind::expert_pre_norm, d);
  walk.matrix(TensorKind::expert_gate_up, {m.n_experts, 2 * m.d_ff, d}, ShardAxis::experts);
  walk.matrix(TensorKind::expert_down, {m.n_experts, d, m.d_ff}, ShardAxis::experts);
  walk.vector(TensorKind::expert_scale, m.n_experts);
  walk.vector(TensorKind::expert_post_norm, d);
}

void walk_ffn(const Walk& walk, int64_t d, const FfnSpec& f, bool post_norm) {
  walk.vector(TensorKind::ffn_norm, d);
  walk.matrix(TensorKind::gate, {f.d_ff, d}, ShardAxis::rows);
  walk.matrix(TensorKind::up, {f.d_ff, d}, ShardAxis::rows);
  walk.matrix(TensorKind::down, {d, f.d_ff}, ShardAxis::columns);
  if (f.moe) walk_experts(walk, d, *f.moe);
  if (post_norm) walk.vector(TensorKind::post_ffn_norm, d);
}

}  // namespace

std::string slot_name(const Slot& slot) {
  const std::string_view name = kNames.at(static_cast<size_t>(slot.kind));
  return slot.layer < 0 ? std::string(name) : fmt::format("layers.{}.{}", slot.layer, name);
}

void for_each_matrix(const ModelSpec& spec, Visitor f) {
  const Slot head{TensorKind::output_head};
  f({head, {spec.vocab_size, spec.d_model}});
  for_each_tensor(spec, [&](const TensorInfo& info) {
    if (info.is_matrix() && info.slot != head) f(info);
  });
}

void for_each_tensor(const ModelSpec& spec, Visitor f) {
  const int64_t d = spec.d_model, v = spec.vocab_size, p = spec.ple_dim, all = spec.n_layers() * p;
  const Walk model(f, -1);
  model.table(TensorKind::token_embedding, {v, d});
  if (p > 0) {
    model.table(TensorKind::ple_embedding, {v, all});
    model.matrix(TensorKind::ple_projection, {all, d});
    model.vector(TensorKind::ple_norm, p);
  }
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    const Walk walk(f, i);
    if (layer.attention)
      walk_attention(walk, d, *layer.attention, layer.owns_kv(i), layer.post_attention_norm);
    if (layer.ffn) walk_ffn(walk, d, *layer.ffn, layer.post_ffn_norm);
    if (layer.ple) {
      walk.matrix(TensorKind::ple_gate, {p, d});
      walk.matrix(TensorKind::ple_output, {d, p});
      walk.vector(TensorKind::ple_post_norm, d);
    }
    if (layer.layer_scalar) walk.vector(TensorKind::layer_scalar, 1);
  }
  model.vector(TensorKind::output_norm, d);
  if (!spec.tied_head) model.matrix(TensorKind::output_head, {v, d});
}

}  // namespace lapidary
