// What K and V take, layer by layer and at any length: as the model needs it, as engines of different kinds
// hold it, and as formulas say that look at less than the layers.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/kv_types.h"
#include "spec/model_spec.h"

namespace lapidary::kvlab {

// A layer with attention. Bytes are of one sequence.
struct PlanLayer {
  int64_t layer = 0, owner = 0;  // whose K and V it reads; its own number for an owner
  int64_t window = 0;            // 0: sees all
  int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int64_t position_bytes = 0;  // K and V of one position
  // This engine's pages of kBlock positions: the layer's own, and what its pool hands out, which is as large
  // as the largest page of the pool. 0 for borrowers, and where the engine does not keep the types.
  int64_t page_bytes = 0, pool_page_bytes = 0;
  int64_t passes = 1;  // times that a decode step of this engine reads each position (engine/traffic.h)
  bool owns() const { return owner == layer; }
  int64_t seen(int64_t length) const { return window > 0 && window < length ? window : length; }
};

// With `ranks` > 1: what one rank of them holds. Error(usage) where the ranks do not divide the query heads.
std::vector<PlanLayer> plan_layers(const ModelSpec& spec, const KvTypes& types, int64_t ranks = 1);

// Pages of a layer with a window give way as a whole once no later query sees them.
struct PageRule {
  int64_t keep_behind = 0;  // positions kept behind each window
  // The first position in the pages of a sequence of this length, after a step.
  int64_t first_kept(const PlanLayer& layer, int64_t length) const;
  int64_t pages_held(const PlanLayer& layer, int64_t length) const;  // after the step of that position
  int64_t pages_most(const PlanLayer& layer, int64_t length) const;  // at any time until then, step by step
};

// Ways to hold the same K and V.
enum class View {
  needed,         // min(length, window) positions of each owner
  this_engine,    // pages of kBlock positions, from two pools
  unified_pages,  // every layer's position as large as the largest one's
  no_window,      // every owner keeps every position
  no_sharing,     // borrowers keep their own too
};
inline constexpr std::array kViews = {View::needed, View::this_engine, View::unified_pages, View::no_window,
                                      View::no_sharing};
std::string_view view_name(View view);  // "this_engine"

// Bytes of one sequence of `length` positions. Error(limit) beyond 64 bits.
int64_t view_bytes(View view, const std::vector<PlanLayer>& layers, const PageRule& rule, int64_t length);
// The most that it takes on the way to that length; never falls from one length to the next.
int64_t view_bytes_most(View view, const std::vector<PlanLayer>& layers, const PageRule& rule,
                        int64_t length);
// What a sequence takes at the least: one page of every owner, or one position where there are no pages.
int64_t view_bytes_least(View view, const std::vector<PlanLayer>& layers);

// Formulas found in the field, each blind to something.
enum class Formula {
  hidden_over_heads,   // width / heads in place of head_dim
  every_query_head,    // heads in place of KV heads
  every_layer_global,  // no window
  every_layer_owns,    // no borrowers
  flat,                // layers * 2 * KV heads * head_dim of the first layer: all the same, all global
};
inline constexpr std::array kFormulas = {Formula::hidden_over_heads, Formula::every_query_head,
                                         Formula::every_layer_global, Formula::every_layer_owns,
                                         Formula::flat};
std::string_view formula_name(Formula formula);  // "hidden_over_heads"
int64_t formula_bytes(Formula formula, const ModelSpec& spec, const KvTypes& types, int64_t length);

// Bytes of K and V that a decode step reads when the sequence has `length` positions with its own: every
// layer once, or as often as this engine reads them.
int64_t read_bytes(const std::vector<PlanLayer>& layers, int64_t length);
int64_t engine_read_bytes(const std::vector<PlanLayer>& layers, int64_t length);

}  // namespace lapidary::kvlab
