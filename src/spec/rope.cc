// Rotary frequencies: a pure function of the spec, shared by both executors so that they differ in arithmetic
// only.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "spec/model_spec.h"

namespace lapidary {
namespace {

constexpr float kStandsStill = 1e30f;  // what converters store for a pair that does not turn

double llama3_blend(double frequency, const RopeSpec& rope) {
  // How often the pair turns over the original context: few turns are stretched by `factor`, many are left,
  // between is blended.
  const double turns = static_cast<double>(rope.original_max_position) * frequency / (2 * std::numbers::pi);
  const double keep =
      std::clamp((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
  return frequency / rope.factor * (1 - keep) + frequency * keep;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& rope, int64_t head_dim) {
  ensure(head_dim > 0 && head_dim % 2 == 0, ErrorCode::data,
         "rope: head_dim: expected a positive even number, got {}", head_dim);
  const size_t pairs = static_cast<size_t>(head_dim / 2);
  ensure(rope.kind != RopeKind::divisors || rope.divisors.size() == pairs, ErrorCode::data,
         "rope.divisors: expected {} numbers (head_dim / 2), got {}", pairs, rope.divisors.size());
  std::vector<double> out(pairs);
  for (size_t i = 0; i < pairs; ++i) {
    out[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  switch (rope.kind) {
    case RopeKind::plain: break;
    case RopeKind::proportional: {
      const double turning = std::floor(rope.partial_rotary_factor * static_cast<double>(head_dim) / 2);
      for (size_t i = 0; i < pairs; ++i) {
        if (static_cast<double>(i) >= turning) out[i] = 0;
      }
      break;
    }
    case RopeKind::llama3:
      for (double& frequency : out) frequency = llama3_blend(frequency, rope);
      break;
    case RopeKind::divisors:
      for (size_t i = 0; i < pairs; ++i) {
        out[i] = rope.divisors[i] >= kStandsStill ? 0 : out[i] / static_cast<double>(rope.divisors[i]);
      }
      break;
  }
  return out;
}

}  // namespace lapidary
