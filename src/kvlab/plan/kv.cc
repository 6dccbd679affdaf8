#include "kvlab/plan/kv.h"

#include <algorithm>

#include "engine/traffic.h"
#include "kernels/kv_layout.h"
#include "kvlab/plan/numbers.h"
#include "kvlab/plan/types.h"
#include "kvlab/plan/weights.h"

namespace lapidary::kvlab {
namespace {

using kernels::kBlock;

int64_t head_position_bytes(const KvTypes& types, int64_t head_dim) {
  return plus(plan_row_bytes(types.keys, head_dim), plan_row_bytes(types.values, head_dim));
}

// Pages of a pool are as large as its largest, and begin at cache lines (engine/kv_cache.cc).
void price_pools(std::vector<PlanLayer>& layers) {
  int64_t widest[2] = {0, 0};
  for (const PlanLayer& layer : layers) {
    int64_t& of_pool = widest[layer.window > 0 ? 1 : 0];
    of_pool = std::max(of_pool, layer.page_bytes);
  }
  for (PlanLayer& layer : layers)
    if (layer.page_bytes > 0)
      layer.pool_page_bytes = times(ceil_div(widest[layer.window > 0 ? 1 : 0], 64), 64);
}

// Sum over the layers that store something.
template <typename BytesOf>
int64_t sum_owners(const std::vector<PlanLayer>& layers, BytesOf bytes_of) {
  int64_t sum = 0;
  for (const PlanLayer& layer : layers)
    if (layer.owns()) sum = plus(sum, bytes_of(layer));
  return sum;
}

int64_t widest_position(const std::vector<PlanLayer>& layers) {
  int64_t widest = 0;
  for (const PlanLayer& layer : layers)
    if (layer.owns()) widest = std::max(widest, layer.position_bytes);
  return widest;
}

// All views but this engine's.
int64_t plain_view_bytes(View view, const std::vector<PlanLayer>& layers, int64_t length) {
  switch (view) {
    case View::unified_pages: {
      const int64_t widest = widest_position(layers);
      return sum_owners(layers, [&](const PlanLayer& l) { return times(l.seen(length), widest); });
    }
    case View::no_window:
      return sum_owners(layers, [&](const PlanLayer& l) { return times(length, l.position_bytes); });
    case View::no_sharing: {
      int64_t sum = 0;
      for (const PlanLayer& l : layers) sum = plus(sum, times(l.seen(length), l.position_bytes));
      return sum;
    }
    default:
      return sum_owners(layers, [&](const PlanLayer& l) { return times(l.seen(length), l.position_bytes); });
  }
}

}  // namespace

std::vector<PlanLayer> plan_layers(const ModelSpec& spec, const KvTypes& types, int64_t ranks) {
  std::vector<PlanLayer> layers;
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (!layer.attention) continue;
    const AttentionSpec& a = *layer.attention;
    ensure(a.n_heads % ranks == 0, ErrorCode::usage,
           "--tp {}: expected a number that divides the query heads, and layer {} has {}", ranks, i,
           a.n_heads);
    PlanLayer out{.layer = i, .owner = a.kv_owner, .window = a.window};
    out.n_heads = a.n_heads / ranks;
    out.n_kv_heads = rank_kv_heads(a.n_kv_heads, ranks);
    out.head_dim = a.head_dim;
    out.position_bytes = times(out.n_kv_heads, head_position_bytes(types, a.head_dim));
    out.passes = kv_passes(std::max(out.n_heads, out.n_kv_heads), out.n_kv_heads);
    if (out.owns() && runs_here(types)) {
      const auto head = static_cast<int64_t>(kernels::kv_layout(types, a.head_dim).head_bytes);
      out.page_bytes = times(out.n_kv_heads, head);
    }
    layers.push_back(out);
  }
  price_pools(layers);
  return layers;
}

int64_t PageRule::first_kept(const PlanLayer& layer, int64_t length) const {
  if (layer.window == 0) return 0;
  const int64_t out_of_sight = length - layer.window + 1 - keep_behind;
  return std::max<int64_t>(0, out_of_sight) / kBlock * kBlock;
}

int64_t PageRule::pages_held(const PlanLayer& layer, int64_t length) const {
  return ceil_div(length, kBlock) - first_kept(layer, length) / kBlock;
}

