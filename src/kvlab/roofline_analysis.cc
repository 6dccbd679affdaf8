// From bytes and seconds to predictions, a fit and a verdict in words.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "kvlab/ablations.h"
#include "kvlab/roofline.h"

namespace lapidary::kvlab {
namespace {

constexpr double kExplained = 0.8;  // of the time: from here on a step counts as bound by bandwidth

const ReadMeasure& measure_of(const Bandwidth& bandwidth, int threads) {
  const auto found = std::find_if(bandwidth.measures.begin(), bandwidth.measures.end(),
                                  [&](const ReadMeasure& m) { return m.threads == threads; });
  ensure(found != bandwidth.measures.end(), ErrorCode::internal, "no bandwidth was measured for {} threads",
         threads);
  return *found;
}

Predicted predict(const LengthResult& r, double bandwidth) {
  const double head = r.per_step(r.head_bytes_total);
  return {bandwidth, (r.weight_bytes() - head) / bandwidth, head / bandwidth, r.kv_bytes() / bandwidth};
}

// Multiply-adds are two operations. Steps of one token, over all timed ones the mean.
double attention_ops(const ModelSpec& spec, const LengthResult& r) {
  double ops = 0;
  const int64_t steps = r.steps / r.rounds;  // each round goes through the same positions
  for (int64_t positions = r.length - steps + 1; positions <= r.length; ++positions)
    for (const LayerSpec& layer : spec.layers) {
      if (!layer.attention) continue;
      const AttentionSpec& a = *layer.attention;
      const int64_t seen = a.window > 0 ? std::min(positions, a.window) : positions;
      ops += 4 * static_cast<double>(seen * a.n_heads * a.head_dim);
    }
  return ops / static_cast<double>(steps);
}

RooflineFit fit_of(const RooflineRun& run, const std::vector<double>& x, const std::vector<double>& seconds,
                   double memory_bandwidth) {
  RooflineFit fit{.line = fit_line(x, seconds)};
  fit.bandwidth = run.lengths.back().from_working_set.bandwidth;
  fit.memory_bandwidth = memory_bandwidth;
  fit.weights_seconds = run.lengths.back().weight_bytes() / fit.bandwidth;
  return fit;
}

// "11,677"
std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}
std::string megabytes(double bytes) {
  return fmt::format("{:.1f} MB", bytes / 1e6);
}
std::string rate(double bytes_per_second) {
  return fmt::format("{:.1f} GB/s", bytes_per_second / 1e9);
}

class Words {
 public:
  Words(const ModelSpec& spec, const RooflineReport& report, const RooflineRun& run)
      : spec_(spec), report_(report), run_(run) {}

  Verdict verdict() {
    const double weights = run_.lengths.back().weight_bytes();
    out_.crossover = positions_reading(spec_, report_.kv_types, weights);
    out_.crossover_bf16 =
        positions_reading(spec_, report_.kv_types, static_cast<double>(report_.bf16_weight_bytes));
    if (run_.fit && run_.fit->has_slope() && run_.fit->line.intercept > 0)
      out_.measured_crossover =
          positions_reading(spec_, report_.kv_types, run_.fit->line.intercept / run_.fit->line.slope);
    for (auto r = run_.lengths.rbegin(); r != run_.lengths.rend() && r->explained() >= kExplained; ++r)
      out_.bound_from = r->length;
    say_bound();
    say_slope();
    say_crossover(weights);
    say_cache();
    say_drift();
    return std::move(out_);
  }

 private:
  const LengthResult& longest() const { return run_.lengths.back(); }

  void say(std::string sentence) { out_.sentences.push_back(std::move(sentence)); }

  void say_bound() {
    if (out_.bound_from) {
      const auto first = std::find_if(run_.lengths.begin(), run_.lengths.end(),
                                      [&](const LengthResult& r) { return r.length == *out_.bound_from; });
      std::string text = fmt::format(
          "Bandwidth-bound from about {} tokens: reading weights and cache explains {:.0f} % of "
          "the time there, and {:.0f} % at {}.",
          grouped(first->length), 100 * first->explained(), 100 * longest().explained(),
          grouped(longest().length));
      if (longest().explained() > 1)
        text += " More than all of it: the steps read faster than the probe did.";
      say(text);
      return;
    }
    const auto best = std::max_element(
        run_.lengths.begin(), run_.lengths.end(),
        [](const LengthResult& a, const LengthResult& b) { return a.explained() < b.explained(); });
    say(fmt::format(
        "Not bandwidth-bound within this range, because reading weights and cache explains no more than "
        "{:.0f} % of the time ({}); {:.2f} of {:.2f} ms at {} are arithmetic and the fixed cost of a "
        "step.",
        100 * best->explained(), grouped(best->length), 1e3 * longest().overhead_seconds(),
        1e3 * longest().seconds.median, grouped(longest().length)));
  }

