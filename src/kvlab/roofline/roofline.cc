#include "kvlab/roofline/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/rng.h"
#include "kvlab/roofline/ablations.h"
#include "kvlab/sequence.h"
#include "spec/footprint.h"

namespace lapidary::kvlab {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Takes the time of attention and of the head, and the bytes that the head reads.
class PartsProbe : public Probe {
 public:
  explicit PartsProbe(const Engine& engine) : engine_(engine) {}
  void begin_step() { attention_ = 0; }
  void on_op(const OpRows& op) override {
    if (op.op == Op::turned_query) start_ = Clock::now();
    if (op.op == Op::attended) attention_ += seconds_since(start_);
  }
  bool wants_ops() const override { return true; }
  void on_final_norm(std::span<const RowId>, std::span<const float>) override {
    start_ = Clock::now();
    weights_before_ = engine_.traffic().weights_read;
  }
  void on_logits() {
    head_ = seconds_since(start_);
    head_bytes_ = engine_.traffic().weights_read - weights_before_;
  }
  double attention_seconds() const { return attention_; }
  double head_seconds() const { return head_; }
  int64_t head_bytes() const { return head_bytes_; }
  void on_hidden(int64_t, std::span<const RowId>, std::span<const float>) override {}
  void on_kv(int64_t, RowId, std::span<const float>, std::span<const float>) override {}
  void on_scores(int64_t, RowId, int64_t, int64_t, std::span<const float>) override {}
  bool wants_scores() const override { return false; }

 private:
  const Engine& engine_;
  Clock::time_point start_;
  double attention_ = 0, head_ = 0;
  int64_t weights_before_ = 0, head_bytes_ = 0;
};

// What some steps of one sequence took.
struct Steps {
  std::vector<double> seconds;   // timed ones
  std::vector<Hash128> logits;   // of all, warm-up included
  std::vector<int64_t> kv_read;  // [L], of the timed ones
  int64_t weights_read = 0, copied_read = 0, copied_written = 0;

  bool repeats = true;  // every round gave the same logits

  void add(const Steps& round) {
    seconds.insert(seconds.end(), round.seconds.begin(), round.seconds.end());
    repeats = logits.empty() || (repeats && logits == round.logits);
    logits = round.logits;
    kv_read.resize(round.kv_read.size());
    for (size_t l = 0; l < kv_read.size(); ++l) kv_read[l] += round.kv_read[l];
    weights_read += round.weights_read;
    copied_read += round.copied_read;
    copied_written += round.copied_written;
  }
  StepSeconds summary() const {
    return {quantile(seconds, 0.5), quantile(seconds, 0.1), quantile(seconds, 0.9)};
  }
  Hash128 logits_hash() const {
    Hasher hasher;
    for (const Hash128& hash : logits) hasher.add(hash);
    return hasher.digest();
  }
};

int64_t sum(const std::vector<int64_t>& values) {
  int64_t total = 0;
  for (const int64_t value : values) total += value;
  return total;
}

// Filled caches of a model, so that it is prefilled once whatever the number of threads: the same bits.
using Snapshots = std::map<int64_t, std::vector<std::byte>>;

// One engine that grows a sequence through all lengths and steps on forks of it.
class LengthSweep {
 public:
  LengthSweep(const ModelSpec& spec, const TensorSource& source, EngineOptions options, int threads,
              const RooflinePlan& plan, Snapshots* snapshots, OnRooflineWork on_work)
      : plan_(plan), snapshots_(snapshots), on_work_(on_work) {
    options.threads = threads;
    options.max_sequences =
        static_cast<int64_t>(plan.lengths.size()) + 2;  // a growing one and a fork at work
    options.context = plan.lengths.back();
    on_work_("loading", 0, 1);
    engine_ = std::make_unique<Engine>(spec, source, options);
    growing_ = engine_->open();
  }
  Engine& engine() { return *engine_; }