// While a step runs, the pages of its own position are there and none has gone yet. What is held rises to the
// window and then comes again every kBlock positions, so the last kBlock lengths have the most of all.
int64_t PageRule::pages_most(const PlanLayer& layer, int64_t length) const {
  int64_t most = 0;
  for (int64_t l = std::max<int64_t>(1, length - kBlock + 1); l <= length; ++l)
    most = std::max(most, ceil_div(l, kBlock) - first_kept(layer, l - 1) / kBlock);
  return most;
}

std::string_view view_name(View view) {
  switch (view) {
    case View::needed: return "needed";
    case View::this_engine: return "this_engine";
    case View::unified_pages: return "unified_pages";
    case View::no_window: return "no_window";
    case View::no_sharing: return "no_sharing";
  }
  fail(ErrorCode::internal, "view {} has no name", static_cast<int>(view));
}

int64_t view_bytes(View view, const std::vector<PlanLayer>& layers, const PageRule& rule, int64_t length) {
  if (view != View::this_engine) return plain_view_bytes(view, layers, length);
  return sum_owners(layers,
                    [&](const PlanLayer& l) { return times(rule.pages_held(l, length), l.pool_page_bytes); });
}

int64_t view_bytes_most(View view, const std::vector<PlanLayer>& layers, const PageRule& rule,
                        int64_t length) {
  if (view != View::this_engine) return plain_view_bytes(view, layers, length);
  return sum_owners(layers,
                    [&](const PlanLayer& l) { return times(rule.pages_most(l, length), l.pool_page_bytes); });
}

int64_t view_bytes_least(View view, const std::vector<PlanLayer>& layers) {
  return view_bytes_most(view, layers, {}, 1);
}

std::string_view formula_name(Formula formula) {
  switch (formula) {
    case Formula::hidden_over_heads: return "hidden_over_heads";
    case Formula::every_query_head: return "every_query_head";
    case Formula::every_layer_global: return "every_layer_global";
    case Formula::every_layer_owns: return "every_layer_owns";
    case Formula::flat: return "flat";
  }
  fail(ErrorCode::internal, "formula {} has no name", static_cast<int>(formula));
}

int64_t formula_bytes(Formula formula, const ModelSpec& spec, const KvTypes& types, int64_t length) {
  if (formula == Formula::every_layer_global)
    return view_bytes(View::no_window, plan_layers(spec, types), {}, length);
  if (formula == Formula::every_layer_owns)
    return view_bytes(View::no_sharing, plan_layers(spec, types), {}, length);
  if (formula == Formula::flat) {
    for (const LayerSpec& layer : spec.layers) {
      if (!layer.attention) continue;
      const int64_t position =
          times(layer.attention->n_kv_heads, head_position_bytes(types, layer.attention->head_dim));
      return times(times(spec.n_layers(), position), length);
    }
    return 0;
  }
  ModelSpec blind = spec;
  for (LayerSpec& layer : blind.layers) {
    if (!layer.attention) continue;
    AttentionSpec& a = *layer.attention;
    if (formula == Formula::hidden_over_heads) a.head_dim = spec.d_model / a.n_heads;
    else a.n_kv_heads = a.n_heads;
  }
  int64_t sum = 0;
  for (int64_t i = 0; i < blind.n_layers(); ++i) {
    const LayerSpec& layer = blind.layers[static_cast<size_t>(i)];
    if (!layer.owns_kv(i)) continue;
    const AttentionSpec& a = *layer.attention;
    const int64_t seen = a.window > 0 ? std::min(a.window, length) : length;
    sum = plus(sum, times(seen, times(a.n_kv_heads, head_position_bytes(types, a.head_dim))));
  }
  return sum;
}

int64_t read_bytes(const std::vector<PlanLayer>& layers, int64_t length) {
  return plain_view_bytes(View::no_sharing, layers, length);
}

int64_t engine_read_bytes(const std::vector<PlanLayer>& layers, int64_t length) {
  int64_t sum = 0;
  for (const PlanLayer& l : layers) sum = plus(sum, times(l.passes, times(l.seen(length), l.position_bytes)));
  return sum;
}

}  // namespace lapidary::kvlab
