#include "cli/bench_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>

#include "cli/numbers.h"
#include "cli/table.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

namespace json = boost::json;

const MachineMeasure* measure_of(const BenchReport& report, int threads) {
  for (const MachineMeasure& measure : report.machine)
    if (measure.threads == threads) return &measure;
  return nullptr;
}

// Seconds that the arithmetic of one repetition would take at the machine's peak.
double seconds_at_peak(const BenchReport& report, size_t row, const kernels::Peak& peak) {
  const RowsCost& cost = report.costs[row];
  const double products = report.integer_products ? cost.matrix_ops * report.integer_terms / peak.integer_ops
                                                  : cost.matrix_ops / peak.float_ops;
  return products + cost.attention_ops / peak.float_ops;
}

std::string giga(double per_second) {
  return rate_text(per_second / 1e9);
}
std::string share(const std::optional<double>& value) {
  return value ? fmt::format("{:.0f} %", 100 * *value) : "";
}

const std::vector<std::pair<std::string, Align>> kColumns = {
    {"test", Align::left},    {"threads", Align::right}, {"tok/s", Align::right},
    {"spread", Align::right}, {"GB/s", Align::right},    {"of read", Align::right},
    {"Gop/s", Align::right},  {"of peak", Align::right}, {"logits", Align::left},
};

std::vector<std::string> cells(const BenchReport& report, size_t i) {
  const BenchRow& row = report.rows[i];
  const BenchRates rates = bench_rates(report, i);
  return {row.test.name(),
          std::to_string(row.threads),
          rate_text(rates.tokens),
          fmt::format("±{:.0f} %", 100 * row.spread()),
          rates.bytes ? giga(*rates.bytes) : "",
          share(rates.of_read),
          giga(rates.operations),
          share(rates.of_peak),
          hash_text(row.logits).substr(0, 8)};
}

const std::vector<std::pair<std::string, Align>> kMachineColumns = {
    {"machine", Align::left},       {"read, huge pages", Align::right}, {"read, 4 KiB pages", Align::right},
    {"float32 peak", Align::right}, {"int8 peak", Align::right},
};

std::vector<std::string> machine_cells(const MachineMeasure& m) {
  return {fmt::format("{} thread{}", m.threads, m.threads == 1 ? "" : "s"), giga(m.read_huge) + " GB/s",
          giga(m.read_small) + " GB/s", giga(m.peak.float_ops) + " Gop/s",
          giga(m.peak.integer_ops) + " Gop/s"};
}

std::string setting(const BenchReport& r) {
  return fmt::format("{}; chunk {}; seed {}; {} repetition{}", r.numeric_mode, r.chunk, r.plan.seed,
                     r.plan.repetitions, r.plan.repetitions == 1 ? "" : "s");
}
std::string memory(const BenchReport& r) {
  return fmt::format("{} of weights, loaded in {}; peak resident {}", bytes_text(r.weight_bytes),
                     seconds_text(r.load_seconds), bytes_text(r.peak_rss_bytes));
}

std::string markdown_line(const std::vector<std::string>& row) {
  return fmt::format("| {} |\n", fmt::join(row, " | "));
}

std::string markdown_table(const std::vector<std::pair<std::string, Align>>& columns,
                           const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::string> heads, rules;
  for (const auto& [head, align] : columns) {
    heads.push_back(head);
    rules.emplace_back(align == Align::left ? "---" : "--:");
  }
  std::string out = markdown_line(heads) + markdown_line(rules);
  for (const std::vector<std::string>& row : rows) out += markdown_line(row);
  return out;
}

std::vector<std::vector<std::string>> all_cells(const BenchReport& report) {
  std::vector<std::vector<std::string>> out;
  for (size_t i = 0; i < report.rows.size(); ++i) out.push_back(cells(report, i));
  return out;
}
std::vector<std::vector<std::string>> all_machine_cells(const BenchReport& report) {
  std::vector<std::vector<std::string>> out;
  for (const MachineMeasure& measure : report.machine) out.push_back(machine_cells(measure));
  return out;
}

std::string csv_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

json::value optional_json(const std::optional<double>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

json::object row_json(const BenchReport& report, size_t i) {
  const BenchRow& row = report.rows[i];
  const BenchRates rates = bench_rates(report, i);
  return {{"test", row.test.name()},
          {"kind", row.test.kind == BenchKind::prefill ? "prefill" : "decode"},
          {"tokens", row.test.tokens},
          {"depth", row.test.depth},
          {"batch", row.test.batch},
          {"threads", row.threads},
          {"seconds", json::value_from(row.seconds)},
          {"tokens_per_s", rates.tokens},
          {"spread", row.spread()},
          {"bytes_per_s", optional_json(rates.bytes)},
          {"share_of_read", optional_json(rates.of_read)},
          {"ops_per_s", rates.operations},
          {"share_of_peak", optional_json(rates.of_peak)},
          {"weight_bytes_per_step", report.step_weight_bytes[i]},
          {"kv_bytes", report.costs[i].kv_bytes},
          {"matrix_ops", report.costs[i].matrix_ops},
          {"attention_ops", report.costs[i].attention_ops},
          {"logits_xxh3", hash_text(row.logits)}};
}

}  // namespace

