#include "base/super_block.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/fit.h"
#include "base/half.h"

namespace lapidary {
namespace {

constexpr int kRounds = 2;
constexpr size_t kMaxGroups = 16;

using Groups = std::array<float, kMaxGroups>;

float f16_rounded(double x) {
  return f16_to_float(float_to_f16(static_cast<float>(x)));
}

int clamped_round(float x, int low, int high) {
  return static_cast<int>(std::lrint(std::clamp(x, static_cast<float>(low), static_cast<float>(high))));
}

// The unit of which all values are integer multiples of at most `limit` units, when there is one: then the
// data came out of the format and go back into it unchanged.
std::optional<float> common_unit(std::span<const float> values, float largest, int limit) {
  for (int n = limit; n >= 1; --n) {
    const float unit = largest / static_cast<float>(n);
    const bool all = std::all_of(values.begin(), values.end(), [&](float value) {
      const float multiple = value / unit;
      return std::fabs(multiple - std::nearbyint(multiple)) < 1e-3f;
    });
    if (all) return unit;
  }
  return std::nullopt;
}

// The unit for integer scales that reach from `low` to `high`.
float first_unit(std::span<const float> values, int low, int high) {
  float largest = 0;
  for (const float value : values) {
    if (std::fabs(value) > std::fabs(largest)) largest = value;
  }
  if (largest == 0) return 0;
  // The longer side of the range serves the largest value.
  const int end = -low > high ? low : high;
  if (const auto unit = common_unit(values, largest, std::abs(end))) {
    const float sign = end < 0 ? -1.0f : 1.0f;
    return sign * *unit;
  }
  return largest / static_cast<float>(end);
}

float quotient(float value, float unit) {
  const float result = unit == 0 ? 0 : value / unit;
  return std::isfinite(result) ? result : 0;
}

class Symmetric {
 public:
  Symmetric(std::span<const float, kSuperBlock> x, const SymmetricShape& shape)
      : x_(x), shape_(shape), groups_(kSuperBlock / static_cast<size_t>(shape.group)) {}

  SymmetricBlock run() {
    Groups ideal{};
    for (size_t g = 0; g < groups_; ++g) ideal[g] = fit_scale(group(g), shape_.q_min, shape_.q_max);
    float d = f16_rounded(first_unit({ideal.data(), groups_}, shape_.scale_min, shape_.scale_max));
    for (size_t g = 0; g < groups_; ++g) {
      current_.scale[g] =
          static_cast<int8_t>(clamped_round(quotient(ideal[g], d), shape_.scale_min, shape_.scale_max));
    }
    double best = INFINITY;
    SymmetricBlock out;
    for (int round = 0; round < kRounds; ++round) {
      const double error = choose_scales(d);
      if (!(error < best)) break;
      best = error;
      current_.d = float_to_f16(d);
      out = current_;
      d = best_unit(d);
    }
    return out;
  }

 private:
  std::span<const float> group(size_t g) const {
    return x_.subspan(g * static_cast<size_t>(shape_.group), static_cast<size_t>(shape_.group));
  }

  // For a given d: each group's best scale near the present one, and its q.
  double choose_scales(float d) {
    double total = 0;
    for (size_t g = 0; g < groups_; ++g) {
      int best_scale = current_.scale[g];
      double best = INFINITY;
      for (int scale = current_.scale[g] - 1; scale <= current_.scale[g] + 1; ++scale) {
        if (scale < shape_.scale_min || scale > shape_.scale_max) continue;
        const double error =
            squared_error(group(g), d * static_cast<float>(scale), 0, shape_.q_min, shape_.q_max);
        if (error >= best) continue;
        best = error;
        best_scale = scale;
      }
      current_.scale[g] = static_cast<int8_t>(best_scale);
      total += squared_error(group(g), d * static_cast<float>(best_scale), 0, shape_.q_min, shape_.q_max,
                             current_.q.data() + g * static_cast<size_t>(shape_.group));
    }
    return total;
  }

  // Least squares for d with all integers fixed.
  float best_unit(float otherwise) const {
    double xn = 0, nn = 0;
    for (size_t i = 0; i < kSuperBlock; ++i) {
      const double n = current_.scale[i / static_cast<size_t>(shape_.group)] * current_.q[i];
      xn += x_[i] * n;
      nn += n * n;
    }
    return nn == 0 ? otherwise : f16_rounded(xn / nn);
  }

