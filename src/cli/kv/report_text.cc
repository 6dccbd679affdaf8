#include "cli/kv/report_text.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include "cli/numbers.h"
#include "kvlab/report/report.h"

namespace lapidary {
namespace {

namespace json = boost::json;

int64_t number(const json::value& value, const char* key) {
  return value.as_object().at(key).to_number<int64_t>();
}

std::string text(const json::value& value, const char* key) {
  return terminal_safe(std::string_view(value.as_object().at(key).as_string()));
}

std::string line(std::string_view name, std::string_view what) {
  return fmt::format("  {:<10} {}\n", name, what);
}

void add_bytes(std::string& out, const json::value& part) {
  const json::array& lengths = part.at("lengths").as_array();
  int64_t comparisons = 0;
  for (const json::value& check : part.at("checks").as_array()) comparisons += number(check, "comparisons");
  out += line("bytes", fmt::format("formula {} buffers in {} comparisons at {} lengths, {} to {} positions",
                                   part.at("ok").as_bool() ? "=" : "differs from", grouped(comparisons),
                                   lengths.size(), grouped(number(lengths.front(), "length")),
                                   grouped(number(lengths.back(), "length"))));
}

void add_plan(std::string& out, const json::value& part) {
  const json::array& lengths = part.at("lengths").as_array();
  if (lengths.empty()) return;
  out += line("plan",
              fmt::format("{} B of K and V at {} positions", grouped(number(lengths.back(), "needed_bytes")),
                          grouped(number(lengths.back(), "length"))));
}

void add_recompute(std::string& out, const json::value& part) {
  std::string_view name = "recompute";
  for (const json::value& run : part.at("runs").as_array()) {
    out += line(name, text(run, "verdict"));
    name = "";
  }
}

void add_offload(std::string& out, const json::value& part) {
  std::string ways;
  for (const json::value& tier : part.at("tiers").as_array())
    ways += (ways.empty() ? "" : "; ") + text(tier, "way");
  const json::value& counts = part.at("mutation_counts");
  out += line("offload", fmt::format("{} B moved by each of: {}; {} of {} mutations caught",
                                     grouped(number(part.at("state"), "kv_bytes")), ways,
                                     number(counts, "caught"), number(counts, "tried")));
}

// The first sentence of each is the verdict; the page has the rest.
void add_roofline(std::string& out, const json::value& part) {
  for (const json::value& run : part.at("runs").as_array()) {
    const json::array& sentences = run.at("verdict").at("sentences").as_array();
    if (!sentences.empty())
      out += line("roofline", terminal_safe(std::string_view(sentences.front().as_string())));
  }
}

}  // namespace

std::string report_text(const json::object& report, const Style& style) {
  const json::value& trace = report.at("trace");
  const json::value& summary = trace.at("summary");
  std::string out =
      fmt::format("{}: {} prompt + {} decode = {} positions, {} B each\n\n",
                  style.bold(text(report.at("repro"), "model")), grouped(number(summary, "prompt_tokens")),
                  grouped(number(summary, "decode_calls")), grouped(number(summary, "cached_positions")),
                  grouped(number(trace, "position_bytes")));
  out += line("trace", fmt::format("{} calls picked {} tokens, {} B of K and V written",
                                   trace.at("calls").as_array().size(), number(summary, "picked_tokens"),
                                   grouped(number(summary, "kv_written_bytes"))));
  const std::pair<const char*, void (*)(std::string&, const json::value&)> parts[] = {
      {"bytes", add_bytes},     {"plan", add_plan},         {"recompute", add_recompute},
      {"offload", add_offload}, {"roofline", add_roofline},
  };
  for (const auto& [name, add] : parts) {
    if (const json::value* part = report.if_contains(name)) add(out, *part);
  }
  const std::vector<kvlab::ReportCheck> checks = kvlab::report_checks(report);
  size_t failed = 0;
  for (const kvlab::ReportCheck& check : checks) failed += check.passed ? 0 : 1;
  out += line("checks", failed ? style.red(fmt::format("{} of {} failed", failed, checks.size()))
                               : fmt::format("all {} passed", checks.size()));
  for (const kvlab::ReportCheck& check : checks) {
    if (!check.passed)
      out += line("", fmt::format("{}: {}: {}", check.part, check.name, terminal_safe(check.detail)));
  }
  return out + "\n";
}

std::string written_line(const std::string& path, size_t bytes) {
  return fmt::format("  {}  {}\n", terminal_safe(path), bytes_text(static_cast<int64_t>(bytes)));
}

}  // namespace lapidary
