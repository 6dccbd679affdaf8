#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/rng.h"

namespace lapidary {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr double kLeastExponent = -64.0;  // e^-64 lies far below the 2^-53 steps of a draw

void check_range(std::string_view field, float value, float low, float high, std::string_view range) {
  ensure(value >= low && value <= high, ErrorCode::usage, "{}: expected {}, got {}", field, range, value);
}

// e^x for x in [kLeastExponent, 0]: Cody-Waite reduction and the Taylor series to degree 13, relative error
// below 4e-16. Our own, so that a draw does not depend on the maths library; without branches, so that it can
// use vectors.
inline double exp_bounded(double x) {
  constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  constexpr double kLog2e = 0x1.71547652b82fep0, kLn2High = 0x1.62e42fee00000p-1,
                   kLn2Low = 0x1.a39ef35793c76p-33;
  const double shifted = x * kLog2e + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const uint64_t power = (std::bit_cast<uint64_t>(shifted) + 1023) << 52;
  return p * std::bit_cast<double>(power);
}

// The greatest score, its token with the lowest id; throws on NaN, +infinity, and when all are -infinity.
int32_t best_token(std::span<const float> scores) {
  constexpr size_t kLanes = 16;
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<float>::infinity());
  int32_t bad[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= scores.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const float x = scores[i + j];
      lanes[j] = x > lanes[j] ? x : lanes[j];
      bad[j] |= !(x <= kLargest);
    }
  }
  for (; i < scores.size(); ++i) {
    lanes[0] = std::max(lanes[0], scores[i]);
    bad[0] |= !(scores[i] <= kLargest);
  }
  if (std::any_of(bad, bad + kLanes, [](int32_t b) { return b != 0; })) {
    const auto first = std::find_if(scores.begin(), scores.end(), [](float x) { return !(x <= kLargest); });
    fail(ErrorCode::data, "logit of token {}: expected a finite number or -infinity, got {}",
         first - scores.begin(), *first);
  }
  const float best = *std::max_element(lanes, lanes + kLanes);
  ensure(best >= -kLargest, ErrorCode::data,
         "logits: expected at least one token that is allowed, got {} times -infinity", scores.size());
  return static_cast<int32_t>(std::find(scores.begin(), scores.end(), best) - scores.begin());
}

}  // namespace