  // The cache filled for each length; they share their pages.
  void fill_all() {
    for (const int64_t length : plan_.lengths) {
      fill(length);
      filled_.push_back(std::make_unique<OpenSequence>(*engine_, growing_));
    }
  }
  int32_t filled(size_t length) const { return filled_[length]->id(); }

  // Fills the cache so far that the last timed step ends at `length`.
  void fill(int64_t length) {
    const int64_t start = length - plan_.steps_of_round() - plan_.warm_up;
    if (snapshots_ && snapshots_->contains(start)) {
      on_work_("restoring", 0, 1);
      engine_->restore(growing_, snapshots_->at(start), Hash128{}, "the filled cache", [](auto) {});
      return;
    }
    constexpr int64_t kPiece = 256;
    while (engine_->length(growing_) < start) {
      const int64_t at = engine_->length(growing_), n = std::min(kPiece, start - at);
      on_work_(fmt::format("filling to {}", start), at, start);
      std::vector<int32_t> tokens;
      for (int64_t i = 0; i < n; ++i) tokens.push_back(token(at + i));
      const Feed feed{growing_, tokens, Want::none};
      engine_->forward({&feed, 1}, [](size_t, int64_t, std::span<const float>) {});
    }
    if (!snapshots_) return;
    std::vector<std::byte>& saved = (*snapshots_)[start];
    engine_->save(growing_, Hash128{}, {}, [&](std::span<const std::byte> bytes) {
      saved.insert(saved.end(), bytes.begin(), bytes.end());
    });
  }

  // n timed steps on a fork of what is filled for a length. Only one of the probes, or none.
  Steps steps(size_t length, int64_t n, std::string_view what, CopyingProbe* copying = nullptr,
              PartsProbe* parts = nullptr, std::vector<double>* attention = nullptr,
              std::vector<double>* head = nullptr) {
    const OpenSequence fork(*engine_, filled(length));
    const int32_t sequence = fork.id();
    Steps out;
    Traffic before = engine_->traffic();
    int64_t read_before = 0, written_before = 0;
    const std::string label = fmt::format("{} at {}", what, plan_.lengths[length]);
    for (int64_t i = 0; i < plan_.warm_up + n; ++i) {
      on_work_(label, i, plan_.warm_up + n);
      if (i == plan_.warm_up) {
        before = engine_->traffic();
        read_before = copying ? copying->read_bytes() : 0;
        written_before = copying ? copying->written_bytes() : 0;
      }
      if (copying) copying->before_step(sequence);
      if (parts) parts->begin_step();
      const int32_t id = token(engine_->length(sequence));
      const Feed feed{sequence, {&id, 1}, Want::last};
      Probe* const probe = copying ? static_cast<Probe*>(copying) : parts;
      const Clock::time_point start = Clock::now();
      engine_->forward(
          {&feed, 1},
          [&](size_t, int64_t, std::span<const float> logits) {
            if (parts) parts->on_logits();
            logits_.assign(logits.begin(), logits.end());
          },
          probe);
      const double seconds = seconds_since(start);
      out.logits.push_back(hash128(std::as_bytes(std::span(logits_))));
      if (i < plan_.warm_up) continue;
      out.seconds.push_back(seconds);
      if (attention) attention->push_back(parts->attention_seconds());
      if (head) head->push_back(parts->head_seconds());
    }
    const Traffic& after = engine_->traffic();
    for (size_t l = 0; l < after.kv_read.size(); ++l)
      out.kv_read.push_back(after.kv_read[l] - before.kv_read[l]);
    out.weights_read = after.weights_read - before.weights_read;
    if (copying) {
      out.copied_read = copying->read_bytes() - read_before;
      out.copied_written = copying->written_bytes() - written_before;
    }
    return out;
  }

 private:
  // A pure function of the position: every run feeds the same tokens.
  int32_t token(int64_t position) const {
    const auto bits = philox(plan_.seed, 0, static_cast<uint64_t>(position));
    return static_cast<int32_t>(bits[0] % static_cast<uint64_t>(engine_->spec().vocab_size));
  }

