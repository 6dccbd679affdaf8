#include "base/fit.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace lapidary {
namespace {

// Four floats at a time: every x86-64 has them, and sums in this order are the same everywhere.
constexpr size_t kLanes = 4;
using Vec [[gnu::vector_size(4 * sizeof(float))]] = float;

Vec load(const float* from) {
  Vec out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

Vec clamped(Vec x, float low, float high) {
  const Vec least = Vec{} + low, most = Vec{} + high;
  x = x < least ? least : x;
  return x > most ? most : x;
}

// Nearest integer, ties to even. REQUIRES: |x| < 2^22.
Vec nearest(Vec x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: the sum has no bits below one
  return (x + kShift) - kShift;
}

float sum(Vec x) {
  return (x[0] + x[2]) + (x[1] + x[3]);
}

// Of sixteen neighbours four at a time, two sums each: additions need not wait for each other.
struct Sums {
  Vec even{}, odd{};
  void add(Vec first, Vec second) {
    even += first;
    odd += second;
  }
  float total() const { return sum(even + odd); }
};

// The integer of each element: round(inverse * (x - low)) within the range.
struct Rounding {
  float inverse, low, q_min, q_max;
  Vec operator()(Vec x) const { return nearest(clamped(inverse * (x - low), q_min, q_max)); }
};

struct Moments {
  float q = 0, qq = 0, xq = 0;
};

Moments moments(std::span<const float> x, const Rounding& rounding) {
  Sums q, qq, xq;
  for (size_t i = 0; i < x.size(); i += 2 * kLanes) {
    const Vec a = load(x.data() + i), b = load(x.data() + i + kLanes);
    const Vec m = rounding(a), n = rounding(b);
    q.add(m, n);
    qq.add(m * m, n * n);
    xq.add(a * m, b * n);
  }
  return {q.total(), qq.total(), xq.total()};
}

float largest_by_size(std::span<const float> x) {
  float best = 0;
  for (const float value : x) {
    if (std::fabs(value) > std::fabs(best)) best = value;
  }
  return best;
}

}  // namespace

float fit_scale(std::span<const float> x, int q_min, int q_max) {
  const float extreme = largest_by_size(x);
  if (extreme == 0) return 0;
  float best_scale = 0, best_gain = -1;  // gain: how much of sum(x^2) the fit explains
  const auto consider = [&](float target) {
    const Moments m = moments(x, {target / extreme, 0, static_cast<float>(q_min), static_cast<float>(q_max)});
    if (m.qq == 0) return;
    const float gain = m.xq * m.xq / m.qq;
    if (!(gain > best_gain)) return;
    best_gain = gain;
    best_scale = m.xq / m.qq;
  };
  // The extreme element lands on an integer, or between two, of either side of the range. Wide ranges gain
  // nothing from a finer search.
  const float fine = q_max < 16 ? 0.1f : 0.25f;
  for (const int end : {q_min, q_max}) {
    if (end == q_max && q_min == -q_max) break;  // the other sign is the same fit
    const float sign = end < 0 ? -1.0f : 1.0f;
    const int size = std::abs(end), last = size > 64 ? size - 4 : std::max(1, size / 2);
    for (int n = size; n >= last; --n) consider(sign * static_cast<float>(n));
    for (float offset = -0.9f; size <= 64 && offset < 0.95f; offset += fine) {
      consider(sign * (static_cast<float>(size) + offset));
    }
  }
  return best_scale;
}

AffineFit fit_affine(std::span<const float> x, int q_max, bool negative_addend) {
  float low = *std::min_element(x.begin(), x.end());
  const float high = *std::max_element(x.begin(), x.end());
  if (negative_addend) low = std::min(low, 0.0f);
  if (high <= low) return {0, low};
  double total = 0;
  for (const float value : x) total += value;
  const double n = static_cast<double>(x.size());
  AffineFit best{(high - low) / static_cast<float>(q_max), low};
  double best_gain = -1;
  const auto consider = [&](float levels) {
    const Moments m = moments(x, {levels / (high - low), low, 0, static_cast<float>(q_max)});
    const double determinant = n * m.qq - static_cast<double>(m.q) * m.q;
    if (determinant <= 0) return;
    double scale = (n * m.xq - total * m.q) / determinant, addend = (total - scale * m.q) / n;
    if (negative_addend && addend > 0) {
      addend = 0;
      scale = m.xq / static_cast<double>(m.qq);
    }
    if (!(scale > 0)) return;
    // sum(x^2) less the squared error
    const double gain = 2 * scale * m.xq + 2 * addend * total - scale * scale * m.qq -
                        2 * scale * addend * m.q - n * addend * addend;
    if (!(gain > best_gain)) return;
    best_gain = gain;
    best = {static_cast<float>(scale), static_cast<float>(addend)};
  };
  for (int levels = q_max; levels >= std::max(1, q_max / 2); --levels) consider(static_cast<float>(levels));
  for (int step = -9; step <= 12; ++step) {
    consider(static_cast<float>(q_max) + 0.1f * static_cast<float>(step));
  }
  return best;
}

double squared_error(std::span<const float> x, float scale, float addend, int q_min, int q_max, int8_t* out) {
  const float inverse = scale == 0 ? 0 : 1 / scale;
  const Rounding rounding{std::isfinite(inverse) ? inverse : 0, addend, static_cast<float>(q_min),
                          static_cast<float>(q_max)};
  Sums errors;
  for (size_t i = 0; i < x.size(); i += 2 * kLanes) {
    const Vec a = load(x.data() + i), b = load(x.data() + i + kLanes);
    const Vec m = rounding(a), n = rounding(b);
    const Vec c = a - (scale * m + addend), d = b - (scale * n + addend);
    errors.add(c * c, d * d);
    if (out == nullptr) continue;
    for (size_t j = 0; j < kLanes; ++j) {
      out[i + j] = static_cast<int8_t>(m[j]);
      out[i + kLanes + j] = static_cast<int8_t>(n[j]);
    }
  }
  return errors.total();
}

}  // namespace lapidary
