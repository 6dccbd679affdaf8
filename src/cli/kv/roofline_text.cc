#include "cli/kv/roofline_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/kv/checks_text.h"
#include "cli/numbers.h"
#include "cli/table.h"

namespace lapidary {
namespace {

using kvlab::AblationRun;
using kvlab::LengthResult;
using kvlab::RooflineReport;
using kvlab::RooflineRun;

std::string ms(double seconds) {
  return fmt::format("{:.3f}", seconds * 1e3);
}
std::string giga(double per_second) {
  return fmt::format("{:.1f}", per_second / 1e9);
}
std::string percent(double share) {
  return fmt::format("{:.0f} %", 100 * share);
}
std::string whole_bytes(double bytes) {
  return bytes_text(std::llround(bytes));
}
std::string binary_size(int64_t bytes) {
  if (bytes >= int64_t{1} << 30 && bytes % (int64_t{1} << 30) == 0) return fmt::format("{} GiB", bytes >> 30);
  if (bytes >= int64_t{1} << 20) return fmt::format("{} MiB", bytes >> 20);
  return fmt::format("{} KiB", bytes >> 10);
}
std::string threads_text(int threads) {
  return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
}
std::string times(const std::optional<double>& value) {
  return value ? fmt::format("{:.2f}", *value) : "none";
}

// `cells` characters for the whole of `most`.
std::string bar(double value, double most, char mark, double cells) {
  const double share = most > 0 ? std::clamp(value / most, 0.0, 1.0) : 0;
  return std::string(static_cast<size_t>(std::llround(share * cells)), mark);
}

// Sentences in lines that a terminal of usual width holds.
std::string wrapped(const std::string& text) {
  constexpr size_t kWidth = 108;
  std::string out, line;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!line.empty() && line.size() + 1 + word.size() > kWidth) {
      out += "  " + line + "\n  ";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  return out + "  " + line + "\n";
}

std::string memory_text(const RooflineReport& report, const Style& style) {
  const kvlab::Bandwidth& b = report.bandwidth;
  TextTable table({{"reading memory, GB/s", Align::left},
                   {"huge pages, best", Align::right},
                   {"median", Align::right},
                   {"4 KiB pages, best", Align::right},
                   {"median", Align::right}});
  for (const kvlab::ReadMeasure& m : b.measures)
    table.add({threads_text(m.threads), giga(m.huge.best_per_second), giga(m.huge.median_per_second),
               giga(m.small.best_per_second), giga(m.small.median_per_second)});
  std::string out = table.text(style);
  std::string about = fmt::format("{} read 7 times; caches:", binary_size(b.probe_bytes));
  for (const kvlab::CacheLevel& cache : b.caches)
    about += fmt::format(" L{} {} x {},", cache.level, cache.instances, binary_size(cache.bytes));
  if (b.caches.empty()) about += " unknown,";
  about.back() = '.';
  if (!b.note.empty()) about += " Note: " + b.note + ".";
  return out + style.dim("  " + about) + "\n";
}

// Where a size stops fitting a level of cache.
std::string level_of(const kvlab::Bandwidth& b, int64_t bytes, int threads) {
  for (const kvlab::CacheLevel& cache : b.caches)
    if (bytes <= cache.bytes * std::min<int64_t>(cache.instances, threads))
      return fmt::format("L{}", cache.level);
  return b.caches.empty() ? "" : "memory";
}

std::string sweep_text(const RooflineReport& report, const kvlab::ReadMeasure& m, const Style& style) {
  double most = 0;
  for (const kvlab::ReadPoint& p : m.sweep) most = std::max(most, p.best_per_second);
  TextTable table({{"reading again and again", Align::right},
                   {"GB/s", Align::right},
                   {"fits", Align::left},
                   {threads_text(m.threads), Align::left}});
  for (const kvlab::ReadPoint& p : m.sweep)
    table.add({binary_size(p.bytes), giga(p.best_per_second), level_of(report.bandwidth, p.bytes, m.threads),
               bar(p.best_per_second, most, '#', 40)});
  return table.text(style);
}

std::string lengths_text(const RooflineRun& run, const Style& style) {
  TextTable table({{"length", Align::right},
                   {"KV read", Align::right},
                   {"ms/step", Align::right},
                   {"p10", Align::right},
                   {"p90", Align::right},
                   {"tok/s", Align::right},
                   {"predicted", Align::right},
                   {"ratio", Align::right},
                   {"if from memory", Align::right},
                   {"fit", Align::right},
                   {"residual", Align::right}});
  for (const LengthResult& r : run.lengths)
    table.add({grouped(r.length), whole_bytes(r.kv_bytes()), ms(r.seconds.median), ms(r.seconds.p10),
               ms(r.seconds.p90), rate_text(1 / r.seconds.median), ms(r.from_working_set.total()),
               percent(r.explained()), ms(r.from_memory.total()), run.fit ? ms(r.fitted_seconds) : "",
               run.fit ? fmt::format("{:+.3f}", 1e3 * (r.seconds.median - r.fitted_seconds)) : ""});
  return table.text(style);
}

// What of each step the bytes predict, and what is left.
std::string bars_text(const RooflineRun& run, const Style& style) {
  constexpr double kCells = 64;
  double most = 0;
  for (const LengthResult& r : run.lengths)
    most = std::max({most, r.seconds.median, r.from_working_set.total()});
  TextTable table({{"", Align::right}, {"", Align::left}});
  for (const LengthResult& r : run.lengths) {
    std::string line = bar(r.from_working_set.weights, most, 'w', kCells) +
                       bar(r.from_working_set.head, most, 'h', kCells) +
                       bar(r.from_working_set.kv, most, 'k', kCells);
    const auto measured = static_cast<size_t>(std::llround(kCells * r.seconds.median / most));
    if (line.size() < measured) line += std::string(measured - line.size(), '.');
    table.add({grouped(r.length), "|" + line});
  }
  return table.text(style) +
         style.dim("  predicted from bytes: w weights, h head, k cache; . what is measured beyond") + "\n";
}

std::string parts_text(const LengthResult& r, const Style& style) {
  TextTable table({{fmt::format("a step at {}", grouped(r.length)), Align::left},
                   {"bytes", Align::right},
                   {"predicted ms", Align::right},
                   {"measured ms", Align::right},
                   {"ratio", Align::right},
                   {"", Align::left}});
  const kvlab::Predicted& p = r.from_working_set;
  const double head = r.per_step(r.head_bytes_total);
  table.add({"cache (attention)", whole_bytes(r.kv_bytes()), ms(p.kv), ms(r.attention_seconds),
             percent(p.kv / r.attention_seconds),
             fmt::format("arithmetic at the CPU's peak: {} ms", ms(r.attention_ops_seconds))});
  table.add(
      {"head", whole_bytes(head), ms(p.head), ms(r.head_seconds), percent(p.head / r.head_seconds), ""});
  table.add({"other weights, and the rest", whole_bytes(r.weight_bytes() - head), ms(p.weights),
             ms(r.rest_seconds()), percent(p.weights / r.rest_seconds()), ""});
  table.add(
      {"all", whole_bytes(r.working_set()), ms(p.total()), ms(r.seconds.median), percent(r.explained()), ""});
  table.add({"overhead", "", "", ms(r.overhead_seconds()), "", ""});
  return table.text(style);
}

std::string fit_text(const RooflineRun& run, const Style& style) {
  if (!run.fit) return "";
  const kvlab::RooflineFit& fit = *run.fit;
  std::string out =
      style.bold(
          fmt::format("  passes over the cache: {}", times(fit.passes())) +
          (fit.passes() && run.lengths.size() > 2 ? fmt::format(" ± {:.2f}", fit.passes_error()) : "")) +
      fmt::format(" (at {} GB/s; {} at memory's {} GB/s)\n", giga(fit.bandwidth),
                  times(fit.passes_from_memory()), giga(fit.memory_bandwidth));
  out += fmt::format("  fit: t = {} ms + KV bytes / {}, R² = {:.4f}\n", ms(fit.line.intercept),
                     fit.effective_bandwidth() ? giga(*fit.effective_bandwidth()) + " GB/s" : "nothing",
                     fit.line.r2);
  out += fmt::format("  of the fixed {} ms, weights {} ms by their bytes, overhead {} ms\n",
                     ms(fit.line.intercept), ms(fit.weights_seconds), ms(fit.overhead_seconds()));
  out += fmt::format("  by the quickest tenth of the steps (p10): {} passes, R² = {:.4f}\n",
                     times(run.quiet_fit->passes()), run.quiet_fit->line.r2);
  return out;
}

std::string drift_text(const RooflineRun& run, const Style& style) {
  if (!run.drift) return "";
  const kvlab::Drift& drift = *run.drift;
  const std::string steps = fmt::format("{} again took {} ms, {:+.1f} %", grouped(drift.length),
                                        ms(drift.again_seconds), 100 * drift.change()),
                    memory = fmt::format("memory again {} GB/s, {:+.1f} %", giga(drift.memory_again),
                                         100 * drift.memory_change());
  return fmt::format("  drift: {}; {}\n", drift.warning() ? style.red(steps) : steps,
                     drift.memory_warning() ? style.red(memory) : memory);
}

std::string ablations_text(const RooflineRun& run, const Style& style) {
  if (run.ablations.empty()) return "";
  TextTable table({{"passes, on purpose", Align::left},
                   {"expected", Align::right},
                   {"counted", Align::right},
                   {"on the bus", Align::right},
                   {"measured", Align::right},
                   {"added", Align::right},
                   {"slope ratio", Align::right},
                   {"ms/step", Align::right},
                   {"logits", Align::left}});
  table.add({"plain", "1", fmt::format("{:.2f}", static_cast<double>(run.lengths.back().reads)), "1",
             times(run.fit ? run.fit->passes() : std::nullopt), "", run.fit ? "1.00" : "none",
             ms(run.lengths.back().seconds.median), ""});
  for (const AblationRun& a : run.ablations)
    table.add({a.name, fmt::format("{:.4g}", a.expected_passes), fmt::format("{:.2f}", a.counted_passes),
               fmt::format("{:.4g}", a.with_allocate), times(a.measured_passes), times(a.added_passes),
               times(a.slope_ratio), ms(a.lengths.back().seconds.median),
               a.logits_equal ? "the same bits" : style.red("DIFFERENT")});
  return "\n" + table.text(style) +
         style.dim(fmt::format(
             "  counted: bytes read and written to bytes that the plain run reads, whole pages; on the "
             "bus: expected,\n  where a line is read before it is written; measured: by the slope; "
             "added: to the plain run's. The slope\n  ratio is the expected one only where reading "
             "bounds the plain run too. ms at {}",
             grouped(run.lengths.back().length))) +
         "\n";
}

std::string run_text(const RooflineReport& report, const RooflineRun& run, const Style& style) {
  std::string out = "\n" + style.bold(threads_text(run.threads)) + "\n";
  for (const kvlab::ReadMeasure& m : report.bandwidth.measures)
    if (m.threads == run.threads) out += sweep_text(report, m, style) + "\n";
  out += lengths_text(run, style) + "\n" + bars_text(run, style) + "\n" +
         parts_text(run.lengths.back(), style) + "\n" + fit_text(run, style) + drift_text(run, style) +
         ablations_text(run, style) + "\n";
  for (const std::string& sentence : run.verdict.sentences) out += wrapped("- " + sentence);
  return out;
}

}  // namespace

std::string roofline_text(const RooflineReport& report, const kvlab::Repro& repro, const Style& style) {
  std::string out = style.bold(terminal_safe(repro.model)) + "  " + style.dim(repro.numeric_mode) + "\n";
  const LengthResult& longest = report.runs.front().lengths.back();
  out += fmt::format(
      "  a decode step reads {} of weights, {} of them the head's, and of the cache\n  {} B for each "
      "position",
      whole_bytes(longest.weight_bytes()), whole_bytes(longest.per_step(longest.head_bytes_total)),
      grouped(report.read_global));
  if (report.read_sliding > 0)
    out += fmt::format(", and {} B for each one within the windows", grouped(report.read_sliding));
  out +=
      fmt::format("; {} timed steps a length in {} round{}, {} before each to warm up\n", report.plan.steps,
                  report.plan.rounds, report.plan.rounds == 1 ? "" : "s", report.plan.warm_up);
  for (const kvlab::LeftOut& l : report.left_out)
    out += fmt::format("  left out: {}: {}\n", grouped(l.length), l.why);
  out += "\n" + memory_text(report, style);
  for (const RooflineRun& run : report.runs) out += run_text(report, run, style);
  return out + "\n" + checks_text(report.checks, style);
}

std::string roofline_csv(const RooflineReport& report) {
  std::string out =
      "threads,run,length,steps,median_s,p10_s,p90_s,kv_bytes_per_step,weight_bytes_per_step,"
      "copied_read_bytes_per_step,copied_written_bytes_per_step,predicted_s,predicted_from_memory_s,"
      "predicted_weights_s,predicted_head_s,predicted_kv_s,attention_s,head_s,overhead_s,fitted_s,residual_s,"
      "logits_xxh3\n";
  for (const RooflineRun& run : report.runs) {
    for (const LengthResult& r : run.lengths)
      out += fmt::format(
          "{},plain,{},{},{},{},{},{},{},0,0,{},{},{},{},{},{},{},{},{},{},{}\n", run.threads, r.length,
          r.steps, r.seconds.median, r.seconds.p10, r.seconds.p90, r.kv_bytes(), r.weight_bytes(),
          r.from_working_set.total(), r.from_memory.total(), r.from_working_set.weights,
          r.from_working_set.head, r.from_working_set.kv, r.attention_seconds, r.head_seconds,
          r.overhead_seconds(), run.fit ? fmt::format("{}", r.fitted_seconds) : "",
          run.fit ? fmt::format("{}", r.seconds.median - r.fitted_seconds) : "", hash_text(r.logits));
    for (const AblationRun& a : run.ablations)
      for (const kvlab::AblationLength& l : a.lengths) {
        const auto per_step = [&](int64_t total) {
          return static_cast<double>(total) / static_cast<double>(l.steps);
        };
        out += fmt::format("{},{},{},{},{},{},{},{},,{},{},,,,,,,,,,,{}\n", run.threads, a.name, l.length,
                           l.steps, l.seconds.median, l.seconds.p10, l.seconds.p90,
                           per_step(l.engine_kv_bytes_total), per_step(l.copied_read_total),
                           per_step(l.copied_written_total), hash_text(l.logits));
      }
  }
  return out;
}

}  // namespace lapidary
