// The reference's own decoding of block formats against blocks that others decoded.
#include "reference/dequantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "support/compare.h"
#include "support/golden.h"

namespace lapidary::test {
namespace {

std::vector<float> floats(const at::Tensor& tensor) {
  const at::Tensor t = tensor.to(at::kFloat).contiguous();
  return {t.data_ptr<float>(), t.data_ptr<float>() + t.numel()};
}

class ReferenceBlocks : public testing::TestWithParam<DType> {};

TEST_P(ReferenceBlocks, DecodeToTheBitsOfTheGoldens) {
  const Golden golden(data_path("blocks/blocks.safetensors"));
  std::string type(dtype_name(GetParam()));
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const std::string prefix : {"", "raw_"}) {
    const std::string values = type + "." + prefix + "values";
    const TensorView view{GetParam(), golden.shape(values),
                          golden.view(type + "." + prefix + "blocks").bytes};
    expect_same_bits(floats(reference::dequantise(view)), golden.floats(values), values);
  }
}

INSTANTIATE_TEST_SUITE_P(, ReferenceBlocks,
                         testing::Values(DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1,
                                         DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

TEST(ReferenceDequantise, FloatsKeepTheirBitsAtAnyAddress) {
  std::vector<std::byte> bytes(9);
  const float first = 1.5F, second = -0.0F;
  std::memcpy(bytes.data() + 1, &first, 4);
  std::memcpy(bytes.data() + 5, &second, 4);
  const TensorView view{DType::f32, {2}, std::span<const std::byte>(bytes).subspan(1)};
  expect_same_bits(floats(reference::dequantise(view)), std::vector<float>{first, second}, "odd address");
}

TEST(ReferenceDequantise, OtherTypesAreRefusedByName) {
  const std::vector<std::byte> bytes(8);
  expect_error([&] { reference::dequantise({DType::i64, {1}, bytes}); }, ErrorCode::unsupported, "i64");
}

}  // namespace
}  // namespace lapidary::test
