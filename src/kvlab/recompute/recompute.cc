#include "kvlab/recompute/recompute.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "kvlab/recompute/ulps.h"

namespace lapidary::kvlab {
namespace {

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// Of one row of keys or values: ulps of its type. int8 codes have no ulp: a step of the head's scale is one.
class Ulps {
 public:
  Ulps(std::span<const double> row, DType type, int64_t head_dim) : type_(type), head_dim_(head_dim) {
    if (type != DType::i8) return;
    for (size_t at = 0; at < row.size(); at += static_cast<size_t>(head_dim)) {
      double greatest = 0;
      for (const double x : row.subspan(at, static_cast<size_t>(head_dim)))
        greatest = std::max(greatest, std::abs(x));
      steps_.push_back(greatest / 127);
    }
  }
  uint64_t between(double a, double b, size_t element) const {
    if (type_ != DType::i8) return ulps_between(a, b, type_);
    const double step = steps_[element / static_cast<size_t>(head_dim_)];
    return a == b ? 0 : step > 0 ? static_cast<uint64_t>(std::ceil(std::abs(a - b) / step - 0.5)) : 1;
  }

 private:
  DType type_;
  int64_t head_dim_;
  std::vector<double> steps_;
};

void add_row(KvDifference& to, std::span<const double> cached, std::span<const double> again, DType type,
             int64_t head_dim, double& max_abs) {
  const Ulps ulps(cached, type, head_dim);
  for (size_t i = 0; i < cached.size(); ++i) {
    ++to.elements;
    const uint64_t apart = same_bits(cached[i], again[i]) ? 0 : ulps.between(cached[i], again[i], i);
    to.equal += same_bits(cached[i], again[i]) ? 1 : 0;
    max_abs = std::max(max_abs, std::abs(cached[i] - again[i]));
    to.max_ulps = std::max(to.max_ulps, apart);
    ++to.histogram[static_cast<size_t>(std::min<uint64_t>(apart, 3))];
  }
}

std::span<const double> row_of(const std::vector<double>& matrix, int64_t row, int64_t width) {
  return std::span(matrix).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
}

KvDifference kv_difference(const Record::Kv& cached, const Record::Kv& again, int64_t position,
                           const RunFacts& facts) {
  KvDifference out;
  add_row(out, row_of(cached.k, position, cached.width), row_of(again.k, position, cached.width), facts.keys,
          cached.head_dim, out.max_abs_k);
  add_row(out, row_of(cached.v, position, cached.width), row_of(again.v, position, cached.width),
          facts.values, cached.head_dim, out.max_abs_v);
  return out;
}

Difference difference_of(std::span<const double> cached, std::span<const double> again) {
  Difference out;
  for (size_t i = 0; i < cached.size(); ++i) {
    ++out.elements;
    out.equal += same_bits(cached[i], again[i]) ? 1 : 0;
    out.max_abs = std::max(out.max_abs, std::abs(cached[i] - again[i]));
  }
  return out;
}

std::optional<int64_t> first_unequal(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  const auto [at, unused] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (at == a.end()) return {};
  return at - a.begin();
}

std::optional<Divergence> first_divergence(const Record& cached, const Record& again) {
  for (const auto& [stage, hashes] : cached.stages) {  // in order of layers and operations
    const auto found = again.stages.find(stage);
    const std::string op(stage_names()[static_cast<size_t>(stage.index)]);
    if (found == again.stages.end()) return Divergence{stage.layer, op, 0};
    if (const auto at = first_unequal(hashes, found->second)) return Divergence{stage.layer, op, *at};
  }
  for (int64_t r = 0; r < cached.positions; ++r) {
    if (difference_of(row_of(cached.final_norm, r, cached.d_model),
                      row_of(again.final_norm, r, cached.d_model))
            .equal < cached.d_model)
      return Divergence{-1, "final norm", r};
  }
  if (const auto at = first_unequal(cached.logits_hash, again.logits_hash))
    return Divergence{-1, "logits", *at};
  return {};
}

// Ties go to the lower id, as everywhere in the program.
Choice choice_of(std::span<const double> logits, DType type) {
  size_t best = 0, second = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) {
      second = std::exchange(best, i);
    } else if (second == best || logits[i] > logits[second]) {
      second = i;
    }
  }
  return {static_cast<int32_t>(best), static_cast<int32_t>(second), logits[best], logits[second],
          ulps_between(logits[best], logits[second], type)};
}

