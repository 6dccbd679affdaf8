#include "base/dtype.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "support/compare.h"

namespace lapidary {
namespace {

using test::expect_error;

constexpr uint8_t kCount = static_cast<uint8_t>(DType::q6_k) + 1;

TEST(DTypes, NamesAreUniqueAndComeBack) {
  std::set<std::string_view> names;
  for (uint8_t i = 0; i < kCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_TRUE(names.insert(dtype_name(dtype)).second) << dtype_name(dtype);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_name("fp32"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
  EXPECT_EQ(dtype_from_name("Q4_K"), std::nullopt);  // our names are lower case
}

TEST(DTypes, SizesAreThoseOfTheFormats) {
  EXPECT_EQ(row_bytes(DType::f64, 3), 24u);
  EXPECT_EQ(row_bytes(DType::f32, 3), 12u);
  EXPECT_EQ(row_bytes(DType::bf16, 3), 6u);
  EXPECT_EQ(row_bytes(DType::boolean, 3), 3u);
  EXPECT_EQ(row_bytes(DType::q8_0, 64), 68u);
  EXPECT_EQ(row_bytes(DType::q4_k, 512), 288u);
  EXPECT_EQ(row_bytes(DType::q6_k, 0), 0u);
}

TEST(DTypes, OnlyThreeAreFloatWeights) {
  for (uint8_t i = 0; i < kCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(is_float(dtype), dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16)
        << dtype_name(dtype);
  }
}

TEST(DTypes, RefuseBrokenRowsAndUnknownNumbers) {
  expect_error([] { row_bytes(DType::q4_k, 128); }, ErrorCode::internal,
               "row of 128 q4_k elements: blocks hold 256");
  expect_error([] { row_bytes(DType::f32, std::numeric_limits<size_t>::max() / 2); }, ErrorCode::data,
               "its size in bytes overflows");
  expect_error([] { dtype_info(static_cast<DType>(200)); }, ErrorCode::internal,
               "200 is not a number format");
}

}  // namespace
}  // namespace lapidary
