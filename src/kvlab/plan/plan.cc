#include "kvlab/plan/plan.h"

#include <algorithm>
#include <set>

#include "kvlab/plan/numbers.h"
#include "kvlab/plan/types.h"

namespace lapidary::kvlab {
namespace {

PlanRates rates_of(const std::vector<PlanLayer>& layers) {
  PlanRates rates;
  for (const PlanLayer& l : layers) {
    const auto add = [&](int64_t& global, int64_t& sliding, int64_t bytes) {
      int64_t& to = l.window > 0 ? sliding : global;
      to = plus(to, bytes);
    };
    if (l.owns()) add(rates.stored_global, rates.stored_sliding, l.position_bytes);
    add(rates.read_global, rates.read_sliding, l.position_bytes);
    add(rates.engine_read_global, rates.engine_read_sliding, times(l.passes, l.position_bytes));
  }
  return rates;
}

int64_t pages_of(const std::vector<PlanLayer>& layers, const PageRule& rule, int64_t length) {
  int64_t pages = 0;
  for (const PlanLayer& l : layers)
    if (l.page_bytes > 0) pages = plus(pages, rule.pages_held(l, length));
  return pages;
}

PlanLine line_of(const ModelSpec& spec, const Plan& plan, int64_t length) {
  const PageRule rule{plan.options.keep_behind};
  const auto all = [&](int64_t bytes) { return times(bytes, plan.options.sequences); };
  PlanLine line{.length = length};
  line.needed_bytes = all(view_bytes(View::needed, plan.layers, rule, length));
  line.read_bytes = all(read_bytes(plan.layers, length));
  line.engine_read_bytes = all(engine_read_bytes(plan.layers, length));
  for (const View view : kViews) {
    const bool priced = view != View::this_engine || runs_here(plan.options.types);
    line.views.push_back(priced ? all(view_bytes(view, plan.layers, rule, length)) : -1);
  }
  for (const Formula formula : kFormulas)
    line.formulas.push_back(all(formula_bytes(formula, spec, plan.options.types, length)));
  line.pages = all(pages_of(plan.layers, rule, length));
  return line;
}

PlanCrossover crossover_of(const Plan& plan) {
  const int64_t sequences = plan.options.sequences;
  const auto stored = [&](int64_t length) {
    return times(sequences, view_bytes(View::needed, plan.layers, {}, length));
  };
  const auto read = [&](int64_t length) { return times(sequences, read_bytes(plan.layers, length)); };
  return {least_length(stored, plan.weights.all.resident_bytes),
          least_length(read, plan.weights.touched_bytes_per_step)};
}

PlanRanks ranks_of(const ModelSpec& spec, const Plan& plan) {
  const PlanOptions& o = plan.options;
  PlanRanks out{.ranks = o.ranks, .weight_bytes = plan.weights.rank_bytes};
  out.layers = plan_layers(spec, o.types, o.ranks);
  for (const PlanLayer& l : plan.layers)
    if (l.n_kv_heads % o.ranks != 0) out.replicated.push_back(l.layer);
  const PageRule rule{o.keep_behind};
  for (const int64_t length : o.lengths) {
    RankLine line{.length = length};
    line.needed_bytes = times(o.sequences, view_bytes(View::needed, out.layers, rule, length));
    if (runs_here(o.types))
      line.engine_bytes = times(o.sequences, view_bytes(View::this_engine, out.layers, rule, length));
    out.lines.push_back(line);
  }
  return out;
}

BudgetView solve(View view, const std::vector<PlanLayer>& layers, const Plan& plan, int64_t left) {
  const PageRule rule{plan.options.keep_behind};
  const int64_t sequences = plan.options.sequences;
  const auto one = [&](int64_t length) { return view_bytes_most(view, layers, rule, length); };
  const auto all = [&](int64_t length) { return times(sequences, one(length)); };
  BudgetView out{.view = view};
  const int64_t longest = greatest_length(all, left, kMostLength);
  if (longest < kMostLength) out.by_memory = longest;
  out.longest = std::min(longest, plan.max_position);
  for (const int64_t length : plan.options.lengths) {
    const int64_t bytes = one(length);
    out.most_sequences.push_back(bytes == 0 ? std::optional<int64_t>() : left / bytes);
  }
  return out;
}

PlanBudget budget_of(const Plan& plan) {
  const PlanOptions& o = plan.options;
  const std::vector<PlanLayer>& layers = plan.ranks ? plan.ranks->layers : plan.layers;
  PlanBudget out{.budget_bytes = *o.budget_bytes, .reserved_bytes = o.reserved_bytes};
  out.weight_bytes = plan.weights.rank_bytes;
  const char* whose = plan.ranks ? " of one rank" : "";
  const int64_t taken = plus(out.weight_bytes, o.reserved_bytes);
  ensure(taken <= out.budget_bytes, ErrorCode::limit,
         "budget: {} bytes{} do not hold the weights: they take {} bytes{}, {} more than there are",
         out.budget_bytes, whose, out.weight_bytes,
         o.reserved_bytes > 0 ? fmt::format(" and {} are set aside", o.reserved_bytes) : "",
         taken - out.budget_bytes);
  out.left_bytes = out.budget_bytes - taken;
  const View view = runs_here(o.types) ? View::this_engine : View::needed;
  const int64_t least = times(o.sequences, view_bytes_least(view, layers));
  ensure(least <= out.left_bytes, ErrorCode::limit,
         "budget: {} bytes{} leave {} beside the weights: {} of every layer that stores K and V, for {} "
         "sequence{}, takes {} bytes, {} more than there are",
         out.budget_bytes, whose, out.left_bytes, view == View::this_engine ? "one page" : "one position",
         o.sequences, o.sequences == 1 ? "" : "s", least, least - out.left_bytes);
  for (const View priced : priced_views(o.types))
    out.views.push_back(solve(priced, layers, plan, out.left_bytes));
  return out;
}

}  // namespace

std::vector<View> priced_views(const KvTypes& types) {
  std::vector<View> out;
  for (const View view : kViews)
    if (view != View::this_engine || runs_here(types)) out.push_back(view);
  return out;
}

std::vector<PlanLayerGroup> group_plan_layers(const std::vector<PlanLayer>& layers) {
  const auto key = [](const PlanLayer& l) {
    return std::tuple(l.owns() ? -1 : l.owner, l.window, l.n_heads, l.n_kv_heads, l.head_dim);
  };
  std::vector<PlanLayerGroup> groups;
  for (const PlanLayer& l : layers) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const PlanLayerGroup& g) { return key(g.first) == key(l); });
    if (group == groups.end()) group = groups.insert(groups.end(), PlanLayerGroup{{}, l});
    group->layers.push_back(l.layer);
  }
  return groups;
}

Plan make_plan(const ModelSpec& spec, const PlanWeights& weights, const PlanOptions& options) {
  Plan plan{.options = options, .weights = weights};
  plan.max_position = options.max_position > 0 ? options.max_position : spec.max_position;
  for (const int64_t length : options.lengths) {
    ensure(
        length >= 1 && length <= plan.max_position, ErrorCode::usage,
        "length: expected 1 to {} positions, what the model was made for, got {} (--max-position N plans for "
        "more)",
        plan.max_position, length);
  }
  plan.layers = plan_layers(spec, options.types);
  plan.rates = rates_of(plan.layers);
  std::set<int64_t> windows;
  for (const PlanLayer& l : plan.layers)
    if (l.window > 0) windows.insert(l.window);
  plan.windows.assign(windows.begin(), windows.end());
  for (const int64_t length : options.lengths) plan.lines.push_back(line_of(spec, plan, length));
  plan.crossover = crossover_of(plan);
  if (options.ranks > 1) plan.ranks = ranks_of(spec, plan);
  if (options.budget_bytes) plan.budget = budget_of(plan);
  return plan;
}

}  // namespace lapidary::kvlab