  const RooflinePlan& plan_;
  Snapshots* snapshots_;
  OnRooflineWork on_work_;
  std::unique_ptr<Engine> engine_;
  int32_t growing_ = 0;
  std::vector<std::unique_ptr<OpenSequence>> filled_;  // [lengths]; gone before the engine
  std::vector<float> logits_;
};

// KV bytes that the counters should have seen in the timed steps of a length; [L].
std::vector<int64_t> counted_by_formula(const ModelSpec& spec, const KvTypes& types, const LengthResult& r) {
  std::vector<int64_t> out(spec.layers.size());
  for (int64_t positions = r.length - r.steps / r.rounds + 1; positions <= r.length; ++positions) {
    const std::vector<int64_t> read = kv_bytes_read(spec, types, positions);
    for (size_t l = 0; l < out.size(); ++l) out[l] += r.rounds * read[l];
  }
  return out;
}

// Pools only reserve addresses: what would not fit has to be refused here.
void check_memory(const ModelSpec& spec, const EngineOptions& options, const RooflinePlan& plan) {
  const int64_t longest = plan.lengths.back(), copies = plan.concat_append ? 2 : 1;
  int64_t needed = copies * kv_bytes_needed(spec, longest, options.kv_dtype);
  if (plan.expand_gqa)
    needed = std::max(needed, 2 * kv_bytes_needed(expanded_spec(spec), longest, options.kv_dtype));
  const int64_t available = available_memory_bytes();
  ensure(needed < available, ErrorCode::limit,
         "length {}: its cache and the copies of it take {} bytes, but only {} are available", longest,
         needed, available);
}

class Measurement {
 public:
  Measurement(const ModelSpec& spec, const TensorSource& source, const EngineOptions& options,
              const RooflinePlan& plan, OnRooflineWork on_work)
      : spec_(spec), source_(source), options_(options), plan_(plan), on_work_(on_work) {
    // Worth the memory where several engines need them, and only a little of it.
    int64_t bytes = 0;
    for (const int64_t length : plan.lengths) bytes += kv_bytes_needed(spec, length, options.kv_dtype);
    keep_ = plan.threads.size() > 1 && bytes < available_memory_bytes() / 4;
  }

  void run(RooflineReport& report) {
    for (const int threads : plan_.threads) {
      RooflineRun run;
      run.threads = threads;
      run_threads(run, report);
      report.runs.push_back(std::move(run));
    }
    const auto check = [](const char* name, const std::string& failure, std::string counted) {
      return Check{name, failure.empty(), failure.empty() ? std::move(counted) : failure};
    };
    report.checks = {
        check("counters equal the formula", bad_count_,
              fmt::format("{} counts of a layer and a length", counts_)),
        check("logits equal", bad_logits_, fmt::format("{} runs of steps against the plain one", compared_))};
  }

 private:
  void run_threads(RooflineRun& run, RooflineReport& report) {
    run_plain(run, report);
    if (plan_.expand_gqa) run.ablations.insert(run.ablations.begin(), expand(run));
    on_work_("probing the memory again", 0, 1);
    for (ReadMeasure& measure : report.bandwidth.measures) {
      if (measure.threads != run.threads) continue;
      measure_again(measure);
      run.drift->memory_first = measure.before;
      run.drift->memory_again = measure.after;
    }
  }