  void say_slope() {
    if (!run_.fit) {
      say("One length alone says nothing of the slope: no fit.");
      return;
    }
    const auto passes = run_.fit->passes();
    if (!passes) {
      say("The time does not grow with the cache in this range: no slope to speak of.");
      return;
    }
    if (!run_.fit->has_slope()) {
      say(fmt::format(
          "The slope is within its error ({:.2f} ± {:.2f} passes): longer lengths, more steps or a machine "
          "at rest would say more.",
          *passes, run_.fit->passes_error()));
      return;
    }
    std::string text =
        fmt::format("Passes over the cache: {:.2f}: it is read at {}, where this machine can read {}.",
                    *passes, rate(*run_.fit->effective_bandwidth()), rate(run_.fit->bandwidth));
    if (*passes > 1.25) {
      const LengthResult& r = longest();
      text += fmt::format(
          " The counters saw every byte of it read {}, so what is above that is no copying: attention's "
          "arithmetic "
          "alone takes {:.2f} ms at {} at this CPU's peak, reading {:.2f} ms; the rest is arithmetic below "
          "the peak, "
          "or other load.",
          r.reads == 1 ? "once" : fmt::format("{} times", r.reads), 1e3 * r.attention_ops_seconds,
          grouped(r.length), 1e3 * r.from_working_set.kv);
    }
    say(text);
  }

  std::string where(int64_t positions) const {
    if (positions > report_.max_position)
      return fmt::format("on paper: the model was made for {}", grouped(report_.max_position));
    if (positions > longest().length) return "past the longest length measured";
    return "within what was measured";
  }

  void say_crossover(double weights) {
    if (!out_.crossover) {
      say(fmt::format(
          "The cache never outweighs the weights ({} a step): windows keep what is read below it.",
          megabytes(weights)));
    } else {
      say(fmt::format("The cache that a step reads outweighs its weights ({}) from {} tokens on ({}).",
                      megabytes(weights), grouped(*out_.crossover), where(*out_.crossover)));
    }
    if (out_.crossover_bf16)
      say(fmt::format("With weights of bf16 ({}) that would be {} tokens ({}).",
                      megabytes(static_cast<double>(report_.bf16_weight_bytes)),
                      grouped(*out_.crossover_bf16), where(*out_.crossover_bf16)));
    if (out_.measured_crossover)
      say(fmt::format("By the fit, reading the cache takes as long as all the rest from {} tokens on ({}).",
                      grouped(*out_.measured_crossover), where(*out_.measured_crossover)));
  }

  void say_cache() {
    if (report_.bandwidth.last_level == 0) return;
    const auto fits = std::count_if(run_.lengths.begin(), run_.lengths.end(),
                                    [](const LengthResult& r) { return r.in_last_level; });
    if (fits == 0) return;
    const bool all = fits == static_cast<int64_t>(run_.lengths.size());
    const LengthResult& first = run_.lengths.front();
    const std::string which =
        all ? "At every length" : fmt::format("At {} of {} lengths", fits, run_.lengths.size());
    say(fmt::format(
        "{} the weights and cache of a step ({} at {}) fit the last-level cache ({}): the prediction takes "
        "the bandwidth measured at that size, {} there, and memory's, {}, is the other bound.",
        which, megabytes(first.working_set()), grouped(first.length),
        megabytes(static_cast<double>(report_.bandwidth.last_level)), rate(first.from_working_set.bandwidth),
        rate(first.from_memory.bandwidth)));
    const int64_t ours = measure_of(report_.bandwidth, run_.threads).cached_up_to();
    if (report_.bandwidth.probe_bytes >= 2 * report_.bandwidth.last_level &&
        ours < report_.bandwidth.last_level / 2)
      say(fmt::format(
          "Of that cache we seem to have {} at most: more is read at about memory's speed, so others use "
          "it too, or it is no faster.",
          megabytes(static_cast<double>(ours))));
  }

  void say_drift() {
    if (!run_.drift) return;
    const Drift& drift = *run_.drift;
    if (drift.memory_warning())
      say(
          fmt::format("Memory was read at {} before all steps and at {} after them: predictions take the "
                      "better rate, and are "
                      "as uncertain.",
                      rate(drift.memory_first), rate(drift.memory_again)));
    if (drift.warning())
      say(fmt::format(
          "The machine was not at rest: {} took {:+.0f} % when measured again. The seconds here, and what "
          "is said of them, are to be measured again; the bytes stand.",
          grouped(drift.length), 100 * drift.change()));
  }

