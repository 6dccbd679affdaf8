// Comparators that say where it went wrong. Each is a predicate first, so that a test can show that it fails
// when it must.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/function_ref.h"

namespace lapidary::test {

// |actual - expected| <= tolerance * max(1, |expected|) everywhere, and equal sizes. NaN is never close. The
// failure names the first bad index with both values, how many are bad, and the worst.
testing::AssertionResult is_close(std::span<const float> actual, std::span<const float> expected,
                                  double tolerance);
void expect_close(std::span<const float> actual, std::span<const float> expected, double tolerance,
                  std::string_view label);

// The largest |actual - expected| / max(1, |expected|); infinite when a NaN is on one side or the sizes
// differ. For reports.
double worst_difference(std::span<const float> actual, std::span<const float> expected);

// Bit for bit: -0 is not 0, and a NaN is itself.
testing::AssertionResult is_same_bits(std::span<const float> actual, std::span<const float> expected);
void expect_same_bits(std::span<const float> actual, std::span<const float> expected, std::string_view label);

// `action` throws a lapidary::Error with this code and `part` in its message.
testing::AssertionResult throws_error(FunctionRef<void()> action, ErrorCode code, std::string_view part);
void expect_error(FunctionRef<void()> action, ErrorCode code, std::string_view part,
                  std::string_view label = "");

}  // namespace lapidary::test