std::vector<Choice> choices_of(const Record& record, DType type) {
  std::vector<Choice> out;
  for (int64_t r = record.first_logits; r < record.positions; ++r)
    out.push_back(choice_of(record.logits_at(r), type));
  return out;
}

TruthError truth_error(const Record& got, const Record& truth) {
  TruthError error;
  double squares = 0, count = 0;
  const auto add = [&](std::span<const double> a, std::span<const double> b, double& greatest) {
    for (size_t i = 0; i < a.size(); ++i) {
      greatest = std::max(greatest, std::abs(a[i] - b[i]));
      squares += (a[i] - b[i]) * (a[i] - b[i]);
    }
    count += static_cast<double>(a.size());
  };
  const auto rms = [&] {
    const double root = count > 0 ? std::sqrt(squares / count) : 0;
    squares = count = 0;
    return root;
  };
  for (const auto& [layer, kv] : got.kv) {
    add(kv.k, truth.kv.at(layer).k, error.max_k);
    add(kv.v, truth.kv.at(layer).v, error.max_v);
  }
  error.rms_kv = rms();
  for (size_t i = 0; i < got.hidden.size(); ++i) add(got.hidden[i], truth.hidden[i], error.max_hidden);
  rms();
  add(got.logits, truth.logits, error.max_logits);
  error.rms_logits = rms();
  return error;
}

void compare_kv(const Record& cached, const Record& again, const RunFacts& facts, Recomputation& out) {
  for (const auto& [layer, kv] : cached.kv) {
    LayerDifference difference{.layer = layer};
    std::vector<double> equal;
    std::vector<uint64_t> ulps;
    for (int64_t r = 0; r < cached.positions; ++r) {
      const KvDifference row = kv_difference(kv, again.kv.at(layer), r, facts);
      (r <= cached.first_logits ? difference.prompt : difference.decode).join(row);
      equal.push_back(percent_equal(row.equal, row.elements));
      ulps.push_back(row.max_ulps);
    }
    out.layers.push_back(difference);
    out.equal_map.push_back(std::move(equal));
    out.ulps_map.push_back(std::move(ulps));
  }
}

Recomputation compare(const Record& cached, const Record& again, const RunFacts& facts) {
  Recomputation out;
  compare_kv(cached, again, facts, out);
  for (size_t i = 0; i < cached.hidden.size(); ++i)
    out.hidden.push_back(difference_of(cached.hidden[i], again.hidden[i]));
  for (size_t r = 0; r < cached.logits_hash.size(); ++r)
    out.equal_logit_rows += cached.logits_hash[r] == again.logits_hash[r] ? 1 : 0;
  out.max_logit_difference = difference_of(cached.logits, again.logits).max_abs;
  out.first = first_divergence(cached, again);
  const std::vector<Choice> was = choices_of(cached, facts.logits), is = choices_of(again, facts.logits);
  for (size_t i = 0; i < was.size(); ++i) {
    if (was[i].id == is[i].id) continue;
    out.flips.push_back(
        {static_cast<int64_t>(i) + 1, cached.first_logits + static_cast<int64_t>(i), was[i], is[i]});
  }
  return out;
}

// Prefill of the prompt, then greedy decode.
Record cached_run(const ModelSpec& spec, const RecomputePlan& plan, const RunFacts& facts, Subject& subject,
                  std::vector<int32_t>& tokens, OnWork on_work) {
  const auto prompt = static_cast<int64_t>(plan.prompt.size());
  Record record(spec, prompt + plan.decode_calls, prompt - 1);
  tokens = plan.prompt;
  subject.begin(1);
  subject.feed(tokens, 0, record);
  for (int64_t i = 0; i < plan.decode_calls; ++i) {
    on_work(facts.name + ": the cached run", i, plan.decode_calls);
    tokens.push_back(choice_of(record.logits_at(prompt - 1 + i), facts.logits).id);
    subject.feed(std::span(tokens).last(1), prompt + i, record);
  }
  return record;
}

}  // namespace

void KvDifference::join(const KvDifference& other) {
  elements += other.elements;
  equal += other.equal;
  max_abs_k = std::max(max_abs_k, other.max_abs_k);
  max_abs_v = std::max(max_abs_v, other.max_abs_v);
  max_ulps = std::max(max_ulps, other.max_ulps);
  for (size_t i = 0; i < histogram.size(); ++i) histogram[i] += other.histogram[i];
}

