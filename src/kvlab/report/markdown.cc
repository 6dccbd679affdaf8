#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "kvlab/report/report.h"

namespace lapidary::kvlab {
namespace {

namespace json = boost::json;

int64_t number(const json::value& value, std::string_view key) {
  return value.as_object().at(key).to_number<int64_t>();
}

std::string text(const json::value& value, std::string_view key) {
  return std::string(value.as_object().at(key).as_string());
}

std::string grouped(int64_t n) {
  std::string digits = fmt::format("{}", n < 0 ? -n : n);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return (n < 0 ? "-" : "") + digits;
}

// Any text as a span of code: in JSON's spelling, fenced by more backticks than it holds, its bars kept from
// ending a cell.
std::string code(std::string_view any) {
  std::string quoted = json::serialize(json::string(any));
  size_t run = 0, longest = 0;
  for (const char c : quoted) longest = std::max(longest, run = c == '`' ? run + 1 : 0);
  std::string out;
  for (const char c : quoted) out += c == '|' ? std::string("\\|") : std::string(1, c);
  const std::string fence(longest + 1, '`');
  return fence + " " + out + " " + fence;
}

std::string token(const json::value& t) {
  const std::string piece = text(t, "piece");
  return piece.empty() ? fmt::format("{}", number(t, "id"))
                       : fmt::format("{} ({})", code(piece), number(t, "id"));
}

std::string milliseconds(const json::value& call) {
  const json::value* seconds = call.as_object().if_contains("seconds");
  return seconds ? fmt::format("{:.2f}", seconds->to_number<double>() * 1e3) : "";
}

void add_trace(std::string& out, const json::object& trace) {
  const json::value& summary = trace.at("summary");
  out += fmt::format(
      "{} decode calls picked {} tokens; the last was never fed back, so the cache holds {} + {} = {} "
      "positions.\nEach takes {} B of K and V in {}; {} B were written.\n\n",
      grouped(number(summary, "decode_calls")), grouped(number(summary, "picked_tokens")),
      grouped(number(summary, "prompt_tokens")), grouped(number(summary, "decode_calls")),
      grouped(number(summary, "cached_positions")), grouped(trace.at("position_bytes").to_number<int64_t>()),
      text(trace, "kv_dtype"), grouped(number(summary, "kv_written_bytes")));
  const json::array& calls = trace.at("calls").as_array();
  constexpr size_t kMost = 24;  // an issue is not the place for more; report.csv has all
  out += "| call | kind | fed | KV | K/V written, B | K/V read, B | picked | gap | ms |\n";
  out += "|--:|:--|--:|--:|--:|--:|:--|--:|--:|\n";
  for (size_t i = 0; i < calls.size() && i < kMost; ++i) {
    const json::value& call = calls[i];
    const json::value& picked = call.at("picked");
    out += fmt::format("| {} | {} | {} | {} → {} | {} | {} | {} | {} | {} |\n", number(call, "index"),
                       text(call, "kind"), call.at("fed").as_array().size(), grouped(number(call, "before")),
                       grouped(number(call, "after")), grouped(number(call, "kv_written_bytes")),
                       grouped(number(call, "kv_read_bytes")), picked.is_object() ? token(picked) : "",
                       picked.is_object() && picked.at("gap").is_number()
                           ? fmt::format("{:.4g}", picked.at("gap").to_number<double>())
                           : "",
                       milliseconds(call));
  }
  if (calls.size() > kMost) out += fmt::format("\n{} more calls are in report.csv.\n", calls.size() - kMost);
}

void add_bytes(std::string& out, const json::object& bytes) {
  out += "\n## Needed, allocated, touched\n\n";
  out += "| positions | | needed, B | stored, B | allocated, B | touched, B |\n";
  out += "|--:|:--|--:|--:|--:|--:|\n";
  for (const json::value& line : bytes.at("lengths").as_array()) {
    out +=
        fmt::format("| {} | {} | {} | {} | {} | {} |\n", grouped(number(line, "length")), text(line, "where"),
                    grouped(number(line, "needed_bytes")), grouped(number(line, "stored_bytes")),
                    grouped(number(line, "allocated_bytes")), grouped(number(line, "touched_bytes")));
  }
  out += "\n";
  for (const json::value& check : bytes.at("checks").as_array())
    out += fmt::format(
        "- {}: {} comparisons, {}\n", text(check, "name"), number(check, "comparisons"),
        check.at("passed").as_bool() ? "all equal to the byte" : "**not equal:** " + text(check, "failure"));
}

void add_recompute(std::string& out, const json::object& recompute) {
  out += "\n## Computed again\n\n";
  for (const json::value& run : recompute.at("runs").as_array()) {
    out += fmt::format("- {}\n", text(run, "verdict"));
    for (const json::value& again : run.at("recomputations").as_array()) {
      const json::value& kv = again.at("kv");
      out +=
          fmt::format("  - {}, {} thread{}: {} of {} elements have the same bits, at most {} ulps apart",
                      text(again, "name"), number(again, "threads"), number(again, "threads") == 1 ? "" : "s",
                      grouped(number(kv, "equal")), grouped(number(kv, "elements")), number(kv, "max_ulps"));
      const json::value& first = again.at("first_divergence");
      if (first.is_object()) {
        const json::value& layer = first.at("layer");
        out += fmt::format("; first: {}{} at position {}", text(first, "op"),
                           layer.is_null() ? "" : fmt::format(" of layer {}", number(first, "layer")),
                           number(first, "position"));
      }
      const size_t flips = again.at("flips").as_array().size();
      out += fmt::format("; {} token{} flip{}\n", flips, flips == 1 ? "" : "s", flips == 1 ? "s" : "");
    }
  }
}

void add_roofline(std::string& out, const json::object& roofline) {
  out += "\n## Time over bytes\n\n";
  for (const json::value& run : roofline.at("runs").as_array()) {
    for (const json::value& sentence : run.at("verdict").at("sentences").as_array())
      out += fmt::format("- {} thread{}: {}\n", number(run, "threads"),
                         number(run, "threads") == 1 ? "" : "s", std::string(sentence.as_string()));
  }
}

void add_offload(std::string& out, const json::object& offload) {
  out += "\n## Saved and restored\n\n";
  out += "| way | stored, B | K/V restored, B | restore, GB/s |\n|:--|--:|--:|--:|\n";
  for (const json::value& tier : offload.at("tiers").as_array()) {
    const json::value* speed = tier.as_object().if_contains("restore_gb_per_s");
    out += fmt::format("| {} | {} | {} | {} |\n", text(tier, "way"), grouped(number(tier, "stored_bytes")),
                       grouped(number(tier, "kv_bytes_restored")),
                       speed && speed->is_number() ? fmt::format("{:.2f}", speed->to_number<double>()) : "");
  }
}

void add_plan(std::string& out, const json::object& plan) {
  const json::array& lengths = plan.at("lengths").as_array();
  if (lengths.empty()) return;
  out += "\n## What it would take\n\n| positions | needed, B |";
  std::string rule = "|--:|--:|";
  for (const char* key : {"views", "formulas"}) {
    for (const json::value& view : lengths[0].at(key).as_array()) {
      if (text(view, "name") == "needed") continue;
      std::string name = text(view, "name");
      for (char& c : name) c = c == '_' ? ' ' : c;
      out += fmt::format(" {} |", name);
      rule += "--:|";
    }
  }
  out += "\n" + rule + "\n";
  for (const json::value& line : lengths) {
    out += fmt::format("| {} | {} |", grouped(number(line, "length")), grouped(number(line, "needed_bytes")));
    for (const char* key : {"views", "formulas"}) {
      for (const json::value& view : line.at(key).as_array())
        if (text(view, "name") != "needed")
          out += fmt::format(" ×{:.2f} |", view.at("factor").to_number<double>());
    }
    out += "\n";
  }
}

}  // namespace

std::string report_markdown(const json::object& report) {
  const json::value& repro = report.at("repro");
  std::string out = fmt::format("# KV cache of {}\n\n", code(text(repro, "model")));
  const std::vector<ReportCheck> checks = report_checks(report);
  size_t failed = 0;
  for (const ReportCheck& check : checks) failed += check.passed ? 0 : 1;
  out += failed ? fmt::format("**{} of {} checks failed:**\n\n", failed, checks.size())
                : fmt::format("All {} checks passed.\n\n", checks.size());
  for (const ReportCheck& check : checks) {
    if (!check.passed) out += fmt::format("- {}: {}: {}\n", check.part, check.name, check.detail);
  }
  if (failed) out += "\n";
  add_trace(out, report.at("trace").as_object());
  const std::pair<const char*, void (*)(std::string&, const json::object&)> parts[] = {
      {"bytes", add_bytes},       {"recompute", add_recompute}, {"offload", add_offload},
      {"roofline", add_roofline}, {"plan", add_plan},
  };
  for (const auto& [name, add] : parts) {
    if (const json::value* part = report.if_contains(name)) add(out, part->as_object());
  }
  out += "\n## How to make it again\n\n| | |\n|:--|:--|\n";
  for (const auto& [key, value] : repro.as_object()) {
    std::string name = key;
    for (char& c : name) c = c == '_' ? ' ' : c;
    out += fmt::format("| {} | {} |\n", name,
                       value.is_string() ? code(value.as_string()) : json::serialize(value));
  }
  return out;
}

}  // namespace lapidary::kvlab
