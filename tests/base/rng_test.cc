#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace lapidary {
namespace {

using Words = std::array<uint32_t, 4>;

// The known-answer vectors that the authors of Philox publish for 4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0: the digits of pi, lowest word first.
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EachArgumentMatters) {
  std::set<Words> seen;
  for (uint64_t i = 0; i < 64; ++i) {
    seen.insert(philox(uint64_t{1} << i, 0, 0));
    seen.insert(philox(0, uint64_t{1} << i, 0));
    seen.insert(philox(0, 0, uint64_t{1} << i));
  }
  EXPECT_EQ(seen.size(), 3u * 64u);
}

TEST(Uniform, TakesTheFirstWordsFromTheTop) {
  EXPECT_EQ(uniform(0, 0, 0), static_cast<float>(0x6627e8) * 0x1p-24f);
  EXPECT_EQ(uniform_double(0, 0, 0), static_cast<double>(0x6627e8d5e169c58dull >> 11) * 0x1p-53);
}

TEST(Uniform, IsUniform) {
  constexpr int kDraws = 100000, kBins = 50;
  std::vector<int> counts(kBins), counts_double(kBins);
  double sum = 0.0;
  for (int i = 0; i < kDraws; ++i) {
    const float u = uniform(7, 3, static_cast<uint64_t>(i));
    const double v = uniform_double(8, 3, static_cast<uint64_t>(i));
    ASSERT_TRUE(u >= 0.0f && u < 1.0f && v >= 0.0 && v < 1.0);
    ++counts[static_cast<size_t>(u * kBins)];
    ++counts_double[static_cast<size_t>(v * kBins)];
    sum += v;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 4.0 / std::sqrt(12.0 * kDraws));
  for (const std::vector<int>& observed : {counts, counts_double}) {
    double chi_square = 0.0;
    for (const int n : observed) chi_square += std::pow(n - kDraws / kBins, 2) / (kDraws / kBins);
    EXPECT_LT(chi_square, 95.0);  // 49 degrees of freedom: p < 1e-4 above it
    EXPECT_GT(chi_square, 20.0);  // too even is wrong as well
  }
}

TEST(Normal, HasTheMomentsOfANormal) {
  constexpr int kDraws = 200000;
  double sum = 0.0, squares = 0.0, cubes = 0.0, fourths = 0.0, beyond_two = 0.0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = static_cast<double>(normal(11, 2, static_cast<uint64_t>(i)));
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
    beyond_two += std::abs(x) > 2.0;
  }
  const double error = 4.0 / std::sqrt(kDraws);  // four standard errors of a quantity of unit variance
  EXPECT_NEAR(sum / kDraws, 0.0, error);
  EXPECT_NEAR(squares / kDraws, 1.0, error * std::sqrt(2.0));
  EXPECT_NEAR(cubes / kDraws, 0.0, error * std::sqrt(15.0));
  EXPECT_NEAR(fourths / kDraws, 3.0, error * std::sqrt(96.0));
  EXPECT_NEAR(beyond_two / kDraws, 0.0455, error * 0.21);
}

TEST(Normal, NeighboursDoNotCorrelate) {
  constexpr int kDraws = 100000;
  double along_position = 0.0, along_stream = 0.0, along_seed = 0.0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double x = static_cast<double>(normal(1, 1, i));
    along_position += x * static_cast<double>(normal(1, 1, i + 1));
    along_stream += x * static_cast<double>(normal(1, 2, i));
    along_seed += x * static_cast<double>(normal(2, 1, i));
  }
  const double error = 4.0 * std::sqrt(kDraws);
  EXPECT_NEAR(along_position, 0.0, error);
  EXPECT_NEAR(along_stream, 0.0, error);
  EXPECT_NEAR(along_seed, 0.0, error);
}

}  // namespace
}  // namespace lapidary