BenchRates bench_rates(const BenchReport& report, size_t row) {
  const BenchRow& r = report.rows[row];
  const RowsCost& cost = report.costs[row];
  const double seconds = r.median_seconds();
  BenchRates rates;
  rates.tokens = r.tokens_per_second();
  rates.operations = (cost.matrix_ops + cost.attention_ops) / seconds;
  if (r.test.kind == BenchKind::decode) {
    const double weights = static_cast<double>(report.step_weight_bytes[row] * r.test.tokens);
    rates.bytes = (weights + cost.kv_bytes) / seconds;
  }
  if (const MachineMeasure* machine = measure_of(report, r.threads)) {
    if (rates.bytes) rates.of_read = *rates.bytes / machine->read_huge;
    rates.of_peak = seconds_at_peak(report, row, machine->peak) / seconds;
  }
  return rates;
}

std::string bench_table(const BenchReport& report, const Style& style) {
  TextTable tests(kColumns), machine(kMachineColumns);
  for (auto& row : all_cells(report)) tests.add(std::move(row));
  for (auto& row : all_machine_cells(report)) machine.add(std::move(row));
  std::string out = style.bold(terminal_safe(report.model)) + "\n" + tests.text(style);
  if (!report.machine.empty()) out += machine.text(style);
  return out + style.dim("  " + setting(report) + "\n  " + memory(report)) + "\n";
}

std::string bench_markdown(const BenchReport& report) {
  std::string out = fmt::format("{}: {}; {}.\n\n{}", utf8_lossy(report.model), setting(report),
                                memory(report), markdown_table(kColumns, all_cells(report)));
  if (!report.machine.empty()) out += "\n" + markdown_table(kMachineColumns, all_machine_cells(report));
  return out;
}

std::string bench_csv(const BenchReport& report) {
  std::string out =
      "model,numeric_mode,chunk,seed,test,kind,tokens,depth,batch,threads,repetitions,median_s,tokens_per_s,"
      "spread,bytes_per_s,share_of_read,ops_per_s,share_of_peak,peak_rss_bytes,logits_xxh3\n";
  const auto optional = [](const std::optional<double>& value) {
    return value ? fmt::format("{}", *value) : std::string();
  };
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const BenchRow& row = report.rows[i];
    const BenchRates rates = bench_rates(report, i);
    out += fmt::format(
        "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", csv_quoted(utf8_lossy(report.model)),
        csv_quoted(report.numeric_mode), report.chunk, report.plan.seed, row.test.name(),
        row.test.kind == BenchKind::prefill ? "prefill" : "decode", row.test.tokens, row.test.depth,
        row.test.batch, row.threads, report.plan.repetitions, row.median_seconds(), rates.tokens,
        row.spread(), optional(rates.bytes), optional(rates.of_read), rates.operations,
        optional(rates.of_peak), report.peak_rss_bytes, hash_text(row.logits));
  }
  return out;
}

std::string bench_json(const BenchReport& report) {
  json::array rows, machine;
  for (size_t i = 0; i < report.rows.size(); ++i) rows.push_back(row_json(report, i));
  for (const MachineMeasure& m : report.machine)
    machine.push_back(json::object{{"threads", m.threads},
                                   {"read_bytes_per_s_huge_pages", m.read_huge},
                                   {"read_bytes_per_s_4k_pages", m.read_small},
                                   {"float_ops_per_s", m.peak.float_ops},
                                   {"int8_ops_per_s", m.peak.integer_ops}});
  const json::object out{{"model", utf8_lossy(report.model)},
                         {"numeric_mode", report.numeric_mode},
                         {"isa", report.isa},
                         {"cpu", report.cpu},
                         {"chunk", report.chunk},
                         {"seed", report.plan.seed},
                         {"repetitions", report.plan.repetitions},
                         {"load_s", report.load_seconds},
                         {"weight_bytes", report.weight_bytes},
                         {"peak_rss_bytes", report.peak_rss_bytes},
                         {"results", std::move(rows)},
                         {"machine", std::move(machine)}};
  return json::serialize(out) + "\n";
}

}  // namespace lapidary
