#include "cli/kv/plan_text.h"

#include <fmt/ranges.h>

#include "cli/byte_sizes.h"
#include "cli/inspect.h"
#include "cli/numbers.h"
#include "cli/table.h"
#include "kernels/kv_layout.h"
#include "kvlab/plan/types.h"

namespace lapidary {
namespace {

using namespace kvlab;

std::string s(int64_t n, std::string_view word) {
  return fmt::format("{} {}{}", grouped(n), word, n == 1 ? "" : "s");
}

std::string head_text(const Plan& plan, const ModelSpec& spec, const PlanLabels& labels,
                      const PlanTextOptions& options, const Style& style) {
  int64_t owners = 0;
  for (const PlanLayer& l : plan.layers) owners += l.owns() ? 1 : 0;
  const int64_t borrowers = static_cast<int64_t>(plan.layers.size()) - owners;
  std::string out =
      fmt::format("{}  {}, {}\n", style.bold(terminal_safe(options.name)), labels.family, labels.format);
  out += fmt::format("  {}, pattern {}: {} K and V{}\n", s(spec.n_layers(), "layer"), layer_pattern(spec),
                     owners == 1 ? "1 owns its" : fmt::format("{} own their", owners),
                     borrowers > 0 ? fmt::format(", {} read another's", borrowers) : "");
  std::vector<std::string> windows;
  for (const int64_t window : plan.windows) windows.push_back(grouped(window));
  out += fmt::format(
      "  {}; {}{}\n\n", windows.empty() ? "no window" : fmt::format("window {}", fmt::join(windows, ", ")),
      s(plan.max_position, "position"),
      plan.max_position == spec.max_position
          ? ""
          : fmt::format(" by --max-position; the model was made for {}", grouped(spec.max_position)));
  return out;
}

std::string weights_text(const Plan& plan, const Style& style) {
  const PlanWeights& w = plan.weights;
  const std::string title = w.from_file ? std::string("weights, as the file has them")
                                        : fmt::format("weights, as if in {}", dtype_name(w.assumed));
  TextTable table({{title, Align::left},
                   {"resident B", Align::right},
                   {"", Align::right},
                   {"touched per token B", Align::right},
                   {"", Align::right}});
  const auto add = [&](std::string_view name, const WeightSize& size) {
    table.add({std::string(name), grouped(size.resident_bytes), binary_text(size.resident_bytes),
               grouped(size.touched_bytes_per_token), binary_text(size.touched_bytes_per_token)});
  };
  for (size_t i = 0; i < kWeightParts.size(); ++i)
    if (w.parts[i].resident_bytes > 0) add(weight_part_name(kWeightParts[i]), w.parts[i]);
  add("all", w.all);
  std::string out = table.text(style);
  out += fmt::format("  all: {} held, {} read for one token\n", both_units_text(w.all.resident_bytes),
                     both_units_text(w.all.touched_bytes_per_token));
  if (w.resident_by_dtype.size() > 1) {
    std::vector<std::string> formats;
    for (const auto& [format, bytes] : w.resident_by_dtype)
      formats.push_back(fmt::format("{} {}", format, bytes_text(bytes)));
    out += fmt::format("  of these {}\n", fmt::join(formats, ", "));
  }
  if (plan.options.sequences > 1)
    out += fmt::format("  a step of {}: at most {} read\n", s(plan.options.sequences, "sequence"),
                       both_units_text(w.touched_bytes_per_step));
  if (w.tensors_in_f16 > 0)
    out += fmt::format("  {} with rows that are no whole blocks of {}: priced in f16\n",
                       s(w.tensors_in_f16, "tensor"), dtype_name(w.assumed));
  return out + "\n";
}

std::string rates_text(const Plan& plan, const Style& style) {
  const PlanRates& r = plan.rates;
  const std::string types = kv_types_name(plan.options.types);
  const bool here = runs_here(plan.options.types);
  TextTable table(
      {{fmt::format("KV bytes per token, {}{}", types, here ? "" : " (not run here)"), Align::left},
       {"stored", Align::right},
       {"read by a step", Align::right},
       {"in this engine", Align::right},
       {"", Align::left}});
  if (plan.windows.empty()) {
    table.add({"at any length", grouped(r.stored_global), grouped(r.read_global),
               grouped(r.engine_read_global), ""});
  } else {
    table.add(
        {"below the window", grouped(r.stored_global + r.stored_sliding),
         grouped(r.read_global + r.read_sliding), grouped(r.engine_read_global + r.engine_read_sliding),
         fmt::format("{} global + {} sliding stored", grouped(r.stored_global), grouped(r.stored_sliding))});
    table.add({"past the window", grouped(r.stored_global), grouped(r.read_global),
               grouped(r.engine_read_global), ""});
  }
  std::string out = table.text(style);
  if (r.read_global + r.read_sliding != r.stored_global + r.stored_sliding)
    out += "  more is read than stored: layers that borrow read their owner's K and V again\n";
  if (r.engine_read_global + r.engine_read_sliding != r.read_global + r.read_sliding)
    out += "  this engine reads some layers in several passes: many query heads share one KV head\n";
  return out + "\n";
}

std::string layers_text(const Plan& plan, bool every_layer, const Style& style) {
  const bool here = runs_here(plan.options.types);
  std::vector<std::pair<std::string, Align>> columns{
      {"layers", Align::right}, {"kind", Align::left},  {"window", Align::right},     {"heads", Align::right},
      {"kv", Align::right},     {"head", Align::right}, {"position B", Align::right}, {"KV", Align::left}};
  if (here) columns.insert(columns.end(), {{"page B", Align::right}, {"of its pool", Align::right}});
  columns.emplace_back("passes", Align::right);
  columns.emplace_back("which", Align::left);
  TextTable table(columns);
  const auto add = [&](const PlanLayer& l, const std::vector<int64_t>& which) {
    std::vector<std::string> cells{std::to_string(which.size()),
                                   l.window > 0 ? "sliding" : "global",
                                   l.window > 0 ? grouped(l.window) : "-",
                                   std::to_string(l.n_heads),
                                   std::to_string(l.n_kv_heads),
                                   std::to_string(l.head_dim),
                                   grouped(l.position_bytes),
                                   l.owns() ? "own" : fmt::format("reads L{}", l.owner)};
    if (here)
      cells.insert(cells.end(),
                   {l.owns() ? grouped(l.page_bytes) : "-", l.owns() ? grouped(l.pool_page_bytes) : "-"});
    cells.push_back(std::to_string(l.passes));
    cells.push_back(layer_ranges(which));
    table.add(cells);
  };
  if (every_layer) {
    for (const PlanLayer& l : plan.layers) add(l, {l.layer});
  } else {
    for (const PlanLayerGroup& group : group_plan_layers(plan.layers)) add(group.first, group.layers);
  }
  return table.text(style) + "\n";
}

std::string lengths_text(const Plan& plan, const Style& style) {
  const bool here = runs_here(plan.options.types);
  std::vector<std::pair<std::string, Align>> columns{
      {fmt::format("KV of {}", s(plan.options.sequences, "sequence")), Align::right},
      {"needed B", Align::right},
      {"", Align::right},
      {"", Align::right}};
  if (here) columns.insert(columns.end(), {{"pages here B", Align::right}, {"", Align::right}});
  columns.emplace_back("read by a step", Align::right);
  columns.emplace_back("of the weights read", Align::right);
  TextTable table(columns);
  for (const PlanLine& line : plan.lines) {
    std::vector<std::string> cells{grouped(line.length), grouped(line.needed_bytes),
                                   binary_text(line.needed_bytes), bytes_text(line.needed_bytes)};
    if (here) {
      const int64_t bytes = line.views[static_cast<size_t>(View::this_engine)];
      cells.insert(cells.end(), {grouped(bytes), fmt::format("×{:.3f}", line.factor(bytes))});
    }
    cells.push_back(grouped(line.read_bytes));
    cells.push_back(fmt::format("{:.1f} %", 100.0 * static_cast<double>(line.read_bytes) /
                                                static_cast<double>(plan.weights.touched_bytes_per_step)));
    table.add(cells);
  }
  std::string out = table.text(style);
  if (here)
    out += fmt::format("  pages here: {} positions each, as this engine holds them\n", kernels::kBlock);
  return out + "\n";
}

std::string view_words(View view) {
  switch (view) {
    case View::needed: return "needed";
    case View::this_engine: return "this engine's pages";
    case View::unified_pages: return "unified pages: all as the widest";
    case View::no_window: return "no window = \"every layer is global\"";
    case View::no_sharing: return "no sharing = \"every layer owns\"";
  }
  return std::string(view_name(view));
}

std::string formula_words(Formula formula) {
  switch (formula) {
    case Formula::hidden_over_heads: return "\"head_dim = hidden / heads\"";
    case Formula::every_query_head: return "\"K and V for every query head\" (MHA)";
    case Formula::flat: return "\"layers × 2 × kv heads × head_dim\"";
    default: return std::string(formula_name(formula));
  }
}

std::string views_text(const Plan& plan, const Style& style) {
  std::vector<std::pair<std::string, Align>> columns{{"engines and formulas", Align::left}};
  for (const PlanLine& line : plan.lines) {
    columns.emplace_back(grouped(line.length), Align::right);
    columns.emplace_back("", Align::right);
  }
  TextTable table(columns);
  const auto add = [&](const std::string& words, auto bytes_of) {
    std::vector<std::string> cells{words};
    for (const PlanLine& line : plan.lines) {
      const int64_t bytes = bytes_of(line);
      cells.push_back(binary_text(bytes));
      cells.push_back(fmt::format("×{:.2f}", line.factor(bytes)));
    }
    table.add(cells);
  };
  for (const View view : priced_views(plan.options.types))
    add(view_words(view), [&](const PlanLine& line) { return line.views[static_cast<size_t>(view)]; });
  for (const Formula formula : {Formula::hidden_over_heads, Formula::every_query_head, Formula::flat})
    add(formula_words(formula),
        [&](const PlanLine& line) { return line.formulas[static_cast<size_t>(formula)]; });
  return table.text(style) + "\n";
}

std::string crossover_text(const Plan& plan) {
  const auto words = [&](const std::optional<int64_t>& length) {
    if (!length) return std::string("at no length");
    return fmt::format("from {} on{}", s(*length, "token"),
                       *length > plan.max_position ? fmt::format(", past the {} that the model was made for",
                                                                 grouped(plan.max_position))
                                                   : "");
  };
  return fmt::format(
      "  K and V take more than the weights: {}\n  a step reads more of K and V than of the weights: {}\n\n",
      words(plan.crossover.stored), words(plan.crossover.read));
}

std::string ranks_text(const Plan& plan, const Style& style) {
  const PlanRanks& r = *plan.ranks;
  std::string out = fmt::format("{} ranks of tensor parallelism; one rank, the fullest\n", r.ranks);
  out += fmt::format("  weights {} ({} B); tables, head, norms and routers are on every rank\n",
                     both_units_text(r.weight_bytes), grouped(r.weight_bytes));
  TextTable layers({{"layers", Align::right},
                    {"kv", Align::right},
                    {"kv of a rank", Align::right},
                    {"position B", Align::right},
                    {"", Align::left},
                    {"which", Align::left}});
  for (const PlanLayerGroup& group : group_plan_layers(r.layers)) {
    int64_t whole = 0;
    for (const PlanLayer& l : plan.layers)
      if (l.layer == group.first.layer) whole = l.n_kv_heads;
    const bool split = whole % r.ranks == 0;
    layers.add(
        {std::to_string(group.layers.size()), std::to_string(whole), std::to_string(group.first.n_kv_heads),
         grouped(group.first.position_bytes),
         split ? "split" : fmt::format("replicated: {} ranks do not divide {}", r.ranks, s(whole, "head")),
         layer_ranges(group.layers)});
  }
  out += layers.text(style);
  TextTable lines({{"length", Align::right},
                   {"KV of a rank, needed B", Align::right},
                   {"", Align::right},
                   {"of all ranks", Align::right},
                   {"", Align::right}});
  for (size_t i = 0; i < r.lines.size(); ++i) {
    const RankLine& line = r.lines[i];
    const int64_t all = line.needed_bytes * r.ranks;
    lines.add({grouped(line.length), grouped(line.needed_bytes), binary_text(line.needed_bytes),
               binary_text(all), fmt::format("×{:.2f}", plan.lines[i].factor(all))});
  }
  return out + lines.text(style) + "\n";
}

std::string budget_text(const Plan& plan, const Style& style) {
  const PlanBudget& b = *plan.budget;
  std::string out = fmt::format(
      "budget {}{}: {} beside the weights of {}{}\n", both_units_text(b.budget_bytes),
      plan.ranks ? " a rank" : "", both_units_text(b.left_bytes), both_units_text(b.weight_bytes),
      b.reserved_bytes > 0 ? fmt::format(" and {} set aside", both_units_text(b.reserved_bytes)) : "");
  std::vector<std::pair<std::string, Align>> columns{
      {"held as", Align::left},
      {fmt::format("longest, {}", s(plan.options.sequences, "sequence")), Align::right},
      {"limited by", Align::left}};
  for (const PlanLine& line : plan.lines)
    columns.emplace_back(fmt::format("sequences of {}", grouped(line.length)), Align::right);
  TextTable table(columns);
  for (const BudgetView& view : b.views) {
    std::string limit = "the budget";
    if (view.longest == plan.max_position)
      limit = view.by_memory ? fmt::format("the model; memory for {}", grouped(*view.by_memory))
                             : "the model; memory for any length";
    std::vector<std::string> cells{view_words(view.view), grouped(view.longest), limit};
    for (const auto& most : view.most_sequences) cells.push_back(most ? grouped(*most) : "any");
    table.add(cells);
  }
  return out + table.text(style);
}

}  // namespace

std::string plan_text(const Plan& plan, const ModelSpec& spec, const PlanLabels& labels,
                      const PlanTextOptions& options, const Style& style) {
  std::string out = head_text(plan, spec, labels, options, style) + weights_text(plan, style) +
                    rates_text(plan, style) + layers_text(plan, options.every_layer, style) +
                    lengths_text(plan, style) + views_text(plan, style) + crossover_text(plan);
  if (plan.ranks) out += ranks_text(plan, style);
  if (plan.budget) out += budget_text(plan, style);
  while (out.ends_with("\n\n")) out.pop_back();
  return out;
}

}  // namespace lapidary
