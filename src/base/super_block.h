// Fits of 256 floats that share one or two half-precision numbers over the small integer scales of their
// groups ("super-blocks").
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace lapidary {

inline constexpr size_t kSuperBlock = 256;

// x ~ d * scale[g] * q
struct SymmetricShape {
  int group, scale_min, scale_max, q_min, q_max;
};
struct SymmetricBlock {
  uint16_t d = 0;  // f16 bits
  std::array<int8_t, 16> scale{};
  std::array<int8_t, kSuperBlock> q{};
};
SymmetricBlock fit_symmetric(std::span<const float, kSuperBlock> x, const SymmetricShape& shape);

// x ~ d * scale[g] * q - dmin * minimum[g]; scales, minima and q not negative
struct AffineShape {
  int group, scale_max, q_max;
};
struct AffineBlock {
  uint16_t d = 0, dmin = 0;  // f16 bits
  std::array<int8_t, 16> scale{}, minimum{};
  std::array<int8_t, kSuperBlock> q{};
};
AffineBlock fit_affine(std::span<const float, kSuperBlock> x, const AffineShape& shape);

}  // namespace lapidary