  const ModelSpec& spec_;
  const RooflineReport& report_;
  const RooflineRun& run_;
  Verdict out_;
};

void analyse_ablation(const ModelSpec& spec, const RooflineReport& report, const RooflineRun& run,
                      AblationRun& ablation) {
  const int64_t longest = run.lengths.back().length;
  const bool expand = ablation.name == "expand-gqa";
  ablation.expected_passes =
      (expand ? expected_passes_expand : expected_passes_concat)(spec, report.kv_types, longest);
  ablation.with_allocate =
      ablation.expected_passes +
      (expand ? written_passes_expand : written_passes_concat)(spec, report.kv_types, longest);
  const AblationLength& last = ablation.lengths.back();
  const int64_t plain = run.lengths.back().kv_bytes_total;
  ablation.counted_passes = plain > 0
                                ? static_cast<double>(last.engine_kv_bytes_total + last.copied_read_total +
                                                      last.copied_written_total) /
                                      static_cast<double>(plain)
                                : 1;
  if (!run.fit) return;
  std::vector<double> x, y;
  for (size_t i = 0; i < run.lengths.size(); ++i) {
    x.push_back(run.lengths[i].kv_bytes());
    y.push_back(ablation.lengths[i].seconds.median);
  }
  ablation.line = fit_line(x, y);
  if (run.fit->line.slope > 0) ablation.slope_ratio = ablation.line->slope / run.fit->line.slope;
  if (ablation.line->slope > 0) ablation.measured_passes = ablation.line->slope * run.fit->bandwidth;
  if (run.fit->line.slope > 0 && ablation.line->slope > 0)
    ablation.added_passes = (ablation.line->slope - run.fit->line.slope) * run.fit->bandwidth;
}

void analyse_run(const ModelSpec& spec, const RooflineReport& report, RooflineRun& run) {
  const ReadMeasure& measure = measure_of(report.bandwidth, run.threads);
  std::vector<double> x, y, quiet;
  for (LengthResult& r : run.lengths) {
    r.in_last_level = r.working_set() < static_cast<double>(report.bandwidth.last_level);
    r.from_memory = predict(r, measure.huge.best_per_second);
    r.from_working_set =
        predict(r, r.in_last_level ? rate_at(measure.sweep, r.working_set()) : measure.huge.best_per_second);
    x.push_back(r.kv_bytes());
    y.push_back(r.seconds.median);
    quiet.push_back(r.seconds.p10);
    r.attention_ops = attention_ops(spec, r);
    r.attention_ops_seconds = measure.float_ops > 0 ? r.attention_ops / measure.float_ops : 0;
  }
  if (*std::max_element(x.begin(), x.end()) > *std::min_element(x.begin(), x.end())) {
    run.fit = fit_of(run, x, y, measure.huge.best_per_second);
    run.quiet_fit = fit_of(run, x, quiet, measure.huge.best_per_second);
    for (LengthResult& r : run.lengths) r.fitted_seconds = run.fit->line.at(r.kv_bytes());
  }
  for (AblationRun& ablation : run.ablations) analyse_ablation(spec, report, run, ablation);
  run.verdict = Words(spec, report, run).verdict();
}

}  // namespace

std::optional<double> RooflineFit::passes() const {
  return line.slope > 0 ? std::optional(line.slope * bandwidth) : std::nullopt;
}
std::optional<double> RooflineFit::passes_from_memory() const {
  return line.slope > 0 ? std::optional(line.slope * memory_bandwidth) : std::nullopt;
}
std::optional<double> RooflineFit::effective_bandwidth() const {
  return line.slope > 0 ? std::optional(1 / line.slope) : std::nullopt;
}

std::vector<int64_t> kv_bytes_read(const ModelSpec& spec, const KvTypes& types, int64_t positions) {
  std::vector<int64_t> out;
  for (const LayerSpec& layer : spec.layers) {
    out.push_back(0);
    if (!layer.attention) continue;
    const AttentionSpec& a = *layer.attention;
    const int64_t seen = a.window > 0 ? std::min(positions, a.window) : positions;
    const size_t head = kv_row_bytes(types.keys, a.head_dim) + kv_row_bytes(types.values, a.head_dim);
    out.back() = seen * a.n_kv_heads * static_cast<int64_t>(head);
  }
  return out;
}

std::optional<int64_t> positions_reading(const ModelSpec& spec, const KvTypes& types, double bytes) {
  const auto reads = [&](int64_t positions) {
    double all = 0;
    for (const int64_t layer : kv_bytes_read(spec, types, positions)) all += static_cast<double>(layer);
    return all >= bytes;
  };
  constexpr int64_t kMost = int64_t{1} << 40;
  if (!reads(kMost)) return std::nullopt;
  int64_t below = 0, enough = kMost;
  while (enough - below > 1) {
    const int64_t middle = below + (enough - below) / 2;
    (reads(middle) ? enough : below) = middle;
  }
  return enough;
}

void analyse(const ModelSpec& spec, RooflineReport& report) {
  for (RooflineRun& run : report.runs) analyse_run(spec, report, run);
}

}  // namespace lapidary::kvlab
