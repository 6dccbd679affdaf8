#include "base/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/blocks.h"
#include "base/half.h"
#include "base/rng.h"
#include "base/tensor.h"
#include "support/compare.h"
#include "support/golden.h"

namespace lapidary {
namespace {

using test::expect_same_bits;
using test::Golden;

const Golden& goldens() {
  static const Golden golden(test::data_path("blocks/blocks.safetensors"));
  return golden;
}

constexpr DType kBlockTypes[] = {DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1,
                                 DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k};

std::vector<std::byte> encoded(DType dtype, std::span<const float> row) {
  std::vector<std::byte> bytes(row_bytes(dtype, row.size()));
  EXPECT_TRUE(encode_row(dtype, row, bytes));
  return bytes;
}

std::vector<float> recoded(DType dtype, std::span<const float> row) {
  std::vector<float> out(row.size());
  decode_row(dtype, encoded(dtype, row), out);
  return out;
}

double rms_difference(std::span<const float> a, std::span<const float> b) {
  double total = 0;
  for (size_t i = 0; i < a.size(); ++i) total += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(total / static_cast<double>(a.size()));
}

class Quantise : public testing::TestWithParam<DType> {
 protected:
  static std::string golden_name(const std::string& what) {
    std::string name(dtype_name(GetParam()));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
    return name + "." + what;
  }
};

// The goldens' blocks are those of llama.cpp's quantiser without an importance matrix.
TEST_P(Quantise, IsAtLeastAsCloseAsTheGoldens) {
  const std::vector<float> floats = goldens().floats("floats");
  const std::vector<float> theirs = goldens().floats(golden_name("values"));
  const size_t columns = static_cast<size_t>(goldens().shape("floats").back());
  double sum_ours = 0, sum_theirs = 0;
  for (size_t r = 0; r * columns < floats.size(); ++r) {
    const std::span<const float> row = std::span(floats).subspan(r * columns, columns);
    const double rms = rms_difference(row, std::vector<float>(columns));
    const double ours = rms_difference(row, recoded(GetParam(), row)),
                 other = rms_difference(row, std::span(theirs).subspan(r * columns, columns));
    // At 1e-7 all is a matter of a few subnormal numbers.
    EXPECT_LE(ours, (rms < 1e-6 ? 1.02 : 1.001) * other + 1e-7 * rms)
        << dtype_name(GetParam()) << ", row " << r << " of rms " << rms;
    if (rms == 0) continue;
    sum_ours += ours / rms;
    sum_theirs += other / rms;
  }
  std::printf("%s: mean RMS error over RMS %.5f, llama.cpp %.5f\n",
              std::string(dtype_name(GetParam())).c_str(), sum_ours / 11, sum_theirs / 11);
}

TEST_P(Quantise, IsCloserThanPlainRounding) {
  const GroupLayout layout = group_layout(GetParam());
  std::vector<float> row(2048);
  for (size_t i = 0; i < row.size(); ++i) row[i] = normal(1, 0, i);
  double plain = 0;
  for (size_t start = 0; start < row.size(); start += static_cast<size_t>(layout.group)) {
    const auto group = std::span(row).subspan(start, static_cast<size_t>(layout.group));
    const auto [low, high] = std::minmax_element(group.begin(), group.end());
    const float step = layout.has_minimum ? (*high - *low) / static_cast<float>(layout.q_max)
                                          : std::max(*high, -*low) / static_cast<float>(layout.q_max);
    const float origin = layout.has_minimum ? *low : 0;
    for (const float x : group) {
      const float error = x - (std::nearbyint((x - origin) / step) * step + origin);
      plain += double{error} * error;
    }
  }
  plain = std::sqrt(plain / static_cast<double>(row.size()));
  const double ours = rms_difference(row, recoded(GetParam(), row));
  // Super-blocks round the scales themselves to few bits, which plain rounding here does not.
  const bool super = row_bytes(GetParam(), 256) % dtype_info(GetParam()).block_bytes == 0 &&
                     dtype_info(GetParam()).block_elements == 256;
  EXPECT_LT(ours, super ? 1.02 * plain : 1.0001 * plain);
  std::printf("%s: RMS error %.5f, plain rounding %.5f\n", std::string(dtype_name(GetParam())).c_str(), ours,
              plain);
}

// What a format holds goes back into it unchanged.
TEST_P(Quantise, KeepsWhatTheFormatHolds) {
  const std::vector<float> values = goldens().floats(golden_name("values"));
  const size_t columns = static_cast<size_t>(goldens().shape(golden_name("values")).back());
  const size_t block = dtype_info(GetParam()).block_elements;
  int64_t kept = 0, all = 0;
  for (size_t start = 0; start < values.size(); start += block) {
    const std::span<const float> part = std::span(values).subspan(start, block);
    const std::vector<float> again = recoded(GetParam(), part);
    double rms = rms_difference(part, std::vector<float>(block));
    ++all;
    if (rms_difference(part, again) <= 1e-7 * rms) ++kept;
  }
  std::printf("%s: %lld of %lld blocks are fixed points\n", std::string(dtype_name(GetParam())).c_str(),
              static_cast<long long>(kept), static_cast<long long>(all));
  EXPECT_EQ(columns % block, 0u);
  if (block == 32) {
    EXPECT_EQ(kept, all);
  }
}

TEST_P(Quantise, RefusesWhatItCannotHold) {
  std::vector<float> row(512, 0.5f);
  std::vector<std::byte> bytes(row_bytes(GetParam(), row.size()));
  EXPECT_TRUE(encode_row(GetParam(), row, bytes));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(), 1e6f}) {
    row[300] = bad;
    EXPECT_FALSE(encode_row(GetParam(), row, bytes)) << bad;
  }
}

TEST_P(Quantise, HoldsExtremes) {
  std::vector<float> row(512);
  for (size_t i = 0; i < row.size(); ++i) row[i] = (i % 2 == 0 ? 1.0f : -1.0f) * 65504.0f;
  for (const float x : recoded(GetParam(), row)) EXPECT_NEAR(std::fabs(x), 65504.0f, 17000.0f);
  for (const float tiny : {1e-30f, 1e-45f}) {
    for (float& x : row) x = tiny;
    for (const float x : recoded(GetParam(), row)) EXPECT_LE(std::fabs(x), 1e-7f);
  }
  std::fill(row.begin(), row.end(), 0.0f);
  for (const float x : recoded(GetParam(), row)) EXPECT_EQ(x, 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Types, Quantise, testing::ValuesIn(kBlockTypes),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

TEST(EncodeRow, RoundsFloatsToNearestEven) {
  const std::vector<float> row = {1.0f, 1.00390625f, 1.01171875f, -0.0f, 3.0e38f, 1e-40f};
  EXPECT_EQ(recoded(DType::bf16, row),
            (std::vector<float>{1.0f, 1.0f, 1.015625f, -0.0f, bf16_to_float(float_to_bf16(3.0e38f)),
                                bf16_to_float(float_to_bf16(1e-40f))}));
  const std::vector<float> halves = {1.0f, 1.00048828125f, 1.00146484375f, 65504.0f};
  EXPECT_EQ(recoded(DType::f16, halves), (std::vector<float>{1.0f, 1.0f, 1.001953125f, 65504.0f}));
  expect_same_bits(recoded(DType::f32, row), row, "f32");
  std::vector<std::byte> bytes(2);
  EXPECT_FALSE(encode_row(DType::f16, std::vector<float>{65520.0f}, bytes));
  EXPECT_FALSE(encode_row(DType::bf16, std::vector<float>{3.4e38f}, bytes));
}

}  // namespace
}  // namespace lapidary
