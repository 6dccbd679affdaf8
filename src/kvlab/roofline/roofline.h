// What reading the cache costs: decode steps over context lengths, held against the bytes that the engine's
// counters saw and the bandwidth that this machine has.
//   t(length) = fixed + weights / BW + passes * kv(length) / BW
// Bytes are counted, seconds measured, and what bytes do not explain is called overhead.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "kvlab/check.h"
#include "kvlab/report_frame.h"
#include "kvlab/roofline/bandwidth.h"
#include "kvlab/roofline/fit.h"
#include "spec/model_spec.h"
#include "spec/tensor_io.h"

namespace lapidary::kvlab {

struct RooflinePlan {
  std::vector<int64_t> lengths;  // ascending, all different; positions in the cache after the last timed step
  // Timed steps, in rounds: the lengths take turns, so that what slows the machine for a while slows them
  // all. Each round goes through the same positions, after steps to warm up. `rounds` divides `steps`.
  int64_t steps = 50, rounds = 1, warm_up = 5;
  int64_t part_steps = 10;  // steps of which the parts are timed, at most those of a round
  uint64_t seed = 1;        // of the random tokens
  int64_t steps_of_round() const { return steps / rounds; }
  std::vector<int> threads;
  bool expand_gqa = false, concat_append = false;
  int64_t probe_megabytes = 0;  // 0: four times the last cache
};

struct StepSeconds {
  double median = 0, p10 = 0, p90 = 0;
};

// Seconds that reading takes at some bandwidth. `weights` without the head's.
struct Predicted {
  double bandwidth = 0;  // bytes a second
  double weights = 0, head = 0, kv = 0;
  double total() const { return weights + head + kv; }
};

struct LengthResult {
  int64_t length = 0, steps = 0, rounds = 1;
  StepSeconds seconds;
  // Counted over all timed steps.
  int64_t kv_bytes_total = 0, weight_bytes_total = 0, head_bytes_total = 0;
  std::vector<int64_t> layer_kv_bytes;             // [L], by the layer that reads
  Hash128 logits;                                  // of all steps of a round
  double attention_seconds = 0, head_seconds = 0;  // medians of a step, by watching it
  // Filled in by analyse().
  Predicted from_working_set, from_memory;
  double attention_ops = 0;          // of a step: queries times keys, probabilities times values
  double attention_ops_seconds = 0;  // at the peak of this CPU
  int64_t reads = 1;                 // of each byte of the cache, by the counters
  bool in_last_level = false;        // weights and KV of a step fit the last cache
  double fitted_seconds = 0;
  double per_step(int64_t total) const { return static_cast<double>(total) / static_cast<double>(steps); }
  double kv_bytes() const { return per_step(kv_bytes_total); }
  double weight_bytes() const { return per_step(weight_bytes_total); }
  double working_set() const { return kv_bytes() + weight_bytes(); }
  double rest_seconds() const { return seconds.median - attention_seconds - head_seconds; }
  double overhead_seconds() const { return seconds.median - from_working_set.total(); }
  double explained() const { return from_working_set.total() / seconds.median; }  // predicted / measured
};

struct RooflineFit {
  Line line;             // seconds over KV bytes of a step
  double bandwidth = 0;  // at the working set of the longest length
  double memory_bandwidth = 0;
  double weights_seconds = 0;  // of the intercept, at `bandwidth`; head included
  double overhead_seconds() const { return line.intercept - weights_seconds; }
  // How often the cache seems to be read; nothing where the time does not grow with it.
  std::optional<double> passes() const;
  std::optional<double> passes_from_memory() const;
  double passes_error() const { return line.slope_error * bandwidth; }  // standard error; 0 with two lengths
  bool has_slope() const { return line.slope > 2 * line.slope_error; }
  std::optional<double> effective_bandwidth() const;
};

struct Drift {
  int64_t length = 0;
  double first_seconds = 0, again_seconds = 0;
  double memory_first = 0, memory_again = 0;  // bytes a second, before and after all steps
  double change() const { return again_seconds / first_seconds - 1; }
  bool warning() const { return change() > 0.05 || change() < -0.05; }
  double memory_change() const { return memory_again / memory_first - 1; }
  bool memory_warning() const { return memory_change() > 0.1 || memory_change() < -0.1; }
};

struct Verdict {
  std::optional<int64_t> crossover;           // tokens: the cache that a step reads outweighs its weights
  std::optional<int64_t> crossover_bf16;      // the same, had the weights two bytes each
  std::optional<int64_t> measured_crossover;  // reading the cache takes as long as all the rest, by the fit
  std::optional<int64_t> bound_from;          // length from which on bytes explain 80 % of the time
  std::vector<std::string> sentences;
};

struct AblationLength {
  int64_t length = 0, steps = 0;
  StepSeconds seconds;
  int64_t engine_kv_bytes_total = 0, copied_read_total = 0, copied_written_total = 0;
  Hash128 logits;
};

struct AblationRun {
  std::string name;
  double expected_passes = 0;  // by the model's shape alone
  double with_allocate = 0;    // the same, had every line to be read before it is written
  double counted_passes = 0;   // bytes moved to bytes of the plain run, at the longest length
  bool logits_equal = true;    // to the plain run's, every step
  std::vector<AblationLength> lengths;
  std::optional<Line> line;  // over the plain run's KV bytes
  std::optional<double> slope_ratio, measured_passes;
  // What copying adds to the plain run's passes; expected is expected_passes - 1.
  std::optional<double> added_passes;
};

struct RooflineRun {
  int threads = 0;
  std::vector<LengthResult> lengths;
  std::optional<RooflineFit> fit;        // of the medians; two lengths at least
  std::optional<RooflineFit> quiet_fit;  // of the 10th percentiles, which other load disturbs less
  std::optional<Drift> drift;
  std::vector<AblationRun> ablations;
  Verdict verdict;
};

struct LeftOut {
  int64_t length = 0;
  std::string why;
};

struct RooflineReport {
  RooflinePlan plan;
  std::vector<LeftOut> left_out;
  KvTypes kv_types;
  std::string numeric_mode;
  int64_t n_layers = 0, max_position = 0;
  int64_t bf16_weight_bytes = 0;              // of all that a step reads
  int64_t read_global = 0, read_sliding = 0;  // bytes of a step for each visible position
  Bandwidth bandwidth;
  std::vector<RooflineRun> runs;
  std::vector<Check> checks;
  bool passed() const;
};

// The lengths that a plan with so many steps in a round, warm-up included, can run on a model: the others go
// to `left_out` with the reason.
std::vector<int64_t> possible_lengths(const std::vector<int64_t>& lengths, int64_t steps,
                                      int64_t max_position, std::vector<LeftOut>& left_out);

// Measures all. `options`: threads, sequences and context are the lab's. `on_work` hears what is being done.
// Error(usage) where a length does not fit, or where --expand-gqa finds nothing to expand; Error(limit) where
// copies need more memory than there is.
using OnRooflineWork = FunctionRef<void(std::string_view what, int64_t done, int64_t total)>;
RooflineReport measure_roofline(const ModelSpec& spec, const TensorSource& source,
                                const EngineOptions& options, const RooflinePlan& plan,
                                OnRooflineWork on_work);

// Predictions, fit and verdict of what was measured. Part of measure_roofline().
void analyse(const ModelSpec& spec, RooflineReport& report);

// KV bytes that the step reads whose query sees `positions` positions, itself included; [L] by layer.
std::vector<int64_t> kv_bytes_read(const ModelSpec& spec, const KvTypes& types, int64_t positions);
// The least number of positions whose step reads so many KV bytes; nothing where windows keep it below.
std::optional<int64_t> positions_reading(const ModelSpec& spec, const KvTypes& types, double bytes);

boost::json::object roofline_json(const RooflineReport& report, const Repro& repro);

}  // namespace lapidary::kvlab