  void run_plain(RooflineRun& run, RooflineReport& report) {
    const std::string label = fmt::format("{} thread{}: steps", run.threads, run.threads == 1 ? "" : "s");
    LengthSweep sweep(spec_, source_, options_, run.threads, plan_, keep_ ? &plain_snapshots_ : nullptr,
                      on_work_);
    report.numeric_mode = sweep.engine().numeric_mode();
    sweep.fill_all();
    std::optional<ConcatProbe> concat;
    if (plan_.concat_append) concat.emplace(sweep.engine());
    const size_t n = plan_.lengths.size();
    std::vector<Steps> plain(n), appended(n);
    for (int64_t round = 0; round < plan_.rounds; ++round)
      for (size_t i = 0; i < n; ++i) {
        plain[i].add(sweep.steps(i, plan_.steps_of_round(), label));
        if (concat) appended[i].add(sweep.steps(i, plan_.steps_of_round(), "concat-append", &*concat));
      }
    for (size_t i = 0; i < n; ++i) run.lengths.push_back(length_result(sweep, i, plain[i]));
    if (concat) {
      run.ablations.push_back({.name = "concat-append"});
      for (size_t i = 0; i < n; ++i) add_length(run.ablations.back(), run.lengths[i], appended[i]);
    }
    Steps again;
    for (int64_t round = 0; round < plan_.rounds; ++round)
      again.add(sweep.steps(0, plan_.steps_of_round(), "once more"));
    run.drift = Drift{.length = plan_.lengths.front(),
                      .first_seconds = run.lengths.front().seconds.median,
                      .again_seconds = again.summary().median};
    compare(plan_.lengths.front(), again, "the steps once more");
  }

  LengthResult length_result(LengthSweep& sweep, size_t index, const Steps& plain) {
    LengthResult out;
    out.length = plan_.lengths[index];
    out.steps = plan_.steps;
    out.rounds = plan_.rounds;
    out.seconds = plain.summary();
    out.layer_kv_bytes = plain.kv_read;
    out.kv_bytes_total = sum(plain.kv_read);
    out.weight_bytes_total = plain.weights_read;
    out.logits = plain.logits_hash();
    check_counters(out);
    reference_[out.length] = plain.logits;
    compare(out.length, plain, "the plain steps, from round to round");

    PartsProbe parts(sweep.engine());
    std::vector<double> attention, head;
    const Steps watched = sweep.steps(index, plan_.part_steps, "parts", nullptr, &parts, &attention, &head);
    out.attention_seconds = quantile(attention, 0.5);
    out.head_seconds = quantile(head, 0.5);
    out.head_bytes_total = parts.head_bytes() * plan_.steps;
    compare(out.length, watched, "the watched steps");
    return out;
  }

  AblationRun expand(const RooflineRun& run) {
    AblationRun out{.name = "expand-gqa"};
    const ModelSpec spec = expanded_spec(spec_);
    const ExpandedHeads source(spec_, source_);
    LengthSweep sweep(spec, source, options_, run.threads, plan_, keep_ ? &expanded_snapshots_ : nullptr,
                      on_work_);
    sweep.fill_all();
    ExpandProbe probe(sweep.engine(), spec_);
    std::vector<Steps> all(plan_.lengths.size());
    for (int64_t round = 0; round < plan_.rounds; ++round)
      for (size_t i = 0; i < all.size(); ++i)
        all[i].add(sweep.steps(i, plan_.steps_of_round(), "expand-gqa", &probe));
    for (size_t i = 0; i < all.size(); ++i) add_length(out, run.lengths[i], all[i]);
    return out;
  }

  void add_length(AblationRun& run, const LengthResult& plain, const Steps& steps) {
    run.lengths.push_back({plain.length, plan_.steps, steps.summary(), sum(steps.kv_read), steps.copied_read,
                           steps.copied_written, steps.logits_hash()});
    run.logits_equal = compare(plain.length, steps, run.name) && run.logits_equal;
  }

  // Steps that fed the same tokens after the same cache against the plain ones.
  bool compare(int64_t length, const Steps& steps, std::string_view what) {
    const std::vector<Hash128>& plain = reference_.at(length);
    ++compared_;
    size_t differing = 0;
    while (differing < steps.logits.size() && steps.logits[differing] == plain[differing]) ++differing;
    const bool equal = differing == steps.logits.size() && steps.repeats;
    if (!equal && bad_logits_.empty())
      bad_logits_ = differing == steps.logits.size()
                        ? fmt::format("{}: length {}: rounds differ", what, length)
                        : fmt::format("{}: length {}, step {}: other logits than the plain run's", what,
                                      length, differing + 1);
    return equal;
  }