void Difference::join(const Difference& other) {
  elements += other.elements;
  equal += other.equal;
  max_abs = std::max(max_abs, other.max_abs);
}

KvDifference LayerDifference::all() const {
  KvDifference out = prompt;
  out.join(decode);
  return out;
}

KvDifference Recomputation::prompt() const {
  KvDifference out;
  for (const LayerDifference& layer : layers) out.join(layer.prompt);
  return out;
}

KvDifference Recomputation::decode() const {
  KvDifference out;
  for (const LayerDifference& layer : layers) out.join(layer.decode);
  return out;
}

KvDifference Recomputation::kv() const {
  KvDifference out = prompt();
  out.join(decode());
  return out;
}

Difference Recomputation::all_hidden() const {
  Difference out;
  for (const Difference& layer : hidden) out.join(layer);
  return out;
}

bool Recomputation::same(int64_t positions) const {
  const Difference states = all_hidden();
  return kv().same() && states.equal == states.elements && equal_logit_rows == positions && !first;
}

std::string Recomputation::name() const {
  const std::string cut = chunk == 0   ? "one prefill"
                          : chunk == 1 ? "decode of single tokens"
                                       : fmt::format("calls of {} tokens", chunk);
  return batch == 1 ? cut : fmt::format("{}, batch of {}", cut, batch);
}

bool RunResult::same() const {
  const auto positions = static_cast<int64_t>(tokens.size());
  return std::all_of(recomputations.begin(), recomputations.end(),
                     [&](const Recomputation& r) { return r.same(positions); });
}

bool RecomputeReport::passed() const {
  return std::all_of(runs.begin(), runs.end(), [](const RunResult& run) { return run.passed(); });
}

int64_t RecomputeReport::kv_elements() const {
  return runs.empty() || runs.front().recomputations.empty()
             ? 0
             : runs.front().recomputations.front().kv().elements;
}

std::string RunResult::verdict() const {
  const auto by_bits = [](const Recomputation& a, const Recomputation& b) {
    return a.kv().equal < b.kv().equal;
  };
  const Recomputation& worst = *std::min_element(recomputations.begin(), recomputations.end(), by_bits);
  const KvDifference kv = worst.kv();
  const std::string times =
      fmt::format("{} recomputation{}", recomputations.size(), recomputations.size() == 1 ? "" : "s");
  const std::string elements = grouped_number(kv.elements);
  if (same()) {
    const std::string hint =
        facts.name == numeric_mode_name(NumericMode::fast)
            ? fmt::format("; only calls of {} rows and more round otherwise in this mode", kFastRows)
            : "";
    return fmt::format(
        "{}: 100.0 % of {} K/V elements have the same bits in {}; so have all hidden states and logits{}",
        facts.name, elements, times, hint);
  }
  size_t most_flips = 0;
  for (const Recomputation& r : recomputations) most_flips = std::max(most_flips, r.flips.size());
  const auto same_ones = std::count_if(recomputations.begin(), recomputations.end(), [&](const auto& r) {
    return r.same(static_cast<int64_t>(tokens.size()));
  });
  return fmt::format(
      "{}: down to {:.1f} % of {} K/V elements have the same bits ({}, {} thread{}); {} of {} the same in "
      "every bit; {} of {} tokens flip{}",
      facts.name, percent_equal(kv.equal, kv.elements), elements, worst.name(), worst.threads,
      worst.threads == 1 ? "" : "s", same_ones, times, most_flips, generated.size(),
      facts.promised_exact ? "; FAILED: the same bits were promised" : "");
}

std::string RunResult::distance() const {
  const auto positions = static_cast<int64_t>(tokens.size());
  const Recomputation* farthest = nullptr;
  for (const Recomputation& r : recomputations) {
    if (!r.error || r.same(positions)) continue;
    if (!farthest || r.error->rms_kv > farthest->error->rms_kv) farthest = &r;
  }
  if (!farthest) return {};
  const double cached = cached_error->rms_kv, again = farthest->error->rms_kv;
  const std::string compared = again > 2 * cached   ? fmt::format("{:.1f} times as far", again / cached)
                               : cached > 2 * again ? fmt::format("{:.1f} times as near", cached / again)
                                                    : "about as far: neither is the truth";
  return fmt::format(
      "{}: from the reference, the cached K and V are {:.1e} away (rms), those of {} {:.1e}: {}", facts.name,
      cached, farthest->name(), again, compared);
}

