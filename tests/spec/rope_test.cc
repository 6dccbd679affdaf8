#include <gtest/gtest.h>

#include <cmath>

#include "spec/model_spec.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

TEST(Rope, PlainIsThetaToTheMinusTwoIOverHeadDim) {
  RopeSpec rope;
  rope.theta = 1e4;
  const auto f = rope_frequencies(rope, 8);
  ASSERT_EQ(f.size(), 4u);
  EXPECT_DOUBLE_EQ(f[0], 1.0);
  EXPECT_DOUBLE_EQ(f[1], 0.1);
  EXPECT_DOUBLE_EQ(f[2], 0.01);
  EXPECT_DOUBLE_EQ(f[3], 0.001);
}

// Global layers of Gemma 4: exponent over the whole head, 64 pairs turn, 192 stand still.
TEST(Rope, ProportionalTurnsTheFirstPairsOnly) {
  RopeSpec rope;
  rope.kind = RopeKind::proportional;
  rope.theta = 1e6;
  rope.partial_rotary_factor = 0.25;
  const auto f = rope_frequencies(rope, 512);
  ASSERT_EQ(f.size(), 256u);
  for (size_t i = 0; i < 64; ++i)
    EXPECT_DOUBLE_EQ(f[i], std::pow(1e6, -2.0 * static_cast<double>(i) / 512)) << i;
  for (size_t i = 64; i < 256; ++i) EXPECT_EQ(f[i], 0) << i;
}

// The three regions of the blend, worked out by hand: original length 64, factor 8, bounds 1 and 4, theta
// 500000, head 16.
TEST(Rope, Llama3StretchesSlowPairsAndKeepsFastOnes) {
  RopeSpec rope;
  rope.kind = RopeKind::llama3;
  rope.theta = 500000;
  rope.factor = 8;
  rope.original_max_position = 64;
  const auto f = rope_frequencies(rope, 16);
  EXPECT_DOUBLE_EQ(f[0], 1.0);  // 64 / 2pi = 10.2 turns: above 4
  const double f1 = std::pow(500000, -0.125), turns = 64 * f1 / (2 * M_PI);
  ASSERT_GT(turns, 1);
  ASSERT_LT(turns, 4);
  const double keep = (turns - 1) / 3;
  EXPECT_DOUBLE_EQ(f[1], f1 / 8 * (1 - keep) + f1 * keep);
  for (size_t i = 2; i < 8; ++i)
    EXPECT_DOUBLE_EQ(f[i], std::pow(500000, -0.125 * static_cast<double>(i)) / 8) << i;
}

TEST(Rope, DivisorsDivideAndStopPairs) {
  RopeSpec rope;
  rope.kind = RopeKind::divisors;
  rope.theta = 1e4;
  rope.divisors = {1, 4, 1e30f, 2};
  const auto f = rope_frequencies(rope, 8);
  EXPECT_DOUBLE_EQ(f[0], 1.0);
  EXPECT_DOUBLE_EQ(f[1], 0.025);
  EXPECT_EQ(f[2], 0);
  EXPECT_DOUBLE_EQ(f[3], 0.0005);
}

TEST(Rope, RefusesOddHeadsAndWrongDivisorCounts) {
  expect_error([] { rope_frequencies({}, 7); }, ErrorCode::data,
               "rope: head_dim: expected a positive even number, got 7");
  RopeSpec rope;
  rope.kind = RopeKind::divisors;
  rope.divisors = {1, 1};
  expect_error([&] { rope_frequencies(rope, 8); }, ErrorCode::data,
               "rope.divisors: expected 4 numbers (head_dim / 2), got 2");
}

}  // namespace
}  // namespace lapidary::test
