#include "cli/kv/prefix_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/kv/checks_text.h"
#include "cli/numbers.h"
#include "cli/table.h"
#include "kernels/kv_layout.h"

namespace lapidary {
namespace {

using kvlab::PrefixEviction;
using kvlab::PrefixPrompt;
using kvlab::PrefixReason;
using kvlab::PrefixReport;
using kvlab::PrefixTotals;

std::string source_text(const PrefixPrompt& p) {
  if (!p.source) return "-";
  return *p.source == kvlab::kStateOrigin ? "state" : std::to_string(*p.source);
}

// "hit", "miss: differs": a reason's name with blanks.
std::string outcome_text(const PrefixPrompt& p) {
  std::string name(kvlab::prefix_reason_name(p.reason));
  std::replace(name.begin(), name.end(), '_', ' ');
  return fmt::format("{}, {}", is_hit(p.reason) ? "hit" : "miss", name);
}

double percent(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string state_text(const PrefixReport& report, const Style& style) {
  if (!report.state) return {};
  const kvlab::PrefixStateReport& state = *report.state;
  if (state.loaded)
    return fmt::format("{}: loaded as the first sequence, {} tokens\n", terminal_safe(state.name),
                       grouped(state.tokens));
  return fmt::format("{}: {}: {}\n", terminal_safe(state.name), style.red("refused"),
                     terminal_safe(state.refusal));
}

std::string prompts_table(const PrefixReport& report, const Style& style) {
  std::vector<std::pair<std::string, Align>> columns{
      {"prompt", Align::right},         {"tokens", Align::right},       {"hit", Align::right},
      {"from", Align::right},           {"pages shared", Align::right}, {"copied", Align::right},
      {"not recomputed", Align::right}, {"computed", Align::right},     {"time", Align::right}};
  if (report.options.check) {
    columns.emplace_back("fresh", Align::right);
    columns.emplace_back("bits", Align::left);
  }
  columns.emplace_back("", Align::left);
  columns.emplace_back("why", Align::left);
  TextTable table(columns);
  for (const PrefixPrompt& p : report.prompts) {
    std::vector<std::string> cells{std::to_string(p.index),
                                   grouped(p.tokens),
                                   grouped(p.hit_tokens),
                                   source_text(p),
                                   grouped(p.pages_shared),
                                   grouped(p.pages_copied),
                                   grouped(p.bytes_not_recomputed) + " B",
                                   grouped(p.computed_tokens()),
                                   seconds_text(p.seconds)};
    if (report.options.check) {
      cells.push_back(seconds_text(p.fresh_seconds));
      cells.emplace_back(*p.logits_equal ? "equal" : "DIFFER");
    }
    cells.push_back(outcome_text(p));
    cells.push_back(prefix_why(report, p));
    table.add(std::move(cells));
  }
  return table.text(style);
}

std::string totals_text(const PrefixReport& report, const Style& style) {
  const PrefixTotals t = report.totals();
  std::string out = fmt::format(
      "{}: {} of {} prompt tokens were in a kept sequence and not computed.\n"
      "The last token of a prompt is always fed, for its logits: {:.1f} % is the most that could be.\n",
      style.bold(fmt::format("Hit rate in tokens {:.1f} %", 100 * t.hit_rate())), grouped(t.hit_tokens),
      grouped(t.tokens), percent(t.most_hit_tokens, t.tokens));
  out += fmt::format("{} tokens ({:.1f} %) had been computed before", grouped(t.reusable_tokens),
                     percent(t.reusable_tokens, t.tokens));
  if (t.reusable_tokens == t.hit_tokens) {
    out += "; none of them was lost.\n";
  } else {
    out += fmt::format("; lost of them: {} to eviction (--slots {}), {} to windows (--keep-behind {})",
                       grouped(t.lost_evicted), report.options.slots, grouped(t.lost_window),
                       report.options.keep_behind);
    out += report.state ? fmt::format(", {} to the refused state.\n", grouped(t.lost_mismatch)) : ".\n";
  }
  out += fmt::format(
      "Not recomputed: {} B of K and V ({} B a position).\n"
      "Pages of {} positions: {} shared as they lie, {} taken over in part and copied before they were "
      "written.\n",
      grouped(t.bytes_not_recomputed), grouped(report.bytes_per_position), kernels::kBlock,
      grouped(t.pages_shared), grouped(t.pages_copied));
  out += fmt::format("Time to the first logits of all prompts: {}", seconds_text(t.seconds));
  out += report.options.check ? fmt::format("; from nothing: {}.\n", seconds_text(t.fresh_seconds)) : ".\n";
  return out;
}

std::string reasons_table(const PrefixReport& report, const Style& style) {
  const PrefixTotals t = report.totals();
  TextTable table({{"outcome", Align::left}, {"prompts", Align::right}, {"meaning", Align::left}});
  const auto row = [&](PrefixReason reason, const char* meaning) {
    PrefixPrompt one;
    one.reason = reason;
    const int64_t n = t.by_reason.at(reason);
    if (n > 0) table.add({outcome_text(one), grouped(n), meaning});
  };
  row(PrefixReason::whole, "everything that can be reused was");
  row(PrefixReason::extended, "a kept sequence and new text behind it");
  row(PrefixReason::cold, "nothing so far began like it");
  row(PrefixReason::evicted, "a sequence that held more had to make room");
  row(PrefixReason::differs, "parts from what was kept, and nothing so far held more");
  row(PrefixReason::window_lost, "a sliding layer no longer holds what the next query sees");
  row(PrefixReason::header_mismatch, "the saved state belongs to another model or mode");
  return table.text(style);
}

std::string histogram(const PrefixReport& report, const char* what, int64_t PrefixEviction::*field) {
  std::vector<int64_t> values;
  for (const PrefixEviction& e : report.evictions) values.push_back(e.*field);
  std::string out = fmt::format("  {}\n", what);
  constexpr int64_t kWidth = 40;
  const std::vector<kvlab::HistogramBar> bars = kvlab::doubling_histogram(values);
  int64_t most = 1;
  for (const kvlab::HistogramBar& bar : bars) most = std::max(most, bar.count);
  for (const kvlab::HistogramBar& bar : bars) {
    const std::string range =
        bar.from == bar.to ? std::to_string(bar.from) : fmt::format("{}-{}", bar.from, bar.to);
    std::string line;
    for (int64_t i = 0; i < (bar.count * kWidth + most - 1) / most; ++i) line += "█";
    out += fmt::format("    {:>9}  {}{}{}\n", range, line, line.empty() ? "" : " ", bar.count);
  }
  return out;
}

std::string csv_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

std::string prefix_text(const PrefixReport& report, const std::string& model, const Style& style) {
  std::string out = fmt::format("{}  {} prompts, {} slot{}, KV in {}\n", style.bold(terminal_safe(model)),
                                report.prompts.size(), report.options.slots,
                                report.options.slots == 1 ? "" : "s", kv_types_name(report.kv_dtype));
  out += state_text(report, style);
  out += "\n" + prompts_table(report, style) + "\n" + totals_text(report, style) + "\n" +
         reasons_table(report, style);
  if (report.evictions.empty()) {
    out += "\nNo sequence was evicted.\n";
  } else {
    out += fmt::format("\nEvicted sequences: {}\n", report.evictions.size());
    out += histogram(report, "age in prompts, since they were computed", &PrefixEviction::age);
    out += histogram(report, "idle in prompts, since they were last used", &PrefixEviction::idle);
    out += histogram(report, "times they were reused", &PrefixEviction::reuses);
  }
  if (report.options.check) {
    out += "\nChecks:\n";
    out += checks_text(report.checks, style);
  } else {
    out += "\nNot checked against fresh runs (--no-check).\n";
  }
  return out;
}

std::string prefix_csv(const PrefixReport& report) {
  std::string out =
      "prompt,tokens,hit_tokens,computed_tokens,reusable_tokens,lost_tokens,outcome,reason,source,pages_"
      "shared,"
      "pages_copied,bytes_not_recomputed,seconds,fresh_seconds,logits_equal,logits_xxh3,why\n";
  for (const PrefixPrompt& p : report.prompts) {
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", p.index, p.tokens,
                       p.hit_tokens, p.computed_tokens(), p.reusable_tokens, p.lost_tokens(),
                       is_hit(p.reason) ? "hit" : "miss", kvlab::prefix_reason_name(p.reason),
                       p.source ? std::to_string(*p.source) : "", p.pages_shared, p.pages_copied,
                       p.bytes_not_recomputed, p.seconds,
                       p.logits_equal ? fmt::format("{}", p.fresh_seconds) : "",
                       p.logits_equal ? (*p.logits_equal ? "true" : "false") : "", hash_text(p.logits),
                       csv_quoted(prefix_why(report, p)));
  }
  return out;
}

}  // namespace lapidary