std::string grouped_number(int64_t value) {
  std::string text = std::to_string(value);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3)
    text.insert(static_cast<size_t>(at), ",");
  return text;
}

double percent_equal(int64_t equal, int64_t elements) {
  if (equal == elements) return 100;
  return std::floor(1000 * static_cast<double>(equal) / static_cast<double>(elements)) / 10;
}

std::vector<int64_t> distinct_chunks(const RecomputePlan& plan) {
  const auto positions = static_cast<int64_t>(plan.prompt.size()) + plan.decode_calls;
  std::vector<int64_t> chunks;
  bool at_once = false;
  for (const int64_t chunk : plan.chunks) {
    if (chunk == 0 || chunk >= positions) at_once = true;
    else chunks.push_back(chunk);
  }
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  if (at_once) chunks.push_back(0);
  return chunks;
}

void check_plan(const ModelSpec& spec, const RecomputePlan& plan) {
  ensure(!plan.prompt.empty(), ErrorCode::usage, "the prompt is empty: expected at least one token");
  ensure(plan.decode_calls >= 0, ErrorCode::usage, "decode calls: expected 0 or more, got {}",
         plan.decode_calls);
  ensure(!plan.chunks.empty() && !plan.threads.empty() && !plan.batches.empty(), ErrorCode::usage,
         "nothing to recompute: expected at least one chunk size, number of threads and batch");
  for (const int64_t batch : plan.batches)
    ensure(batch >= 1, ErrorCode::usage, "batch: expected 1 or more sequences, got {}", batch);
  for (const int64_t chunk : plan.chunks)
    ensure(chunk >= 0, ErrorCode::usage, "chunk: expected 0 (all at once) or more tokens, got {}", chunk);
  for (size_t i = 0; i < plan.prompt.size(); ++i) {
    ensure(plan.prompt[i] >= 0 && plan.prompt[i] < spec.vocab_size, ErrorCode::usage,
           "token {} is {}, outside the vocabulary of {}", i, plan.prompt[i], spec.vocab_size);
  }
  const auto prompt = static_cast<int64_t>(plan.prompt.size()), positions = prompt + plan.decode_calls;
  ensure(positions <= spec.max_position, ErrorCode::limit,
         "{} tokens and {} decode calls: the model was made for {} positions", prompt, plan.decode_calls,
         spec.max_position);
  const int64_t bytes = Record::bytes_needed(spec, positions, prompt - 1);
  ensure(bytes <= kMostRecordBytes, ErrorCode::limit,
         "{} positions: what one run shows takes {} MiB, expected at most {}: take fewer tokens", positions,
         bytes >> 20, kMostRecordBytes >> 20);
}

RunResult recompute(const ModelSpec& spec, const RecomputePlan& plan, const RunFacts& facts, OpenSubject open,
                    TruthOf truth_of, OnWork on_work) {
  check_plan(spec, plan);
  RunResult result{.facts = facts};
  const std::vector<int64_t> chunks = distinct_chunks(plan);
  const auto total = static_cast<int64_t>(chunks.size() * plan.threads.size() * plan.batches.size());
  std::unique_ptr<Subject> subject = open(plan.threads.front());
  const Record cached = cached_run(spec, plan, facts, *subject, result.tokens, on_work);
  result.generated = choices_of(cached, facts.logits);
  const Record* truth = truth_of(result.tokens, cached.first_logits);
  if (truth) result.cached_error = truth_error(cached, *truth);
  for (size_t t = 0; t < plan.threads.size(); ++t) {
    if (t > 0) {
      subject.reset();  // its memory before the next takes its own
      subject = open(plan.threads[t]);
    }
    std::vector<Cut> cuts;
    for (const int64_t batch : plan.batches)
      for (const int64_t chunk : chunks) cuts.push_back({chunk, batch});
    for (const Cut cut : cuts) {
      on_work(facts.name + ": recomputing", static_cast<int64_t>(result.recomputations.size()), total);
      const Record again = record_run(*subject, spec, result.tokens, cut, cached.first_logits);
      Recomputation compared = compare(cached, again, facts);
      compared.chunk = cut.chunk;
      compared.batch = cut.batch;
      compared.calls = again.calls;
      compared.threads = plan.threads[t];
      if (truth) compared.error = truth_error(again, *truth);
      result.recomputations.push_back(std::move(compared));
    }
  }
  return result;
}

}  // namespace lapidary::kvlab
