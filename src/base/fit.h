// Least-squares fits of small integers to a group of floats, for the encoders of block formats.
#pragma once

#include <cstdint>
#include <span>

namespace lapidary {

// x[i] ~ scale * q[i], q_min <= q[i] <= q_max. The scale may be negative: the longer side of the range serves
// the longer side of the data. REQUIRES: x.size() is a multiple of 16 and at most 32.
float fit_scale(std::span<const float> x, int q_min, int q_max);

struct AffineFit {
  float scale = 0, addend = 0;
};
// x[i] ~ scale * q[i] + addend, 0 <= q[i] <= q_max, scale >= 0; with `negative_addend`, addend <= 0.
AffineFit fit_affine(std::span<const float> x, int q_max, bool negative_addend);

// Sum of (x - (scale * q + addend))^2 with the best q in the range, as decoding computes it; q is stored when
// `out` is given.
double squared_error(std::span<const float> x, float scale, float addend, int q_min, int q_max,
                     int8_t* out = nullptr);

}  // namespace lapidary
