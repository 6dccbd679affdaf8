// Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011): the same (seed, stream, position) gives the same draw anywhere.
#pragma once

#include <array>
#include <cstdint>

namespace lapidary {

std::array<uint32_t, 4> philox(uint64_t seed, uint64_t stream, uint64_t position);
// Uniform in [0, 1), 24 bits.
inline float uniform(uint64_t seed, uint64_t stream, uint64_t position) {
  return static_cast<float>(philox(seed, stream, position)[0] >> 8) * 0x1p-24f;
}
// Standard normal (Box-Muller); for tests and synthetic weights.
float normal(uint64_t seed, uint64_t stream, uint64_t position);

}  // namespace lapidary
