#include "cli/kv/bytes_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/byte_sizes.h"
#include "cli/inspect.h"
#include "cli/numbers.h"
#include "cli/table.h"
#include "kernels/kv_layout.h"
#include "kvlab/plan/plan.h"

namespace lapidary {
namespace {

using namespace kvlab;

std::vector<PlanLayer> plans_of(const BytesAtLength& at) {
  std::vector<PlanLayer> out;
  for (const BytesLayer& layer : at.layers) out.push_back(layer.plan);
  return out;
}

std::string signed_text(int64_t bytes) {
  return bytes > 0 ? "+" + grouped(bytes) : grouped(bytes);
}

std::string totals_text(const BytesReport& report, const Style& style) {
  TextTable table({{"length", Align::right},
                   {"", Align::left},
                   {"needed B", Align::right},
                   {"page rounding", Align::right},
                   {"stored", Align::right},
                   {"allocated", Align::right},
                   {"of the pools", Align::right},
                   {"pages", Align::right},
                   {"touched by a step", Align::right},
                   {"weights read", Align::right}});
  for (const BytesAtLength& at : report.lengths)
    table.add({grouped(at.length), std::string(where_of(plans_of(at), at.length)),
               grouped(at.total.needed_bytes), signed_text(at.total.stored_bytes - at.total.needed_bytes),
               grouped(at.total.stored_bytes), grouped(at.total.allocated_bytes),
               grouped(at.total.pool_bytes), grouped(at.total.pages), grouped(at.total.touched_bytes),
               grouped(at.weights_read_bytes)});
  return table.text(style);
}

// Rows of the layers table: like layers summed up, or each of its own.
struct Row {
  std::vector<int64_t> layers;
  BytesLayer sum;
};

std::vector<Row> rows_of(const BytesAtLength& at, bool every_layer) {
  std::vector<Row> rows;
  if (every_layer) {
    for (const BytesLayer& l : at.layers) rows.push_back({{l.plan.layer}, l});
    return rows;
  }
  for (const PlanLayerGroup& group : group_plan_layers(plans_of(at))) {
    Row row{group.layers, {}};
    for (const BytesLayer& l : at.layers) {
      if (std::find(group.layers.begin(), group.layers.end(), l.plan.layer) == group.layers.end()) continue;
      row.sum.plan = group.first;
      row.sum.first_stored = l.first_stored;
      row.sum.stored_positions = l.stored_positions;
      row.sum.needed_bytes += l.needed_bytes;
      row.sum.stored_bytes += l.stored_bytes;
      row.sum.allocated_bytes += l.allocated_bytes;
      row.sum.pool_bytes += l.pool_bytes;
      row.sum.pages += l.pages;
      row.sum.touched_bytes += l.touched_bytes;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string layers_text(const BytesAtLength& at, bool every_layer, const Style& style) {
  TextTable table({{"layers", Align::right},
                   {"kind", Align::left},
                   {"KV", Align::left},
                   {"positions", Align::left},
                   {"position B", Align::right},
                   {"needed B", Align::right},
                   {"stored", Align::right},
                   {"allocated", Align::right},
                   {"of the pools", Align::right},
                   {"pages", Align::right},
                   {"touched", Align::right},
                   {"which", Align::left}});
  for (const Row& row : rows_of(at, every_layer)) {
    const BytesLayer& l = row.sum;
    const bool owns = l.plan.owns();
    table.add({std::to_string(row.layers.size()),
               l.plan.window > 0 ? fmt::format("sliding {}", grouped(l.plan.window)) : "global",
               owns ? "own" : fmt::format("reads L{}", l.plan.owner),
               owns ? fmt::format("{} to {}", grouped(l.first_stored), grouped(at.length - 1)) : "-",
               grouped(l.plan.position_bytes), grouped(l.needed_bytes), grouped(l.stored_bytes),
               grouped(l.allocated_bytes), grouped(l.pool_bytes), grouped(l.pages),
               fmt::format("{}{}", grouped(l.touched_bytes),
                           l.plan.passes > 1 ? fmt::format(" in {} passes", l.plan.passes) : ""),
               layer_ranges(row.layers)});
  }
  return fmt::format("{}\n{}\n", style.bold(fmt::format("length {}", grouped(at.length))), table.text(style));
}

std::string rate(int64_t bytes, int64_t tokens) {
  return bytes % tokens == 0
             ? signed_text(bytes / tokens)
             : fmt::format("{:+.1f}", static_cast<double>(bytes) / static_cast<double>(tokens));
}

std::string slopes_text(const BytesReport& report, const Style& style) {
  if (report.slopes.empty()) return {};
  TextTable table({{"from the buffers", Align::left},
                   {"stored B per token", Align::right},
                   {"read by each step, B per token", Align::right}});
  for (const BytesSlope& slope : report.slopes)
    table.add({fmt::format("{} to {}", grouped(slope.from), grouped(slope.to)),
               rate(slope.stored_bytes, slope.to - slope.from),
               rate(slope.touched_bytes, slope.to - slope.from)});
  return table.text(style) + "\n";
}

std::string checks_text(const BytesReport& report, const Style& style) {
  std::string out;
  for (const BytesCheck& check : report.checks)
    out += check.passed() ? fmt::format("  ok    {} ({} comparison{})\n", check.name,
                                        grouped(check.comparisons), check.comparisons == 1 ? "" : "s")
                          : fmt::format("  {}  {}: {}\n", style.red("FAIL"), check.name, check.failure);
  return out;
}

}  // namespace

std::string bytes_text_view(const kvlab::BytesReport& report, const ModelSpec& spec,
                            const BytesTextOptions& options, const Style& style) {
  std::string out =
      fmt::format("{}  {}\n", style.bold(terminal_safe(options.name)), terminal_safe(options.numeric_mode));
  out += fmt::format("  {} layers, pattern {}; pages of {} positions; K and V in {}\n\n", spec.n_layers(),
                     layer_pattern(spec), kernels::kBlock, kv_types_name(report.options.types));
  out += totals_text(report, style);
  out +=
      "  touched: K and V that the step of the last position read; page rounding: positions out of sight "
      "whose page is\n"
      "  still there, less the oldest where its page has just gone\n\n";
  for (const BytesAtLength& at : report.lengths) out += layers_text(at, options.every_layer, style);
  return out + slopes_text(report, style) + checks_text(report, style);
}

}  // namespace lapidary
