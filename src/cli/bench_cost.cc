#include "cli/bench_cost.h"

#include <algorithm>

#include "spec/tensor_table.h"

namespace lapidary {
namespace {

int64_t last_owner(const ModelSpec& spec) {
  int64_t last = -1;
  for (int64_t i = 0; i < spec.n_layers(); ++i)
    if (spec.layers[static_cast<size_t>(i)].owns_kv(i)) last = i;
  return last;
}

bool is_head(const ModelSpec& spec, TensorKind kind) {
  return kind == (spec.tied_head ? TensorKind::token_embedding : TensorKind::output_head);
}

// Whether every row of a prefill meets the tensor, or only those whose logits are wanted.
bool meets_all_rows(const ModelSpec& spec, const Slot& slot, int64_t owner) {
  if (is_head(spec, slot.kind)) return false;
  if (slot.layer != owner) return slot.layer < owner;
  return slot.kind == TensorKind::key || slot.kind == TensorKind::value;
}

// Multiply-adds of one row with the tensor.
double products(const ModelSpec& spec, const TensorInfo& info) {
  if (info.shape.size() < 2 || (info.gathered && !is_head(spec, info.slot.kind))) return 0;
  const auto elements = static_cast<double>(element_count(info.shape, slot_name(info.slot)));
  if (info.slot.kind != TensorKind::expert_gate_up && info.slot.kind != TensorKind::expert_down)
    return elements;
  const MoeSpec& moe = *spec.layers[static_cast<size_t>(info.slot.layer)].ffn->moe;
  return elements * static_cast<double>(moe.top_k) / static_cast<double>(moe.n_experts);
}

// Positions that `rows` queries see together, from the one at `depth` on.
double positions_seen(const AttentionSpec& a, int64_t depth, int64_t rows) {
  double seen = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t before = depth + i + 1;
    seen += static_cast<double>(a.window > 0 ? std::min(before, a.window) : before);
  }
  return seen;
}

}  // namespace

RowsCost cost_of_rows(const ModelSpec& spec, int64_t depth, int64_t rows, bool all_wanted,
                      const KvTypes& kv) {
  RowsCost cost;
  const int64_t owner = last_owner(spec), wanted = all_wanted ? rows : 1;
  for_each_tensor(spec, [&](const TensorInfo& info) {
    const int64_t met = meets_all_rows(spec, info.slot, owner) ? rows : wanted;
    cost.matrix_ops += 2 * products(spec, info) * static_cast<double>(met);
  });
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const auto& attention = spec.layers[static_cast<size_t>(i)].attention;
    if (!attention) continue;
    const int64_t queries = i < owner ? rows : wanted;
    const double seen = positions_seen(*attention, depth + rows - queries, queries);
    cost.attention_ops += 4 * seen * static_cast<double>(attention->n_heads * attention->head_dim);
    const size_t head_bytes =
        kv_row_bytes(kv.keys, attention->head_dim) + kv_row_bytes(kv.values, attention->head_dim);
    cost.kv_bytes += seen * static_cast<double>(attention->n_kv_heads) * static_cast<double>(head_bytes);
  }
  return cost;
}

}  // namespace lapidary