  std::span<const float, kSuperBlock> x_;
  SymmetricShape shape_;
  size_t groups_;
  SymmetricBlock current_;
};

class Affine {
 public:
  Affine(std::span<const float, kSuperBlock> x, const AffineShape& shape)
      : x_(x), shape_(shape), groups_(kSuperBlock / static_cast<size_t>(shape.group)) {}

  AffineBlock run() {
    Groups scales{}, minima{};
    for (size_t g = 0; g < groups_; ++g) {
      const AffineFit fit = fit_affine(group(g), shape_.q_max, true);
      scales[g] = fit.scale;
      minima[g] = -fit.addend;
    }
    d_ = f16_rounded(first_unit({scales.data(), groups_}, 0, shape_.scale_max));
    dmin_ = f16_rounded(first_unit({minima.data(), groups_}, 0, shape_.scale_max));
    for (size_t g = 0; g < groups_; ++g) {
      current_.scale[g] = static_cast<int8_t>(clamped_round(quotient(scales[g], d_), 0, shape_.scale_max));
      current_.minimum[g] =
          static_cast<int8_t>(clamped_round(quotient(minima[g], dmin_), 0, shape_.scale_max));
    }
    double best = INFINITY;
    AffineBlock out;
    for (int round = 0; round < kRounds; ++round) {
      const double error = choose_scales();
      if (!(error < best)) break;
      best = error;
      current_.d = float_to_f16(d_);
      current_.dmin = float_to_f16(dmin_);
      out = current_;
      best_units();
    }
    return out;
  }

 private:
  std::span<const float> group(size_t g) const {
    return x_.subspan(g * static_cast<size_t>(shape_.group), static_cast<size_t>(shape_.group));
  }

  double error_of(size_t g, int scale, int minimum, int8_t* q = nullptr) const {
    return squared_error(group(g), d_ * static_cast<float>(scale), -(dmin_ * static_cast<float>(minimum)), 0,
                         shape_.q_max, q);
  }

  double choose_scales() {
    double total = 0;
    for (size_t g = 0; g < groups_; ++g) {
      const int scale = current_.scale[g], minimum = current_.minimum[g];
      int best_scale = scale, best_minimum = minimum;
      double best = error_of(g, scale, minimum);
      for (int s = std::max(0, scale - 1); s <= std::min(shape_.scale_max, scale + 1); ++s) {
        for (int m = std::max(0, minimum - 1); m <= std::min(shape_.scale_max, minimum + 1); ++m) {
          const double error = error_of(g, s, m);
          if (error >= best) continue;
          best = error;
          best_scale = s;
          best_minimum = m;
        }
      }
      current_.scale[g] = static_cast<int8_t>(best_scale);
      current_.minimum[g] = static_cast<int8_t>(best_minimum);
      total +=
          error_of(g, best_scale, best_minimum, current_.q.data() + g * static_cast<size_t>(shape_.group));
    }
    return total;
  }

  // Least squares for d and dmin together with all integers fixed.
  void best_units() {
    double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
    for (size_t i = 0; i < kSuperBlock; ++i) {
      const size_t g = i / static_cast<size_t>(shape_.group);
      const double a = current_.scale[g] * current_.q[i], b = -current_.minimum[g];
      aa += a * a;
      ab += a * b;
      bb += b * b;
      xa += x_[i] * a;
      xb += x_[i] * b;
    }
    const double determinant = aa * bb - ab * ab;
    if (determinant > 1e-9 * aa * bb && determinant > 0) {
      const double d = (xa * bb - xb * ab) / determinant, dmin = (xb * aa - xa * ab) / determinant;
      if (d > 0 && dmin >= 0) {
        d_ = f16_rounded(d);
        dmin_ = f16_rounded(dmin);
      }
    } else if (bb == 0 && aa > 0 && xa > 0) {
      d_ = f16_rounded(xa / aa);
    }
  }

  std::span<const float, kSuperBlock> x_;
  AffineShape shape_;
  size_t groups_;
  float d_ = 0, dmin_ = 0;
  AffineBlock current_;
};

}  // namespace

SymmetricBlock fit_symmetric(std::span<const float, kSuperBlock> x, const SymmetricShape& shape) {
  return Symmetric(x, shape).run();
}

AffineBlock fit_affine(std::span<const float, kSuperBlock> x, const AffineShape& shape) {
  return Affine(x, shape).run();
}

}  // namespace lapidary
