#include "support/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace lapidary::test {
namespace {

double difference(float actual, float expected) {
  const double scale = std::max(1.0, std::abs(static_cast<double>(expected)));
  if (actual == expected) return 0;  // equal infinities too
  const double d = std::abs(static_cast<double>(actual) - static_cast<double>(expected)) / scale;
  return std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
}

testing::AssertionResult size_mismatch(size_t actual, size_t expected) {
  return testing::AssertionFailure() << fmt::format("{} values, expected {}", actual, expected);
}

}  // namespace

testing::AssertionResult is_close(std::span<const float> actual, std::span<const float> expected,
                                  double tolerance) {
  if (actual.size() != expected.size()) return size_mismatch(actual.size(), expected.size());
  size_t first = actual.size(), bad = 0, worst = 0;
  double worst_value = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double d = difference(actual[i], expected[i]);
    if (d <= tolerance) continue;
    if (bad++ == 0) first = i;
    if (d > worst_value) {
      worst_value = d;
      worst = i;
    }
  }
  if (bad == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << fmt::format(
             "{} of {} values differ by more than {} * max(1, |expected|): first [{}] = {}, expected {}; "
             "worst [{}] = {}, "
             "expected {} (difference {:.3g})",
             bad, actual.size(), tolerance, first, actual[first], expected[first], worst, actual[worst],
             expected[worst], worst_value);
}

void expect_close(std::span<const float> actual, std::span<const float> expected, double tolerance,
                  std::string_view label) {
  EXPECT_TRUE(is_close(actual, expected, tolerance)) << label;
}

double worst_difference(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i) worst = std::max(worst, difference(actual[i], expected[i]));
  return worst;
}

testing::AssertionResult is_same_bits(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size()) return size_mismatch(actual.size(), expected.size());
  size_t first = actual.size(), bad = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::bit_cast<uint32_t>(actual[i]) != std::bit_cast<uint32_t>(expected[i]) && bad++ == 0) first = i;
  }
  if (bad == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << fmt::format(
             "{} of {} values differ in bits: first [{}] = {} ({:08x}), expected {} ({:08x})", bad,
             actual.size(), first, actual[first], std::bit_cast<uint32_t>(actual[first]), expected[first],
             std::bit_cast<uint32_t>(expected[first]));
}

void expect_same_bits(std::span<const float> actual, std::span<const float> expected,
                      std::string_view label) {
  EXPECT_TRUE(is_same_bits(actual, expected)) << label;
}

testing::AssertionResult throws_error(FunctionRef<void()> action, ErrorCode code, std::string_view part) {
  try {
    action();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    if (message.find(part) == std::string_view::npos) {
      return testing::AssertionFailure() << fmt::format("the message \"{}\" lacks \"{}\"", message, part);
    }
    if (error.code() != code) {
      return testing::AssertionFailure()
             << fmt::format("error code {}, expected {}; message \"{}\"", static_cast<int>(error.code()),
                            static_cast<int>(code), message);
    }
    return testing::AssertionSuccess();
  } catch (const std::exception& error) {
    return testing::AssertionFailure() << fmt::format("not a lapidary::Error: {}", error.what());
  }
  return testing::AssertionFailure() << fmt::format("nothing was thrown, expected an error with \"{}\"",
                                                    part);
}

void expect_error(FunctionRef<void()> action, ErrorCode code, std::string_view part, std::string_view label) {
  EXPECT_TRUE(throws_error(action, code, part)) << label;
}

}  // namespace lapidary::test