void SamplingParams::validate(int64_t vocab_size) const {
  check_range("temperature", temperature, 0.0f, 100.0f, "a number from 0 to 100");
  ensure(top_k >= 0, ErrorCode::usage, "top_k: expected 0 (off) or more, got {}", top_k);
  check_range("top_p", top_p, 0.0f, 1.0f, "a number from 0 to 1");
  check_range("min_p", min_p, 0.0f, 1.0f, "a number from 0 to 1");
  check_range("repetition_penalty", repetition_penalty, 0.01f, 100.0f, "a number from 0.01 to 100");
  check_range("frequency_penalty", frequency_penalty, -100.0f, 100.0f, "a number from -100 to 100");
  check_range("presence_penalty", presence_penalty, -100.0f, 100.0f, "a number from -100 to 100");
  std::vector<int32_t> ids;
  for (const auto& [id, bias] : logit_bias) {
    ensure(id >= 0 && id < vocab_size, ErrorCode::usage,
           "logit_bias: expected token ids from 0 to {}, got {}", vocab_size - 1, id);
    ensure(bias <= kLargest, ErrorCode::usage,
           "logit_bias of token {}: expected a finite number or -infinity, got {}", id, bias);
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  ensure(twice == ids.end(), ErrorCode::usage, "logit_bias: expected each token once, got token {} twice",
         twice == ids.end() ? 0 : *twice);
}

Sampler::Sampler(const SamplingParams& params, int64_t vocab_size)
    : params_(params), vocab_size_(vocab_size) {
  ensure(vocab_size > 0 && vocab_size <= std::numeric_limits<int32_t>::max(), ErrorCode::usage,
         "vocabulary: expected from 1 to {} tokens, got {}", std::numeric_limits<int32_t>::max(), vocab_size);
  params_.validate(vocab_size);
  const size_t v = static_cast<size_t>(vocab_size);
  if (counts_tokens()) {
    counts_.resize(v);
    seen_.reserve(v);
  }
  if (counts_tokens() || !params_.logit_bias.empty()) scores_.resize(v);
  if (params_.top_k >= vocab_size) params_.top_k = 0;
  if (params_.temperature == 0.0f) return;
  inverse_temperature_ = 1.0 / static_cast<double>(params_.temperature);
  // Only what is written becomes resident: with a peaked distribution that is little of it.
  candidates_.reserve(params_.top_k > 0 ? std::min(v, 2 * static_cast<size_t>(params_.top_k)) : v);
}

bool Sampler::counts_tokens() const {
  return params_.repetition_penalty != 1.0f || params_.frequency_penalty != 0.0f ||
         params_.presence_penalty != 0.0f;
}

void Sampler::observe(int32_t token) {
  ensure(token >= 0 && token < vocab_size_, ErrorCode::usage,
         "observed token: expected an id from 0 to {}, got {}", vocab_size_ - 1, token);
  if (!counts_tokens()) return;
  if (counts_[static_cast<size_t>(token)]++ == 0) seen_.push_back(token);
}

int32_t Sampler::sample(std::span<const float> logits, uint64_t step, std::span<const uint32_t> mask) {
  ensure(static_cast<int64_t>(logits.size()) == vocab_size_, ErrorCode::usage, "logits: expected {}, got {}",
         vocab_size_, logits.size());
  const std::span<const float> scores = adjust(logits, mask);
  const int32_t best = best_token(scores);
  if (params_.temperature == 0.0f) return best;
  return draw(scores, scores[static_cast<size_t>(best)], uniform_double(params_.seed, params_.stream, step));
}

std::span<const float> Sampler::adjust(std::span<const float> logits, std::span<const uint32_t> mask) {
  if (scores_.empty() && mask.empty()) return logits;
  scores_.resize(logits.size());
  std::copy(logits.begin(), logits.end(), scores_.begin());
  for (const int32_t id : seen_) {
    float& score = scores_[static_cast<size_t>(id)];
    score = score > 0.0f ? score / params_.repetition_penalty : score * params_.repetition_penalty;
    score -= params_.frequency_penalty * static_cast<float>(counts_[static_cast<size_t>(id)]) +
             params_.presence_penalty;
  }
  for (const auto& [id, bias] : params_.logit_bias) scores_[static_cast<size_t>(id)] += bias;
  if (!mask.empty()) forbid_outside(mask);
  return scores_;
}

// What is no number stays what it is, so that it is found.
void Sampler::forbid_outside(std::span<const uint32_t> mask) {
  const size_t words = (scores_.size() + 31) / 32;
  ensure(mask.size() >= words, ErrorCode::usage, "mask: expected at least {} words for {} tokens, got {}",
         words, scores_.size(), mask.size());
  bool any = false;
  for (size_t word = 0; word < words; ++word) {
    const uint32_t bits = mask[word];
    const size_t begin = 32 * word, n = std::min<size_t>(32, scores_.size() - begin);
    any = any || (n == 32 ? bits : bits & ((uint32_t{1} << n) - 1)) != 0;
    if (bits == ~uint32_t{0}) continue;
    for (size_t i = 0; i < n; ++i) {
      float& score = scores_[begin + i];
      if ((bits >> i & 1) == 0 && score <= kLargest) score = -std::numeric_limits<float>::infinity();
    }
  }
  ensure(any, ErrorCode::data, "mask: expected at least one of {} tokens to be allowed, got none",
         scores_.size());
}

double Sampler::exponent(float score, float best) const {
  return (static_cast<double>(score) - static_cast<double>(best)) * inverse_temperature_;
}

double Sampler::weight(float score, float best) const {
  const double x = exponent(score, best);
  return x >= kLeastExponent ? exp_bounded(x) : 0.0;
}

// Eight running sums, added up in order: the same result whatever the compiler makes of it. What weighs
// nothing is counted as exp(kLeastExponent) here: all of it together is lost in the rounding of a sum that is
// at least 1.
double Sampler::total_weight(std::span<const float> scores, float best) const {
  constexpr size_t kLanes = 8;
  double lanes[kLanes] = {}, w[kLanes];
  size_t i = 0;
  for (; i + kLanes <= scores.size(); i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const double x = exponent(scores[i + j], best);
      w[j] = x > kLeastExponent ? x : kLeastExponent;
    }
    for (size_t j = 0; j < kLanes; ++j) w[j] = exp_bounded(w[j]);
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += w[j];
  }
  for (; i < scores.size(); ++i) lanes[0] += weight(scores[i], best);
  double total = 0.0;
  for (const double lane : lanes) total += lane;
  return total;
}

