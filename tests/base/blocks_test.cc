#include "base/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "support/compare.h"
#include "support/golden.h"

namespace lapidary {
namespace {

using test::expect_error;
using test::expect_same_bits;
using test::Golden;

const Golden& blocks() {
  static const Golden golden(test::data_path("blocks/blocks.safetensors"));
  return golden;
}

constexpr DType kTypes[] = {DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1,
                            DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k};

class Blocks : public testing::TestWithParam<DType> {
 protected:
  // "Q4_K.raw_blocks" for "raw_blocks"
  static std::string golden_name(const std::string& what) {
    std::string name(dtype_name(GetParam()));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    return name + "." + what;
  }
  // The golden's bytes seen as a tensor of the block format, shaped as the golden's values.
  static TensorView blocks_as_tensor(const std::string& prefix) {
    return {GetParam(), blocks().shape(golden_name(prefix + "values")),
            blocks().view(golden_name(prefix + "blocks")).bytes};
  }
};

TEST_P(Blocks, DecodeToTheBitsOfTheGoldens) {
  expect_same_bits(to_floats(blocks_as_tensor("")), blocks().floats(golden_name("values")), "quantised rows");
  expect_same_bits(to_floats(blocks_as_tensor("raw_")), blocks().floats(golden_name("raw_values")),
                   "random bytes");
}

TEST_P(Blocks, GoldensHoldTheCornersThatMatter) {
  const std::vector<float> values = blocks().floats(golden_name("raw_values"));
  const auto has = [&](auto predicate) { return std::any_of(values.begin(), values.end(), predicate); };
  EXPECT_TRUE(has([](float v) { return v < 0; }));
  EXPECT_TRUE(has([](float v) { return v > 0; }));
  if (!group_layout(GetParam()).has_minimum) {
    EXPECT_TRUE(has([](float v) { return std::bit_cast<uint32_t>(v) == 0x80000000u; }))
        << "no negative scale times a code of 0";
  }
}

TEST_P(Blocks, UnpackedPartsGiveTheBitsOfDecodeRow) {
  const GroupLayout layout = group_layout(GetParam());
  for (const std::string prefix : {"", "raw_"}) {
    const TensorView tensor = blocks_as_tensor(prefix);
    const auto n = static_cast<size_t>(tensor.columns()), group = static_cast<size_t>(layout.group);
    int least = 1000, greatest = -1000;
    for (int64_t r = 0; r < tensor.rows(); ++r) {
      std::vector<float> rebuilt(n), decoded(n);
      UnpackedRow parts(GetParam(), n);
      unpack_row(GetParam(), tensor.row(r), parts.parts());
      decode_row(GetParam(), tensor.row(r), decoded);
      const size_t block = dtype_info(GetParam()).block_elements;
      for (size_t i = 0; i < n; ++i) {
        float scale = f16_to_float(parts.d[i / block]);
        if (layout.super_scales) scale *= parts.c[i / group];
        rebuilt[i] = scale * static_cast<float>(parts.q[i]);
        if (layout.has_minimum) {
          const float m = f16_to_float(parts.m[i / block]);
          rebuilt[i] += layout.super_scales ? -(m * parts.b[i / group]) : m;
        }
        least = std::min<int>(least, parts.q[i]);
        greatest = std::max<int>(greatest, parts.q[i]);
      }
      expect_same_bits(rebuilt, decoded, prefix + "row " + std::to_string(r));
    }
    EXPECT_GE(least, layout.q_min);
    EXPECT_LE(greatest, layout.q_max);
    if (prefix ==
        "raw_") {  // random bytes hold every code, so the range that is promised is the range that occurs
      EXPECT_EQ(least, layout.q_min);
      EXPECT_EQ(greatest, layout.q_max);
    }
  }
}

TEST_P(Blocks, MayLieAtAnyAddress) {
  const TensorView tensor = blocks_as_tensor("raw_");
  std::vector<std::byte> shifted(tensor.bytes.size() + 1);
  std::copy(tensor.bytes.begin(), tensor.bytes.end(), shifted.begin() + 1);
  const TensorView view{tensor.dtype, tensor.shape, std::span<const std::byte>(shifted).subspan(1)};
  expect_same_bits(to_floats(view), to_floats(tensor), "shifted by one byte");
}

TEST_P(Blocks, RefuseSizesThatAreNotWholeRows) {
  const size_t n = dtype_info(GetParam()).block_elements, bytes = dtype_info(GetParam()).block_bytes;
  std::vector<std::byte> row(bytes);
  std::vector<float> out(n);
  expect_error([&] { decode_row(GetParam(), std::span(row).first(bytes - 1), out); }, ErrorCode::internal,
               "expected " + std::to_string(bytes) + " bytes, got " + std::to_string(bytes - 1));
  expect_error([&] { decode_row(GetParam(), row, std::span(out).first(n - 1)); }, ErrorCode::internal,
               "blocks hold " + std::to_string(n));
  UnpackedRow parts(GetParam(), n);
  parts.d.push_back(0);
  expect_error([&] { unpack_row(GetParam(), row, parts.parts()); }, ErrorCode::internal, "unpack_row of");
}

INSTANTIATE_TEST_SUITE_P(AllTypes, Blocks, testing::ValuesIn(kTypes),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST(BlockFormats, AreExactlyTheQuantisedTypes) {
  for (uint8_t i = 0; i <= static_cast<uint8_t>(DType::q6_k); ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool listed = std::find(std::begin(kTypes), std::end(kTypes), dtype) != std::end(kTypes);
    EXPECT_EQ(is_quantised(dtype), listed) << dtype_name(dtype);
    if (!listed) expect_error([&] { group_layout(dtype); }, ErrorCode::internal, "is not a block format");
  }
}

TEST(DecodeRow, ReadsPlainFloatsAtAnyAddress) {
  // 1.5, -2, and the smallest f16 subnormal, after one byte of shift
  const std::vector<uint8_t> f16 = {0xff, 0x00, 0x3e, 0x00, 0xc0, 0x01, 0x00};
  std::vector<float> out(3);
  decode_row(DType::f16, std::as_bytes(std::span(f16)).subspan(1), out);
  expect_same_bits(out, std::vector<float>{1.5f, -2.0f, 0x1p-24f}, "f16");
  const std::vector<uint8_t> bf16 = {0xff, 0xc0, 0x3f, 0x00, 0xc0, 0x80, 0x7f};
  decode_row(DType::bf16, std::as_bytes(std::span(bf16)).subspan(1), out);
  expect_same_bits(out, std::vector<float>{1.5f, -2.0f, std::bit_cast<float>(0x7f800000u)}, "bf16");
  const std::vector<uint8_t> f32 = {0xff, 0x00, 0x00, 0xc0, 0x3f};
  decode_row(DType::f32, std::as_bytes(std::span(f32)).subspan(1), std::span(out).first(1));
  EXPECT_EQ(out[0], 1.5f);
}

TEST(DecodeRow, RefusesIntegers) {
  std::vector<std::byte> bytes(8);
  std::vector<float> out(1);
  expect_error([&] { decode_row(DType::i64, bytes, out); }, ErrorCode::internal,
               "i64 elements do not decode to float");
}

}  // namespace
}  // namespace lapidary
