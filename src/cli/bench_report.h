// What `lapidary bench` found, beside what the machine can do: as a table, as Markdown, as CSV, as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/bench.h"
#include "cli/bench_cost.h"
#include "cli/terminal.h"
#include "kernels/machine_probe.h"

namespace lapidary {

struct MachineMeasure {  // of one number of threads; bytes and operations a second
  int threads = 0;
  double read_huge = 0, read_small = 0;
  kernels::Peak peak;
};

struct BenchReport {
  std::string model, numeric_mode, isa, cpu;
  BenchPlan plan;
  int64_t chunk = 0;
  bool integer_products = false;  // products with weights are sums of integers
  int integer_terms = 1;          // of one activation
  std::vector<BenchRow> rows;
  std::vector<RowsCost> costs;             // of one repetition of each row
  std::vector<int64_t> step_weight_bytes;  // that a decode step of each row reads; 0 for prefill
  std::vector<MachineMeasure> machine;     // empty: not probed
  double load_seconds = 0;                 // of the first engine: opening, packing
  int64_t weight_bytes = 0, peak_rss_bytes = 0;
};

// Numbers of one row that the report derives.
struct BenchRates {
  double tokens = 0;              // a second
  std::optional<double> bytes;    // a second: weights and KV of a decode test
  double operations = 0;          // a second
  std::optional<double> of_read;  // `bytes` as a share of the read bandwidth
  std::optional<double> of_peak;  // the time that the peak would need, as a share of the time taken
};
BenchRates bench_rates(const BenchReport& report, size_t row);

std::string bench_table(const BenchReport& report, const Style& style);
std::string bench_markdown(const BenchReport& report);
std::string bench_csv(const BenchReport& report);
std::string bench_json(const BenchReport& report);

}  // namespace lapidary
