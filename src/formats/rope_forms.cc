#include "formats/rope_forms.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lapidary {
namespace {

constexpr float kStandsStill = 1e30f;

RopeSpec plain(double theta) {
  RopeSpec rope;
  rope.theta = theta;
  return rope;
}

bool close(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::fabs(x - y) <= 1e-6f * std::fabs(y); });
}

// A number that someone wrote down by hand.
double tidy(double value) {
  const double scaled = std::round(value * 1e4) / 1e4;
  return std::fabs(scaled - value) <= 1e-3 * std::fabs(value) ? scaled : value;
}

// Ones, then pairs that stand still.
std::optional<RopeSpec> proportional(const RopeSpec& rope) {
  const auto& d = rope.divisors;
  const auto still = std::find_if(d.begin(), d.end(), [](float x) { return x >= kStandsStill; });
  if (!std::all_of(d.begin(), still, [](float x) { return x == 1.0f; }) ||
      !std::all_of(still, d.end(), [](float x) { return x >= kStandsStill; }))
    return std::nullopt;
  if (still == d.end()) return plain(rope.theta);
  RopeSpec out = plain(rope.theta);
  out.kind = RopeKind::proportional;
  out.partial_rotary_factor = static_cast<double>(still - d.begin()) / static_cast<double>(d.size());
  return out;
}

RopeSpec llama3_rule(double theta, double factor, double high, int64_t original) {
  RopeSpec out = plain(theta);
  out.kind = RopeKind::llama3;
  out.factor = factor;
  out.low_freq_factor = 1;  // only ratios matter, and published models have 1 here
  out.high_freq_factor = high;
  out.original_max_position = original;
  return out;
}

// Between the two bounds 1/divisor is linear in the turns t of a pair over the original context:
//   (1 - k) / factor + k with k = (t - low) / (high - low), t = original * frequency / 2 pi.
// Two blended pairs give original / (high - low) and low / (high - low).
std::optional<RopeSpec> solve_llama3(const RopeSpec& rope, double factor, int64_t head_dim) {
  const std::vector<double> frequency = rope_frequencies(plain(rope.theta), head_dim);
  std::vector<std::pair<double, double>> blended;  // frequency, k
  for (size_t i = 0; i < rope.divisors.size(); ++i) {
    const double k = (1 / static_cast<double>(rope.divisors[i]) - 1 / factor) / (1 - 1 / factor);
    if (k > 1e-4 && k < 1 - 1e-4) blended.emplace_back(frequency[i], k);
  }
  if (blended.size() < 2) return std::nullopt;
  const auto [f0, k0] = blended.front();
  const auto [f1, k1] = blended.back();
  const double slope = (k0 - k1) / (f0 - f1), offset = k0 - slope * f0;
  if (!(slope > 0) || !(offset < 0)) return std::nullopt;
  const double high = tidy(1 - 1 / offset);
  return llama3_rule(rope.theta, factor, high, std::llround(slope * 2 * std::numbers::pi * (high - 1)));
}

std::optional<RopeSpec> llama3(const RopeSpec& rope, int64_t head_dim) {
  const double factor = tidy(*std::max_element(rope.divisors.begin(), rope.divisors.end()));
  if (!(factor > 1) || factor >= kStandsStill) return std::nullopt;
  // Short heads blend too few pairs to solve for the bounds: those of the published models first.
  for (int64_t original = 16; original <= (int64_t{1} << 24); original *= 2) {
    const RopeSpec published = llama3_rule(rope.theta, factor, 4, original);
    if (close(rope_divisors(published, head_dim), rope.divisors)) return published;
  }
  const auto solved = solve_llama3(rope, factor, head_dim);
  return solved && close(rope_divisors(*solved, head_dim), rope.divisors) ? solved : std::nullopt;
}

}  // namespace

std::vector<float> rope_divisors(const RopeSpec& rope, int64_t head_dim) {
  if (rope.kind == RopeKind::divisors) return rope.divisors;
  const std::vector<double> base = rope_frequencies(plain(rope.theta), head_dim),
                            actual = rope_frequencies(rope, head_dim);
  std::vector<float> out;
  for (size_t i = 0; i < base.size(); ++i) {
    out.push_back(actual[i] == 0 ? kStandsStill : static_cast<float>(base[i] / actual[i]));
  }
  return out;
}

std::optional<RopeSpec> rope_rule(const RopeSpec& rope, int64_t head_dim) {
  if (rope.kind != RopeKind::divisors) return rope;
  if (auto out = proportional(rope)) return out;
  return llama3(rope, head_dim);
}

}  // namespace lapidary
