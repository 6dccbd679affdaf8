// The comparators that other tests lean on fail when they must.
#include "support/compare.h"

#include <gtest/gtest-spi.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace lapidary::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Floats = std::vector<float>;

TEST(IsClose, AcceptsWithinTheToleranceOfTheLargerOfOneAndTheValue) {
  EXPECT_TRUE(is_close(Floats{0.0009f, 1000.9f}, Floats{0, 1000}, 1e-3));
  EXPECT_TRUE(is_close(Floats{kInfinity}, Floats{kInfinity}, 0));
  EXPECT_TRUE(is_close(Floats{}, Floats{}, 0));
}

TEST(IsClose, NamesTheFirstBadIndexAndBothValues) {
  const auto result = is_close(Floats{0, 1.5f, 7, 9}, Floats{0, 1, 7, 2}, 0.1);
  EXPECT_FALSE(result);
  const std::string message = result.message();
  EXPECT_NE(message.find("2 of 4 values"), std::string::npos) << message;
  EXPECT_NE(message.find("first [1] = 1.5, expected 1"), std::string::npos) << message;
  EXPECT_NE(message.find("worst [3] = 9, expected 2"), std::string::npos) << message;
}

TEST(IsClose, RefusesNanInfinityAndOtherSizes) {
  EXPECT_FALSE(is_close(Floats{kNan}, Floats{0}, 1e9));
  EXPECT_FALSE(is_close(Floats{0}, Floats{kNan}, 1e9));
  EXPECT_FALSE(is_close(Floats{kNan}, Floats{kNan}, 1e9));
  EXPECT_FALSE(is_close(Floats{kInfinity}, Floats{1}, 1e9));
  EXPECT_FALSE(is_close(Floats{1}, Floats{kInfinity}, 1e9));
  EXPECT_FALSE(is_close(Floats{1}, Floats{1, 1}, 1e9));
  EXPECT_FALSE(is_close(Floats{}, Floats{1}, 1e9));
}

TEST(IsSameBits, TellsSignedZerosApartAndNansAlike) {
  EXPECT_TRUE(is_same_bits(Floats{0, kNan}, Floats{0, kNan}));
  const auto result = is_same_bits(Floats{1, -0.0f}, Floats{1, 0.0f});
  EXPECT_FALSE(result);
  EXPECT_NE(std::string(result.message()).find("first [1] = -0 (80000000), expected 0 (00000000)"),
            std::string::npos)
      << result.message();
  EXPECT_FALSE(is_same_bits(Floats{1}, Floats{1, 1}));
}

TEST(WorstDifference, IsRelativeToTheLargerOfOneAndTheValue) {
  EXPECT_DOUBLE_EQ(worst_difference(Floats{0.25f, 100}, Floats{0, 200}), 0.5);
  EXPECT_EQ(worst_difference(Floats{kNan}, Floats{0}), kInfinity);
  EXPECT_EQ(worst_difference(Floats{1}, Floats{}), kInfinity);
}

TEST(ThrowsError, WantsCodeAndWords) {
  const auto action = [] { fail(ErrorCode::data, "tensor {} is odd", 7); };
  EXPECT_TRUE(throws_error(action, ErrorCode::data, "tensor 7"));
  EXPECT_FALSE(throws_error(action, ErrorCode::data, "tensor 8"));
  EXPECT_FALSE(throws_error(action, ErrorCode::io, "tensor 7"));
  EXPECT_FALSE(throws_error([] {}, ErrorCode::data, ""));
  EXPECT_FALSE(throws_error([] { throw std::runtime_error("tensor 7"); }, ErrorCode::data, "tensor 7"));
}

TEST(Expectations, FailTheTestThatUsesThem) {
  EXPECT_NONFATAL_FAILURE(expect_close(Floats{1}, Floats{2}, 0.1, "layer 3"), "layer 3");
  EXPECT_NONFATAL_FAILURE(expect_same_bits(Floats{1}, Floats{2}, "row 4"), "row 4");
  EXPECT_NONFATAL_FAILURE(expect_error([] {}, ErrorCode::data, "odd", "case 5"), "case 5");
}

}  // namespace
}  // namespace lapidary::test
