// Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011): the same (seed, stream, position) gives
// the same draw anywhere.
#pragma once

#include <array>
#include <cstdint>

namespace lapidary {

// Key: seed; counter: position (its low word first), then stream.
std::array<uint32_t, 4> philox(uint64_t seed, uint64_t stream, uint64_t position);
// Uniform in [0, 1), 24 bits.
inline float uniform(uint64_t seed, uint64_t stream, uint64_t position) {
  return static_cast<float>(philox(seed, stream, position)[0] >> 8) * 0x1p-24f;
}
// Uniform in [0, 1), 53 bits: fine enough to reach a token of probability 1e-16.
inline double uniform_double(uint64_t seed, uint64_t stream, uint64_t position) {
  const std::array<uint32_t, 4> bits = philox(seed, stream, position);
  return static_cast<double>((uint64_t{bits[0]} << 32 | bits[1]) >> 11) * 0x1p-53;
}
// Standard normal (Box-Muller); for tests and synthetic weights. Within 1 ulp across maths libraries.
float normal(uint64_t seed, uint64_t stream, uint64_t position);

}  // namespace lapidary
