#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "kernels/kv_layout.h"
#include "kvlab/bytes/bytes.h"

namespace lapidary::kvlab {
namespace {

namespace json = boost::json;

std::string_view kind_of(const PlanLayer& layer) {
  return layer.window > 0 ? "sliding" : "global";
}
std::string_view role_of(const PlanLayer& layer) {
  return layer.owns() ? "owner" : "borrower";
}

std::vector<PlanLayer> plans_of(const BytesAtLength& at) {
  std::vector<PlanLayer> out;
  for (const BytesLayer& layer : at.layers) out.push_back(layer.plan);
  return out;
}

json::object layer_json(const BytesLayer& l, int64_t length) {
  return {{"layer", l.plan.layer},
          {"kind", kind_of(l.plan)},
          {"role", role_of(l.plan)},
          {"owner", l.plan.owner},
          {"window", l.plan.window},
          {"position_bytes", l.plan.position_bytes},
          {"visible_positions", l.plan.seen(length)},
          {"first_stored", l.plan.owns() ? json::value(l.first_stored) : json::value(nullptr)},
          {"stored_positions", l.stored_positions},
          {"pages", l.pages},
          {"needed_bytes", l.needed_bytes},
          {"stored_bytes", l.stored_bytes},
          {"allocated_bytes", l.allocated_bytes},
          {"pool_bytes", l.pool_bytes},
          {"touched_bytes", l.touched_bytes},
          {"touched_formula_bytes", l.touched_formula_bytes},
          {"passes", l.plan.passes},
          {"written_bytes", l.written_bytes}};
}

bool holds(const BytesAtLength& at) {
  BytesReport alone;
  alone.lengths = {at};
  alone.checks = check_bytes(alone);
  return alone.ok();
}

json::object length_json(const BytesAtLength& at) {
  json::array layers;
  for (const BytesLayer& layer : at.layers) layers.push_back(layer_json(layer, at.length));
  return {{"length", at.length},
          {"where", where_of(plans_of(at), at.length)},
          {"needed_bytes", at.total.needed_bytes},
          {"stored_bytes", at.total.stored_bytes},
          {"page_rounding_bytes", at.total.stored_bytes - at.total.needed_bytes},
          {"allocated_bytes", at.total.allocated_bytes},
          {"pool_bytes", at.total.pool_bytes},
          {"saved_bytes", at.saved_bytes},
          {"pages", at.total.pages},
          {"touched_bytes", at.total.touched_bytes},
          {"touched_once_bytes", at.total.touched_once_bytes},
          {"written_bytes", at.total.written_bytes},
          {"weights_read_bytes", at.weights_read_bytes},
          {"table_rows_read_bytes", at.table_rows_read_bytes},
          {"ok", holds(at)},
          {"layers", layers}};
}

json::object model_json(const BytesReport& report, const ModelSpec& spec) {
  const std::vector<PlanLayer> layers = plans_of(report.lengths.front());
  int64_t owners = 0;
  json::array windows;
  for (const PlanLayer& l : layers) {
    owners += l.owns() ? 1 : 0;
    const json::value window(l.window);
    if (l.window > 0 && std::find(windows.begin(), windows.end(), window) == windows.end())
      windows.push_back(window);
  }
  return {{"n_layers", spec.n_layers()},
          {"owners", owners},
          {"borrowers", static_cast<int64_t>(layers.size()) - owners},
          {"max_position", spec.max_position},
          {"windows", windows}};
}

json::object slope_json(const BytesSlope& slope) {
  const int64_t tokens = slope.to - slope.from;
  const auto rate = [&](int64_t bytes) {  // whole, but across the edge of a window
    return bytes % tokens == 0 ? json::value(bytes / tokens)
                               : json::value(static_cast<double>(bytes) / static_cast<double>(tokens));
  };
  return {{"from", slope.from},
          {"to", slope.to},
          {"stored_bytes", slope.stored_bytes},
          {"touched_bytes", slope.touched_bytes},
          {"stored_bytes_per_token", rate(slope.stored_bytes)},
          {"touched_bytes_per_token", rate(slope.touched_bytes)}};
}

}  // namespace

boost::json::object bytes_json(const BytesReport& report, const ModelSpec& spec, const Repro& repro) {
  json::object out = framed("lapidary.kv.bytes", repro);
  out["model"] = model_json(report, spec);
  out["kv_dtype"] = json::object{{"keys", kv_type_name(report.options.types.keys)},
                                 {"values", kv_type_name(report.options.types.values)}};
  out["page_positions"] = kernels::kBlock;
  out["keep_behind"] = report.options.keep_behind;
  json::array lengths, slopes, checks;
  for (const BytesAtLength& at : report.lengths) lengths.push_back(length_json(at));
  for (const BytesSlope& slope : report.slopes) slopes.push_back(slope_json(slope));
  for (const BytesCheck& check : report.checks)
    checks.push_back(
        json::object{{"name", check.name},
                     {"comparisons", check.comparisons},
                     {"passed", check.passed()},
                     {"failure", check.passed() ? json::value(nullptr) : json::value(check.failure)}});
  out["lengths"] = lengths;
  out["slopes"] = slopes;
  out["checks"] = checks;
  out["ok"] = report.ok();
  return out;
}

std::string bytes_csv(const BytesReport& report) {
  std::string out =
      "length,layer,kind,role,owner,window,needed_bytes,stored_bytes,allocated_bytes,pool_bytes,pages,"
      "touched_bytes,written_bytes\n";
  for (const BytesAtLength& at : report.lengths)
    for (const BytesLayer& l : at.layers)
      out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{}\n", at.length, l.plan.layer, kind_of(l.plan),
                         role_of(l.plan), l.plan.owner, l.plan.window, l.needed_bytes, l.stored_bytes,
                         l.allocated_bytes, l.pool_bytes, l.pages, l.touched_bytes, l.written_bytes);
  return out;
}

}  // namespace lapidary::kvlab
