#include "base/tensor.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/compare.h"

namespace lapidary {
namespace {

using test::expect_error;

TEST(Shapes, AreToldInBrackets) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({7}), "[7]");
  EXPECT_EQ(shape_text({512, 256}), "[512, 256]");
}

TEST(ElementCount, MultipliesSizes) {
  EXPECT_EQ(element_count({}, "t"), 1);
  EXPECT_EQ(element_count({2, 3, 4}, "t"), 24);
  EXPECT_EQ(element_count({2, 0, 4}, "t"), 0);
  EXPECT_EQ(element_count({std::numeric_limits<int64_t>::max(), 1}, "t"),
            std::numeric_limits<int64_t>::max());
}

TEST(ElementCount, RefusesNegativeSizesAndOverflow) {
  const int64_t big = int64_t{1} << 32;
  expect_error(
      [&] {
        element_count({4, -1}, "blk.0");
      },
      ErrorCode::data, "blk.0: shape [4, -1] has a negative size");
  expect_error(
      [&] {
        element_count({big, big}, "blk.0");
      },
      ErrorCode::data, "blk.0: the number of elements of shape [4294967296, 4294967296] overflows");
  // A zero hides no overflow, wherever it stands: rows() multiplies a part of the sizes.
  expect_error([&] { element_count({big, big, 0}, "t"); }, ErrorCode::data, "overflows");
  expect_error([&] { element_count({0, big, big}, "t"); }, ErrorCode::data, "overflows");
}

TEST(TensorViews, HaveRowsOfTheLastSize) {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const TensorView view{DType::f32, {2, 2, 3}, std::as_bytes(std::span(values))};
  EXPECT_EQ(view.rows(), 4);
  EXPECT_EQ(view.columns(), 3);
  EXPECT_EQ(view.row(2).data(), view.bytes.data() + 24);
  EXPECT_EQ(view.row(2).size(), 12u);
  EXPECT_EQ(to_floats(view), values);
  expect_error([&] { view.row(4); }, ErrorCode::internal, "row 4 of a tensor of shape [2, 2, 3]");
  expect_error([&] { view.row(-1); }, ErrorCode::internal, "row -1");
}

TEST(TensorViews, MayBeVectorsScalarsOrEmpty) {
  const std::vector<float> value = {42};
  const auto bytes = std::as_bytes(std::span(value));
  EXPECT_EQ((TensorView{DType::f32, {1}, bytes}.rows()), 1);
  const TensorView scalar{DType::f32, {}, bytes};
  EXPECT_EQ(scalar.rows(), 1);
  EXPECT_EQ(scalar.columns(), 1);
  EXPECT_EQ(to_floats(scalar), value);
  EXPECT_TRUE(to_floats(TensorView{DType::f32, {3, 0}, {}}).empty());
  EXPECT_TRUE(to_floats(TensorView{DType::q4_0, {0, 32}, {}}).empty());
}

TEST(TensorViews, RefuseToDecodeTooFewBytes) {
  const std::vector<float> value = {42};
  const TensorView view{DType::f32, {2, 1}, std::as_bytes(std::span(value))};
  expect_error([&] { to_floats(view); }, ErrorCode::internal,
               "row 1 of f32 [2, 1]: expected 4 bytes at 4, got a view of 4");
}

}  // namespace
}  // namespace lapidary
