#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lapidary {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Value of a finite half by its definition.
double f16_by_definition(uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return h & 0x8000 ? -magnitude : magnitude;
}

TEST(F16, EveryValueIsExactAndComesBack) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<uint16_t>(h);
    const float f = f16_to_float(half);
    if ((h & 0x7c00) == 0x7c00) {
      ASSERT_EQ(std::isnan(f), (h & 0x3ff) != 0) << h;
      ASSERT_EQ(std::isinf(f), (h & 0x3ff) == 0) << h;
    } else {
      ASSERT_EQ(static_cast<double>(f), f16_by_definition(half)) << h;
    }
    ASSERT_EQ(std::signbit(f), (h & 0x8000) != 0) << h;
    const bool signalling_nan = std::isnan(f) && (h & 0x200) == 0;
    ASSERT_EQ(float_to_f16(f), signalling_nan ? h | 0x200 : h) << h;
  }
}

// Between any two neighbours: the middle goes to the even one, the next float on either side to the nearer
// one.
TEST(F16, RoundsToNearestTiesToEven) {
  for (uint16_t h = 0; h < 0x7bff; ++h) {
    const auto above = static_cast<uint16_t>(h + 1);
    const auto middle = static_cast<float>((f16_by_definition(h) + f16_by_definition(above)) / 2);
    ASSERT_EQ(float_to_f16(middle), h % 2 == 0 ? h : above) << h;
    ASSERT_EQ(float_to_f16(std::nextafter(middle, 0.0f)), h) << h;
    ASSERT_EQ(float_to_f16(std::nextafter(middle, kInfinity)), above) << h;
    ASSERT_EQ(float_to_f16(-middle), 0x8000 | (h % 2 == 0 ? h : above)) << h;
  }
}

TEST(F16, OverflowsToInfinityFrom65520) {
  EXPECT_EQ(float_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(-1e30f), 0xfc00);
  EXPECT_EQ(float_to_f16(kInfinity), 0x7c00);
}

TEST(F16, TinyFloatsGoToZeroOfTheirSign) {
  EXPECT_EQ(float_to_f16(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(float_to_f16(-0x1p-26f), 0x8000);
  EXPECT_EQ(float_to_f16(-0.0f), 0x8000);
}

TEST(Bf16, EveryValueIsExactAndComesBack) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = bf16_to_float(static_cast<uint16_t>(h));
    ASSERT_EQ(std::bit_cast<uint32_t>(f), h << 16);
    const bool signalling_nan = std::isnan(f) && (h & 0x40) == 0;
    ASSERT_EQ(float_to_bf16(f), signalling_nan ? h | 0x40 : h) << h;
  }
}

TEST(Bf16, RoundsToNearestTiesToEven) {
  for (uint32_t h = 0; h < 0x7f80; ++h) {
    const auto below = static_cast<uint16_t>(h), above = static_cast<uint16_t>(h + 1);
    const float middle = std::bit_cast<float>(h << 16 | 0x8000u);
    ASSERT_EQ(float_to_bf16(middle), h % 2 == 0 ? below : above) << h;
    ASSERT_EQ(float_to_bf16(std::nextafter(middle, 0.0f)), below) << h;
    ASSERT_EQ(float_to_bf16(std::nextafter(middle, kInfinity)), above) << h;
  }
}

}  // namespace
}  // namespace lapidary
