#include "kvlab/report/report.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

#include "base/error.h"
#include "kvlab/report/page_files.h"

namespace lapidary::kvlab {
namespace {

namespace json = boost::json;

// What a clock had a part in: seconds, rates, and what is derived from them.
bool is_timing(std::string_view key) {
  constexpr std::string_view kNames[] = {
      "speed_up",     "ttft_speed_up", "break_even", "claim",
      "cached_share",  // of a cold load: what the system happened to keep
  };
  for (const std::string_view name : kNames) {
    if (key == name) return true;
  }
  return key.ends_with("seconds") || key.find("seconds_per") != key.npos || key.ends_with("per_s");
}

void remove_timings(json::value& value) {
  if (json::array* array = value.if_array()) {
    for (json::value& element : *array) remove_timings(element);
    return;
  }
  json::object* object = value.if_object();
  if (!object) return;
  std::vector<std::string> timings;
  for (auto& [key, member] : *object) {
    if (is_timing(key)) {
      timings.emplace_back(key);
    } else {
      remove_timings(member);
    }
  }
  // stable_erase: the order of what stays is part of what two runs share.
  for (const std::string& key : timings) object->stable_erase(key);
}

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

const json::object* part_of(const json::object& report, std::string_view name) {
  const json::value* part = report.if_contains(name);
  return part ? part->if_object() : nullptr;
}

std::string text_of(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value && value->is_string() ? std::string(value->get_string()) : std::string();
}

void add_checks(std::vector<ReportCheck>& checks, const std::string& part, const json::object& object) {
  for (const json::value& value : object.at("checks").as_array()) {
    const json::object& check = value.as_object();
    const std::string way = text_of(check, "way"), detail = text_of(check, "detail");
    checks.push_back({part, text_of(check, "name") + (way.empty() ? "" : ", " + way),
                      detail.empty() ? text_of(check, "failure") : detail, check.at("passed").as_bool()});
  }
}

}  // namespace

json::object report_json(ReportParts parts, const Repro& repro, bool timings) {
  json::object report = framed("lapidary.kv.report", repro);
  report["without_timings"] = !timings;
  report["trace"] = std::move(parts.trace);
  const auto add = [&](std::string_view name, std::optional<json::object>& part) {
    if (part) report[name] = *std::move(part);
  };
  add("bytes", parts.bytes);
  add("plan", parts.plan);
  add("recompute", parts.recompute);
  if (timings) add("roofline", parts.roofline);
  add("offload", parts.offload);
  if (!timings) {
    for (auto& [name, part] : report) remove_timings(part);
  }
  json::array checks;
  for (const ReportCheck& check : report_checks(report))
    checks.push_back(json::object{
        {"part", check.part}, {"name", check.name}, {"passed", check.passed}, {"detail", check.detail}});
  report["checks"] = std::move(checks);
  return report;
}

std::vector<ReportCheck> report_checks(const json::object& report) {
  std::vector<ReportCheck> checks;
  for (const char* name : {"trace", "bytes", "roofline", "offload"}) {
    if (const json::object* part = part_of(report, name)) add_checks(checks, name, *part);
  }
  if (const json::object* recompute = part_of(report, "recompute")) {
    for (const json::value& value : recompute->at("runs").as_array()) {
      const json::object& run = value.as_object();
      if (!run.at("promised_exact").as_bool()) continue;
      bool same = true;
      for (const json::value& again : run.at("recomputations").as_array())
        same = same && again.at("kv").at("equal") == again.at("kv").at("elements");
      checks.push_back(
          {"recompute", text_of(run, "name") + " has the same bits", text_of(run, "verdict"), same});
    }
    const bool passed = recompute->at("passed").as_bool();
    checks.push_back({"recompute", "all that was promised exact", "hidden states and logits too", passed});
  }
  if (const json::object* offload = part_of(report, "offload")) {
    const json::object& counts = offload->at("mutation_counts").as_object();
    const auto count = [&](const char* key) { return counts.at(key).to_number<int64_t>(); };
    checks.push_back({"offload", "damage is seen",
                      fmt::format("{} of {} mutations caught", count("caught"), count("tried")),
                      count("missed") == 0 && count("misnamed") == 0});
  }
  return checks;
}

std::string json_for_script(const json::value& value) {
  const std::string plain = json::serialize(value);
  std::string out;
  out.reserve(plain.size() + plain.size() / 16);
  for (size_t i = 0; i < plain.size(); ++i) {
    const char c = plain[i];
    // All of these stand inside strings only, where an escape is the same character.
    if (c == '<' || c == '>' || c == '&') {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else if (std::string_view(plain).substr(i, 2) == "\xe2\x80" && i + 2 < plain.size() &&
               (plain[i + 2] == '\xa8' || plain[i + 2] == '\xa9')) {  // U+2028, U+2029: ends of lines
      out += plain[i + 2] == '\xa8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      out += c;
    }
  }
  return out;
}

std::string report_html(const json::object& report) {
  // One walk over the page: what is filled in is never looked at again.
  std::string out;
  std::string_view rest = kPageHtml;
  while (true) {
    const size_t open = rest.find("{{");
    out += rest.substr(0, open);
    if (open == rest.npos) break;
    const size_t close = rest.find("}}", open);
    ensure(close != rest.npos, ErrorCode::internal, "page.html: a {{ without its }}");
    const std::string_view name = rest.substr(open + 2, close - open - 2);
    if (name == "title") {
      out += html_text(text_of(report.at("repro").as_object(), "model")) + ": KV cache";
    } else if (name == "css") {
      out += kPageStyle;
    } else if (name == "js") {
      out += kPageScript;
    } else if (name == "data") {
      out += json_for_script(report);
    } else {
      fail(ErrorCode::internal, "page.html: expected title, css, js or data, got {{{{{}}}}}", name);
    }
    rest.remove_prefix(close + 2);
  }
  return out;
}

std::string report_csv(const json::object& report) {
  std::string out =
      "call,kind,first_position,tokens_fed,cache_before,cache_after,kv_written_bytes,kv_read_bytes,"
      "weights_read_bytes,table_rows_read_bytes,kv_held_bytes,kv_page_bytes,picked_id,picked_logit,"
      "runner_up_id,gap,gap_ulps,seconds\n";
  for (const json::value& value : report.at("trace").at("calls").as_array()) {
    const json::object& call = value.as_object();
    out += fmt::format("{},{},{},{},", call.at("index").to_number<int64_t>(), text_of(call, "kind"),
                       call.at("first_position").to_number<int64_t>(), call.at("fed").as_array().size());
    for (const char* key : {"before", "after", "kv_written_bytes", "kv_read_bytes", "weights_read_bytes",
                            "table_rows_read_bytes", "kv_held_bytes", "kv_page_bytes"})
      out += fmt::format("{},", call.at(key).to_number<int64_t>());
    const json::object* picked = call.at("picked").if_object();
    const json::object* next = picked ? picked->at("runner_up").if_object() : nullptr;
    const auto number = [](const json::object* object, const char* key) {
      return object ? json::serialize(object->at(key)) : std::string();
    };
    out += fmt::format("{},{},{},{},{},", number(picked, "id"), number(picked, "logit"), number(next, "id"),
                       number(next ? picked : nullptr, "gap"), number(next ? picked : nullptr, "gap_ulps"));
    const json::value* seconds = call.if_contains("seconds");
    out += (seconds ? json::serialize(*seconds) : std::string()) + "\n";
  }
  return out;
}

}  // namespace lapidary::kvlab
