#include <fmt/ranges.h>

#include <boost/json.hpp>

#include "kernels/kv_layout.h"
#include "kvlab/plan/plan.h"
#include "kvlab/plan/types.h"

namespace lapidary::kvlab {
namespace {

namespace json = boost::json;

json::value number_or_null(const std::optional<int64_t>& number) {
  return number ? json::value(*number) : json::value(nullptr);
}

json::object model_json(const Plan& plan, const ModelSpec& spec, const PlanLabels& labels) {
  int64_t owners = 0;
  for (const PlanLayer& l : plan.layers) owners += l.owns() ? 1 : 0;
  return {{"family", labels.family},
          {"format", labels.format},
          {"n_layers", spec.n_layers()},
          {"owners", owners},
          {"borrowers", static_cast<int64_t>(plan.layers.size()) - owners},
          {"max_position", plan.max_position},
          {"windows", json::value_from(plan.windows)}};
}

json::object size_json(const WeightSize& size) {
  return {{"resident_bytes", size.resident_bytes},
          {"touched_bytes_per_token", size.touched_bytes_per_token},
          {"resident_elements", size.resident_elements},
          {"touched_elements_per_token", size.touched_elements_per_token}};
}

json::object weights_json(const PlanWeights& weights) {
  json::object out{{"source", weights.from_file ? "file" : "assumed"}};
  if (!weights.from_file) {
    out["assumed_dtype"] = dtype_name(weights.assumed);
    out["tensors_in_f16"] = weights.tensors_in_f16;
  }
  for (auto& [key, value] : size_json(weights.all)) out[key] = value;
  out["touched_bytes_per_step"] = weights.touched_bytes_per_step;
  json::array formats, parts;
  for (const auto& [format, bytes] : weights.resident_by_dtype)
    formats.push_back(json::object{{"dtype", format}, {"resident_bytes", bytes}});
  for (size_t i = 0; i < kWeightParts.size(); ++i) {
    if (weights.parts[i].resident_bytes == 0) continue;
    json::object part{{"part", weight_part_name(kWeightParts[i])}};
    for (auto& [key, value] : size_json(weights.parts[i])) part[key] = value;
    parts.push_back(part);
  }
  out["by_dtype"] = formats;
  out["parts"] = parts;
  return out;
}

json::object rates_json(const PlanRates& r) {
  return {{"stored_global_bytes", r.stored_global},
          {"stored_sliding_bytes", r.stored_sliding},
          {"stored_below_window_bytes", r.stored_global + r.stored_sliding},
          {"stored_past_window_bytes", r.stored_global},
          {"read_global_bytes", r.read_global},
          {"read_sliding_bytes", r.read_sliding},
          {"read_below_window_bytes", r.read_global + r.read_sliding},
          {"read_past_window_bytes", r.read_global},
          {"engine_read_below_window_bytes", r.engine_read_global + r.engine_read_sliding},
          {"engine_read_past_window_bytes", r.engine_read_global}};
}

json::object layer_json(const PlanLayerGroup& group) {
  const PlanLayer& l = group.first;
  json::object out{{"layers", json::value_from(group.layers)},
                   {"kind", l.window > 0 ? "sliding" : "global"},
                   {"window", l.window},
                   {"role", l.owns() ? "owner" : "borrower"},
                   {"n_heads", l.n_heads},
                   {"n_kv_heads", l.n_kv_heads},
                   {"head_dim", l.head_dim},
                   {"position_bytes", l.position_bytes},
                   {"engine_passes", l.passes}};
  if (!l.owns()) out["owner"] = l.owner;
  if (l.page_bytes > 0) {
    out["page_bytes"] = l.page_bytes;
    out["pool_page_bytes"] = l.pool_page_bytes;
  }
  return out;
}

json::object line_json(const PlanLine& line) {
  json::array views, formulas;
  const auto entry = [&](std::string_view name, int64_t bytes) {
    return json::object{{"name", name}, {"bytes", bytes}, {"factor", line.factor(bytes)}};
  };
  for (size_t i = 0; i < kViews.size(); ++i)
    if (line.views[i] >= 0) views.push_back(entry(view_name(kViews[i]), line.views[i]));
  for (size_t i = 0; i < kFormulas.size(); ++i)
    formulas.push_back(entry(formula_name(kFormulas[i]), line.formulas[i]));
  return {{"length", line.length},         {"needed_bytes", line.needed_bytes},
          {"read_bytes", line.read_bytes}, {"engine_read_bytes", line.engine_read_bytes},
          {"pages", line.pages},           {"views", views},
          {"formulas", formulas}};
}

json::object crossover_json(const Plan& plan) {
  json::object out;
  const auto put = [&](const char* name, const std::optional<int64_t>& length) {
    out[fmt::format("{}_length", name)] = number_or_null(length);
    out[fmt::format("{}_past_max_position", name)] = !length || *length > plan.max_position;
  };
  put("stored", plan.crossover.stored);
  put("read", plan.crossover.read);
  return out;
}

json::object ranks_json(const Plan& plan) {
  const PlanRanks& r = *plan.ranks;
  json::array layers, lines;
  for (const PlanLayerGroup& group : group_plan_layers(r.layers)) {
    const PlanLayer& rank = group.first;
    int64_t whole = 0;
    for (const PlanLayer& l : plan.layers)
      if (l.layer == rank.layer) whole = l.n_kv_heads;
    layers.push_back(json::object{{"layers", json::value_from(group.layers)},
                                  {"role", rank.owns() ? "owner" : "borrower"},
                                  {"n_kv_heads", whole},
                                  {"rank_kv_heads", rank.n_kv_heads},
                                  {"copies", rank.n_kv_heads * r.ranks / whole},
                                  {"rank_position_bytes", rank.position_bytes}});
  }
  for (const RankLine& line : r.lines) {
    json::object entry{{"length", line.length},
                       {"rank_needed_bytes", line.needed_bytes},
                       {"all_ranks_needed_bytes", line.needed_bytes * r.ranks}};
    if (line.engine_bytes >= 0) entry["rank_engine_bytes"] = line.engine_bytes;
    lines.push_back(entry);
  }
  return {{"ranks", r.ranks},
          {"rank_weight_bytes", r.weight_bytes},
          {"all_ranks_weight_bytes", r.weight_bytes * r.ranks},
          {"replicated_layers", json::value_from(r.replicated)},
          {"layers", layers},
          {"lengths", lines}};
}

json::object budget_json(const Plan& plan) {
  const PlanBudget& b = *plan.budget;
  json::array views;
  for (const BudgetView& view : b.views) {
    json::array sequences;
    for (size_t i = 0; i < view.most_sequences.size(); ++i)
      sequences.push_back(json::object{{"length", plan.options.lengths[i]},
                                       {"sequences", number_or_null(view.most_sequences[i])}});
    views.push_back(json::object{{"name", view_name(view.view)},
                                 {"longest_length", view.longest},
                                 {"limited_by", view.longest == plan.max_position ? "model" : "budget"},
                                 {"longest_length_by_memory", number_or_null(view.by_memory)},
                                 {"most_sequences", sequences}});
  }
  return {{"budget_bytes", b.budget_bytes},
          {"reserved_bytes", b.reserved_bytes},
          {"weight_bytes", b.weight_bytes},
          {"left_bytes", b.left_bytes},
          {"views", views}};
}

}  // namespace

boost::json::object plan_json(const Plan& plan, const ModelSpec& spec, const PlanLabels& labels,
                              const Repro& repro) {
  json::object out = framed("lapidary.kv.plan", repro);
  out["model"] = model_json(plan, spec, labels);
  out["kv_dtype"] = json::object{{"keys", kv_type_name(plan.options.types.keys)},
                                 {"values", kv_type_name(plan.options.types.values)},
                                 {"runs_here", runs_here(plan.options.types)}};
  out["sequences"] = plan.options.sequences;
  out["page_positions"] = kernels::kBlock;
  out["keep_behind"] = plan.options.keep_behind;
  out["weights"] = weights_json(plan.weights);
  out["kv_per_token"] = rates_json(plan.rates);
  json::array layers, lines;
  for (const PlanLayerGroup& group : group_plan_layers(plan.layers)) layers.push_back(layer_json(group));
  for (const PlanLine& line : plan.lines) lines.push_back(line_json(line));
  out["layers"] = layers;
  out["lengths"] = lines;
  out["crossover"] = crossover_json(plan);
  if (plan.ranks) out["tp"] = ranks_json(plan);
  if (plan.budget) out["budget"] = budget_json(plan);
  return out;
}

std::string plan_csv(const Plan& plan) {
  std::vector<std::string> names = {"length", "sequences", "weight_bytes", "weight_bytes_touched_per_step"};
  const bool here = runs_here(plan.options.types);
  for (const View view : priced_views(plan.options.types))
    names.push_back(fmt::format("{}_bytes", view_name(view)));
  for (const Formula formula : kFormulas) names.push_back(fmt::format("{}_bytes", formula_name(formula)));
  names.insert(names.end(), {"read_bytes", "engine_read_bytes"});
  if (plan.ranks) names.insert(names.end(), {"ranks", "rank_weight_bytes", "rank_needed_bytes"});
  if (plan.ranks && here) names.push_back("rank_engine_bytes");
  std::string out = fmt::format("{}\n", fmt::join(names, ","));
  for (size_t i = 0; i < plan.lines.size(); ++i) {
    const PlanLine& line = plan.lines[i];
    std::vector<int64_t> cells = {line.length, plan.options.sequences, plan.weights.all.resident_bytes,
                                  plan.weights.touched_bytes_per_step};
    for (const int64_t bytes : line.views)
      if (bytes >= 0) cells.push_back(bytes);
    cells.insert(cells.end(), line.formulas.begin(), line.formulas.end());
    cells.insert(cells.end(), {line.read_bytes, line.engine_read_bytes});
    if (plan.ranks) {
      const RankLine& rank = plan.ranks->lines[i];
      cells.insert(cells.end(), {plan.ranks->ranks, plan.ranks->weight_bytes, rank.needed_bytes});
      if (here) cells.push_back(rank.engine_bytes);
    }
    out += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return out;
}

}  // namespace lapidary::kvlab