  // A layer whose query heads are many reads its pages in several tiles: a whole number of times, no less
  // than once.
  void check_counters(LengthResult& result) {
    const std::vector<int64_t> expected = counted_by_formula(spec_, options_.kv_dtype, result);
    result.reads = sum(expected) > 0 ? result.kv_bytes_total / sum(expected) : 1;
    for (size_t l = 0; l < expected.size(); ++l) {
      const int64_t counted = result.layer_kv_bytes[l];
      const bool good = expected[l] == 0 ? counted == 0 : counted > 0 && counted % expected[l] == 0;
      ++counts_;
      if (!good && bad_count_.empty())
        bad_count_ = fmt::format("layer {}, length {}: {} bytes counted, {} by the formula", l, result.length,
                                 counted, expected[l]);
    }
  }

  const ModelSpec& spec_;
  const TensorSource& source_;
  const EngineOptions& options_;
  const RooflinePlan& plan_;
  OnRooflineWork on_work_;
  bool keep_ = false;
  Snapshots plain_snapshots_, expanded_snapshots_;
  std::map<int64_t, std::vector<Hash128>> reference_;  // logits of the plain steps by length
  int64_t counts_ = 0, compared_ = 0;
  std::string bad_count_, bad_logits_;
};

}  // namespace

bool RooflineReport::passed() const {
  return all_passed(checks);
}

std::vector<int64_t> possible_lengths(const std::vector<int64_t>& lengths, int64_t steps,
                                      int64_t max_position, std::vector<LeftOut>& left_out) {
  std::vector<int64_t> out;
  for (const int64_t length : lengths) {
    if (length > max_position) {
      left_out.push_back({length, fmt::format("the model was made for {} positions", max_position)});
    } else if (length <= steps) {
      left_out.push_back(
          {length, fmt::format("the {} steps of each length need one position before them", steps)});
    } else {
      out.push_back(length);
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

RooflineReport measure_roofline(const ModelSpec& spec, const TensorSource& source,
                                const EngineOptions& options, const RooflinePlan& plan,
                                OnRooflineWork on_work) {
  ensure(!plan.lengths.empty(), ErrorCode::usage, "there is no length to measure");
  ensure(plan.steps >= 1 && plan.warm_up >= 0, ErrorCode::usage,
         "steps: expected one timed step or more, got {}", plan.steps);
  ensure(plan.rounds >= 1 && plan.steps % plan.rounds == 0, ErrorCode::usage,
         "rounds: expected a divisor of {} steps, got {}", plan.steps, plan.rounds);
  ensure(plan.part_steps >= 1 && plan.part_steps <= plan.steps_of_round(), ErrorCode::usage,
         "part_steps: expected 1 to {}, got {}", plan.steps_of_round(), plan.part_steps);
  ensure(!plan.threads.empty(), ErrorCode::usage, "threads: expected one number or more");
  ensure(!plan.expand_gqa || has_grouped_heads(spec), ErrorCode::usage,
         "--expand-gqa: every query head of this model has a KV head of its own: there is nothing to expand");
  check_memory(spec, options, plan);
  RooflineReport report;
  report.plan = plan;
  report.kv_types = options.kv_dtype;
  report.n_layers = spec.n_layers();
  report.max_position = spec.max_position;
  report.bf16_weight_bytes = 2 * count_parameters(spec).touched_per_token;
  const KvBytes per_token = kv_bytes_per_token(spec, options.kv_dtype);
  report.read_global = per_token.read_global;
  report.read_sliding = per_token.read_sliding;
  report.bandwidth = measure_bandwidth(plan.threads, plan.probe_megabytes, [&](int64_t done, int64_t total) {
    on_work("probing the memory", done, total);
  });
  Measurement(spec, source, options, report.plan, on_work).run(report);
  analyse(spec, report);
  return report;
}

}  // namespace lapidary::kvlab
