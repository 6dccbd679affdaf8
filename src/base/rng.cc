#include "base/rng.h"

#include <cmath>
#include <numbers>

namespace lapidary {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
constexpr int kRounds = 10;

uint32_t low(uint64_t x) {
  return static_cast<uint32_t>(x);
}
uint32_t high(uint64_t x) {
  return static_cast<uint32_t>(x >> 32);
}

}  // namespace

std::array<uint32_t, 4> philox(uint64_t seed, uint64_t stream, uint64_t position) {
  std::array<uint32_t, 4> c = {low(position), high(position), low(stream), high(stream)};
  uint32_t key0 = low(seed), key1 = high(seed);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = uint64_t{kMultiplier0} * c[0], p1 = uint64_t{kMultiplier1} * c[2];
    c = {high(p1) ^ c[1] ^ key0, low(p1), high(p0) ^ c[3] ^ key1, low(p0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return c;
}

float normal(uint64_t seed, uint64_t stream, uint64_t position) {
  const std::array<uint32_t, 4> bits = philox(seed, stream, position);
  // In (0, 1]: the logarithm of 0 must not occur. 2^-33 bounds the result by 6.8 standard deviations.
  const double radius_draw = (static_cast<double>(bits[0]) + 0.5) * 0x1p-32;
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(bits[1]) * 0x1p-32;
  return static_cast<float>(std::sqrt(-2.0 * std::log(radius_draw)) * std::cos(angle));
}

}  // namespace lapidary