// The k best, in no order. A full buffer is cut back to its k best, whose last then bars the way: linear in
// the vocabulary.
void Sampler::collect_best(std::span<const float> scores, int64_t k) {
  const size_t keep = static_cast<size_t>(k);
  const auto cut = [&] {
    std::nth_element(candidates_.begin(), candidates_.begin() + k - 1, candidates_.end(), better);
    candidates_.resize(keep);
    return candidates_.back().score;
  };
  float bar = -std::numeric_limits<float>::infinity();  // forbidden tokens never pass
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!(scores[i] > bar)) continue;
    if (candidates_.size() == candidates_.capacity()) {
      bar = cut();
      if (!(scores[i] > bar)) continue;
    }
    candidates_.push_back({scores[i], static_cast<int32_t>(i), 0.0});
  }
  if (candidates_.size() > keep) cut();
}

void Sampler::collect_above(std::span<const float> scores, float best, double least_weight) {
  const double bar =
      std::log(least_weight) - 1e-6;  // saves the exponential of nearly all; the weight itself decides
  for (size_t i = 0; i < scores.size(); ++i) {
    if (exponent(scores[i], best) < bar) continue;
    const double w = weight(scores[i], best);
    if (w > 0.0 && w >= least_weight) candidates_.push_back({scores[i], static_cast<int32_t>(i), w});
  }
}

// How many candidates, from the best down, are needed to hold `mass`; brings them to the front, the last of
// them last. All of them when rounding leaves the whole short of `mass`. Linear, nothing is sorted: buckets
// by score show where the mass is reached, and that bucket alone is halved until one candidate is left.
size_t Sampler::prefix_with_mass(double mass) {
  constexpr size_t kBuckets = 512;
  if (candidates_.empty()) return 0;
  const auto [worst, best] =
      std::minmax_element(candidates_.begin(), candidates_.end(),
                          [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
  const double top = static_cast<double>(best->score), range = top - static_cast<double>(worst->score);
  const double per_bucket = range > 0.0 ? (kBuckets - 1) / range : 0.0;
  const auto bucket_of = [&](const Candidate& c) {
    return static_cast<size_t>((top - static_cast<double>(c.score)) *
                               per_bucket);  // monotonic, so order is kept
  };
  double masses[kBuckets] = {};
  for (const Candidate& c : candidates_) masses[bucket_of(c)] += c.weight;
  double before = 0.0;
  size_t bucket = 0;
  while (bucket + 1 < kBuckets && before + masses[bucket] < mass) before += masses[bucket++];

  const auto from = std::partition(candidates_.begin(), candidates_.end(),
                                   [&](const Candidate& c) { return bucket_of(c) < bucket; });
  const auto to =
      std::partition(from, candidates_.end(), [&](const Candidate& c) { return bucket_of(c) == bucket; });
  const size_t begin = static_cast<size_t>(from - candidates_.begin()),
               end = static_cast<size_t>(to - candidates_.begin());
  return halve_until_mass(begin, end, before, mass);
}

// The same within [begin, end), where the candidates in front of `begin` hold `before` and the mass is
// reached.
size_t Sampler::halve_until_mass(size_t begin, size_t end, double before, double mass) {
  const auto at = [&](size_t i) { return candidates_.begin() + static_cast<std::ptrdiff_t>(i); };
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(at(begin), at(middle), at(end), better);
    double upper = before;
    for (size_t i = begin; i < middle; ++i) upper += candidates_[i].weight;
    if (upper >= mass) {
      end = middle;
    } else {
      before = upper;
      begin = middle;
    }
  }
  return end;
}

int32_t Sampler::draw(std::span<const float> scores, float best, double u) {
  const double top_p = static_cast<double>(params_.top_p), min_p = static_cast<double>(params_.min_p);
  candidates_.clear();
  double total = 0.0;
  bool whole = true;  // the candidates are all that may be drawn, not only those that matter for this u
  if (params_.top_k > 0) {
    collect_best(scores, params_.top_k);
    for (Candidate& c : candidates_) total += c.weight = weight(c.score, best);
  } else if (top_p == 1.0 && min_p > 0.0) {
    collect_above(scores, best, min_p);
  } else {
    // V tokens of less than rest / V each hold less than the rest: they cannot be among those that make up
    // the mass.
    total = total_weight(scores, best);
    const double rest = (top_p < 1.0 ? 1.0 - top_p : 1.0 - u) * total;
    collect_above(scores, best, 0.5 * rest / static_cast<double>(scores.size()));
    whole = top_p < 1.0;
  }
  if (top_p < 1.0) candidates_.resize(prefix_with_mass(top_p * total));
  if (min_p > 0.0) std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < min_p; });
  if (whole) {
    total = 0.0;
    for (const Candidate& c : candidates_) total += c.weight;
  }
  return candidates_[prefix_with_mass(u * total) - 1].id;
}

}  // namespace lapidary
