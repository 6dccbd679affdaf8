// Every kernel of every ISA that this machine has gives the bits of its twin in scalar.cc, over odd sizes;
// and scalar.cc gives the numbers.
#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "base/blocks.h"
#include "base/error.h"
#include "base/half.h"
#include "base/rng.h"

namespace lapidary::kernels {

namespace avx512_emulated {
extern const Kernels kTable;
}  // namespace avx512_emulated
namespace amx_emulated {
extern const Kernels kTable;  // integer products only
}  // namespace amx_emulated

namespace {

constexpr DType kWeightTypes[] = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0, DType::q4_0,
                                  DType::q4_1, DType::q5_0, DType::q5_1, DType::q2_k, DType::q3_k,
                                  DType::q4_k, DType::q5_k, DType::q6_k};

std::vector<float> normals(size_t n, uint64_t stream, float scale = 1) {
  std::vector<float> x(n);
  double squares = 0;
  for (size_t i = 0; i < n; i++) squares += std::pow(x[i] = scale * normal(7, stream, i), 2);
  EXPECT_TRUE(n < 8 || squares > 0) << "constant data cannot test anything";
  return x;
}

std::vector<const Kernels*> fast_isas() {
  std::vector<const Kernels*> found;
  if (isa_available(Isa::avx2))
    found.push_back(&avx512_emulated::kTable);  // compiled for AVX2, so it needs that
  for (Isa isa : kIsas)
    if (isa != Isa::scalar && isa_available(isa)) found.push_back(&kernels(isa));
  return found;
}

std::vector<const Kernels*> integer_isas() {
  std::vector<const Kernels*> found = fast_isas();
  if (isa_available(Isa::avx2)) found.push_back(&amx_emulated::kTable);
  return found;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); i++)
    ASSERT_EQ(std::memcmp(&a[i], &b[i], 4), 0)
        << what << ": element " << i << " is " << a[i] << ", scalar says " << b[i];
}

// Random rows of a weight type: floats from the normal distribution, blocks from random bytes whose values
// stay below 100.
struct Weight {
  std::vector<std::byte> bytes;
  TensorView view;
};

std::vector<std::byte> random_block(DType dtype, uint64_t stream) {
  const DTypeInfo& info = dtype_info(dtype);
  std::vector<std::byte> block(info.block_bytes);
  std::vector<float> values(info.block_elements);
  for (uint64_t attempt = 0;; attempt++) {
    for (size_t i = 0; i < block.size(); i++)
      block[i] = static_cast<std::byte>(philox(attempt, stream, i)[0]);
    decode_row(dtype, block, values);
    if (std::all_of(values.begin(), values.end(), [](float x) { return std::fabs(x) < 100; })) return block;
  }
}

Weight random_weight(DType dtype, int64_t rows, int64_t columns) {
  Weight w;
  if (is_quantised(dtype)) {
    const auto blocks = static_cast<uint64_t>(rows * columns) / dtype_info(dtype).block_elements;
    for (uint64_t b = 0; b < blocks; b++) {
      const auto block = random_block(dtype, b);
      w.bytes.insert(w.bytes.end(), block.begin(), block.end());
    }
  } else {
    for (float x : normals(static_cast<size_t>(rows * columns), 3)) {
      const uint16_t h = dtype == DType::bf16 ? float_to_bf16(x) : float_to_f16(x);
      const auto* p = dtype == DType::f32 ? reinterpret_cast<const std::byte*>(&x)
                                          : reinterpret_cast<const std::byte*>(&h);
      w.bytes.insert(w.bytes.end(), p, p + (dtype == DType::f32 ? 4 : 2));
    }
  }
  w.view = {dtype, {rows, columns}, w.bytes};
  return w;
}

struct Packed {
  std::vector<std::byte> bytes;
  Panels panels;
};

Packed pack(const TensorView& view) {
  Packed p;
  p.panels = plan_panels(view);
  p.bytes.resize(p.panels.bytes() + 64);
  EXPECT_FALSE(pack_panels(view, p.panels, 0, p.panels.n_panels(), p.bytes.data()));
  p.panels.data = p.bytes.data();
  return p;
}

class EveryWeightType : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, EveryWeightType, ::testing::ValuesIn(kWeightTypes),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(EveryWeightType, PanelsHoldExactlyWhatTheBlocksDecodeTo) {
  const Weight w = random_weight(GetParam(), 19, 512);
  const Packed p = pack(w.view);
  std::vector<float> row(512);
  for (int64_t n = 0; n < 19; n++) {
    decode_row(GetParam(), w.view.row(n), row);
    for (int64_t k = 0; k < 512; k++) {
      const float packed = panel_weight(p.panels, n, k);
      ASSERT_EQ(std::memcmp(&packed, &row[static_cast<size_t>(k)], 4), 0) << "row " << n << ", column " << k;
    }
  }
}

TEST_P(EveryWeightType, MatmulGivesTheScalarBitsForAnyNumberOfRowsAndOutputs) {
  for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{1, 256}, {17, 512}, {100, 768}}) {
    const Weight w = random_weight(GetParam(), outputs, inputs);
    const Packed p = pack(w.view);
    for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 13, 101}) {
      if (m > 7 && outputs > 17) continue;  // the plain loops are slow
      const auto x = normals(static_cast<size_t>(m * (inputs + 3)), 5);
      const auto size = static_cast<size_t>(m * outputs);
      std::vector<float> expected(size, -1), got(size, -2);
      scalar::kTable.matmul(p.panels, 0, p.panels.n_panels(), x.data(), inputs + 3, m, expected.data(),
                            outputs);
      for (const Kernels* k : fast_isas()) {
        k->matmul(p.panels, 0, p.panels.n_panels(), x.data(), inputs + 3, m, got.data(), outputs);
        expect_same_bits(got, expected,
                         fmt::format("{} outputs, {} inputs, {} rows, {}", outputs, inputs, m, k->name));
      }
    }
  }
}

TEST_P(EveryWeightType, MatmulOfSomePanelsTouchesOnlyTheirOutputs) {
  const Weight w = random_weight(GetParam(), 70, 256);
  const Packed p = pack(w.view);
  const auto x = normals(256, 5);
  std::vector<float> all(70), part(70, -7);
  for (const Kernels* k : {&scalar::kTable, &kernels()}) {
    k->matmul(p.panels, 0, 5, x.data(), 256, 1, all.data(), 70);
    std::fill(part.begin(), part.end(), -7.0f);
    k->matmul(p.panels, 1, 3, x.data(), 256, 1, part.data(), 70);
    for (size_t n = 0; n < 70; n++) ASSERT_EQ(part[n], n >= 16 && n < 48 ? all[n] : -7.0f) << n;
  }
}

TEST_P(EveryWeightType, ANumberThatIsNotFiniteIsFoundAndNamed) {
  Weight w = random_weight(GetParam(), 3, 256);
  if (is_quantised(
          GetParam())) {  // find a byte pair that makes the second row infinite: an f16 scale of all ones
    const size_t row = row_bytes(GetParam(), 256);
    for (size_t i = row; i < 2 * row; i++) w.bytes[i] = std::byte{0x7c};
  } else {
    const float bad = std::numeric_limits<float>::quiet_NaN();
    const uint16_t half = GetParam() == DType::bf16 ? float_to_bf16(bad) : float_to_f16(bad);
    if (GetParam() == DType::f32) std::memcpy(w.bytes.data() + 4 * (256 + 9), &bad, 4);
    else std::memcpy(w.bytes.data() + 2 * (256 + 9), &half, 2);
  }
  const Panels plan = plan_panels(w.view);
  std::vector<std::byte> out(plan.bytes());
  const auto found = pack_panels(w.view, plan, 0, plan.n_panels(), out.data());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->row, 1);
  if (!is_quantised(GetParam())) {
    EXPECT_EQ(found->column, 9);
  }
}

// ---- integer products
// ----------------------------------------------------------------------------------------------------------------

// Rows of activations as a kernel table makes them of floats.
struct Rows {
  std::vector<int8_t> hi, lo;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  QuantisedRows view;
};

Rows quantise_rows(const Kernels& k, const std::vector<float>& x, int64_t m, int64_t n, bool two_terms) {
  Rows rows;
  const auto size = static_cast<size_t>(padded_rows(m) * n);
  rows.hi.assign(size, 99);
  rows.lo.assign(two_terms ? size : 0, 99);
  rows.scales.assign(size / kQuantGroup + kMaxTileHeight, -1);
  rows.sums.assign(size / kSumGroup + kMaxTileHeight, -1);
  rows.view = {rows.hi.data(), two_terms ? rows.lo.data() : nullptr, rows.scales.data(), rows.sums.data(), n,
               tile_height(m)};
  for (int64_t r = 0; r < m; r++) k.quantise(x.data() + r * n, n, rows.view, r);
  return rows;
}

// Ordinary rows, and groups of 32 that are all zero, all tiny, all one value, or hold one giant.
std::vector<float> activations(int64_t m, int64_t n) {
  std::vector<float> x = normals(static_cast<size_t>(m * n), 5);
  for (size_t i = 0; i < x.size(); i++) {
    switch (i / 32 % 11) {
      case 3: x[i] = 0; break;
      case 5: x[i] *= 1e-35f; break;
      case 7: x[i] = -2.5f; break;
      case 9: x[i] *= i % 32 == 13 ? 1e6f : 1; break;
      default: break;
    }
  }
  return x;
}

TEST(QuantisedActivations, EveryIsaGivesTheScalarIntegers) {
  for (const auto& [m, two] :
       {std::pair{1, false}, {1, true}, {3, false}, {3, true}, {21, false}, {21, true}}) {
    const std::vector<float> x = activations(m, 704);
    const Rows expected = quantise_rows(scalar::kTable, x, m, 704, two);
    for (const Kernels* k : fast_isas()) {
      const Rows got = quantise_rows(*k, x, m, 704, two);
      EXPECT_EQ(got.hi, expected.hi) << k->name;
      EXPECT_EQ(got.lo, expected.lo) << k->name;
      EXPECT_EQ(got.sums, expected.sums) << k->name;
      expect_same_bits(got.scales, expected.scales, std::string(k->name));
    }
  }
}

// Wherever in its group the bad number is, the group's scale says so on every ISA, and so does every product.
TEST(QuantisedActivations, WhatIsNotFiniteStaysSo) {
  const Packed p = pack(random_weight(DType::q4_0, 16, 256).view);
  std::vector<const Kernels*> tables = fast_isas();
  tables.push_back(&scalar::kTable);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {64u, 79u, 80u, 95u}) {
      std::vector<float> x = normals(256, 5);
      x[at] = bad;
      for (const Kernels* k : tables) {
        for (const bool two : {false, true}) {
          const Rows rows = quantise_rows(*k, x, 1, 256, two);
          EXPECT_TRUE(std::isnan(rows.scales[2])) << k->name << ", element " << at;
          EXPECT_TRUE(std::isfinite(rows.scales[1]) && std::isfinite(rows.scales[3]));
          EXPECT_EQ(rows.sums[4], 0);
          std::vector<float> y(16);
          k->matmul_quantised(p.panels, 0, 1, rows.view, 1, y.data(), 16);
          EXPECT_TRUE(std::all_of(y.begin(), y.end(), [](float v) { return std::isnan(v); })) << k->name;
        }
      }
    }
  }
}

TEST(QuantisedActivations, LieWithinHalfAStepAndTheirSumsAreExact) {
  const std::vector<float> x = activations(1, 704);
  for (const bool two : {false, true}) {
    const Rows rows = quantise_rows(scalar::kTable, x, 1, 704, two);
    for (size_t i = 0; i < x.size(); i++) {
      const int q = two ? 128 * rows.hi[i] + rows.lo[i] : rows.hi[i];
      EXPECT_LE(std::abs(q), two ? 16256 : 127);
      const double step = rows.scales[i / 32];
      EXPECT_LE(std::fabs(q * step - double{x[i]}), 0.5001 * step + 1e-30) << i;
    }
    for (size_t g = 0; g < x.size() / 16; g++) {
      int sum = 0;
      for (size_t i = 16 * g; i < 16 * g + 16; i++) sum += two ? 128 * rows.hi[i] + rows.lo[i] : rows.hi[i];
      EXPECT_EQ(rows.sums[g], sum);
    }
  }
}

TEST_P(EveryWeightType, IntegerProductsGiveTheScalarBitsForAnyNumberOfRowsAndOutputs) {
  if (!is_quantised(GetParam())) return;  // floats have no integers
  for (const auto& [outputs, inputs] :
       {std::pair<int64_t, int64_t>{1, 256}, {17, 512}, {100, 768}, {33, 1280}}) {
    const Packed p = pack(random_weight(GetParam(), outputs, inputs).view);
    for (const bool two : {false, true}) {
      for (int64_t m : {1, 2, 3, 5, 8, 9, 16, 17, 21, 28, 40}) {
        if (m > 5 && outputs > 33) continue;  // the plain loops are slow
        const Rows x = quantise_rows(scalar::kTable, activations(m, inputs), m, inputs, two);
        std::vector<float> expected(static_cast<size_t>(m * outputs), -1), got(expected.size(), -2);
        scalar::kTable.matmul_quantised(p.panels, 0, p.panels.n_panels(), x.view, m, expected.data(),
                                        outputs);
        for (const Kernels* k : integer_isas()) {
          k->matmul_quantised(p.panels, 0, p.panels.n_panels(), x.view, m, got.data(), outputs);
          expect_same_bits(got, expected,
                           fmt::format("{} outputs, {} inputs, {} rows, {} terms, {}", outputs, inputs, m,
                                       two ? 2 : 1, k->name));
        }
      }
    }
  }
}

// Codes and activations at their ends: the sums of integers must not wrap.
TEST_P(EveryWeightType, IntegerProductsHoldTheGreatestValues) {
  if (!is_quantised(GetParam())) return;
  Weight w = random_weight(GetParam(), 16, 256);
  const Packed p = pack(w.view);
  std::vector<float> x(256);
  for (const float sign : {1.0f, -1.0f}) {
    std::fill(x.begin(), x.end(), sign);
    const Rows rows = quantise_rows(scalar::kTable, x, 1, 256, true);
    std::vector<float> y(16);
    for (const Kernels* k : integer_isas()) {
      k->matmul_quantised(p.panels, 0, 1, rows.view, 1, y.data(), 16);
      for (int64_t n = 0; n < 16; n++) {
        double truth = 0, size = 0;
        for (int64_t i = 0; i < 256; i++) {
          const double weight = panel_weight(p.panels, n, i);
          truth += weight * sign;
          size += std::fabs(weight);
        }
        EXPECT_NEAR(y[static_cast<size_t>(n)], truth, 2e-5 * size) << k->name;
      }
    }
  }
}

TEST_P(EveryWeightType, TwoTermsAreNearlyFloat) {
  if (!is_quantised(GetParam())) return;
  const Packed p = pack(random_weight(GetParam(), 16, 512).view);
  const std::vector<float> x = normals(512, 8);
  const Rows one = quantise_rows(kernels(), x, 1, 512, false),
             two = quantise_rows(kernels(), x, 1, 512, true);
  std::vector<float> y1(16), y2(16);
  kernels().matmul_quantised(p.panels, 0, 1, one.view, 1, y1.data(), 16);
  kernels().matmul_quantised(p.panels, 0, 1, two.view, 1, y2.data(), 16);
  double error1 = 0, error2 = 0, size = 0;
  for (int64_t n = 0; n < 16; n++) {
    double truth = 0;
    for (int64_t i = 0; i < 512; i++)
      truth += double{panel_weight(p.panels, n, i)} * x[static_cast<size_t>(i)];
    error1 += std::pow(y1[static_cast<size_t>(n)] - truth, 2);
    error2 += std::pow(y2[static_cast<size_t>(n)] - truth, 2);
    size += truth * truth;
  }
  EXPECT_LT(std::sqrt(error2 / size), 3e-4);
  EXPECT_LT(std::sqrt(error2), std::sqrt(error1) / 20) << "seven more bits";
}

TEST(FloatPanels, TakeAnyNumberOfInputs) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (int64_t inputs : {1, 7, 96, 257, 300}) {
      const Weight w = random_weight(dtype, 21, inputs);
      const Packed p = pack(w.view);
      const auto x = normals(static_cast<size_t>(9 * inputs), 5);
      for (int64_t m : {1, 4, 9}) {
        std::vector<float> expected(static_cast<size_t>(21 * m)), got(expected.size());
        scalar::kTable.matmul(p.panels, 0, 2, x.data(), inputs, m, expected.data(), 21);
        for (const Kernels* k : fast_isas()) {
          k->matmul(p.panels, 0, 2, x.data(), inputs, m, got.data(), 21);
          expect_same_bits(got, expected, fmt::format("{} {} inputs {} rows", dtype_name(dtype), inputs, m));
        }
      }
    }
}

// ---- elementwise
// -----------------------------------------------------------------------------------------------------------------

constexpr int64_t kSizes[] = {1, 15, 16, 17, 31, 64, 100, 257};

TEST(Elementwise, EveryIsaGivesTheScalarBits) {
  for (const Kernels* k : fast_isas())
    for (int64_t n : kSizes) {
      const auto size = static_cast<size_t>(n);
      const auto x = normals(size, 1, 4), y = normals(size, 2, 3);
      auto check = [&](const char* what, auto&& run) {
        std::vector<float> a = y, b = y;
        run(*k, a);
        run(scalar::kTable, b);
        expect_same_bits(a, b, fmt::format("{} of {}, {}", what, n, k->name));
      };
      check("gelu", [&](const Kernels& t, auto& out) { t.gelu_gate(x.data(), y.data(), n, out.data()); });
      check("silu", [&](const Kernels& t, auto& out) { t.silu_gate(x.data(), y.data(), n, out.data()); });
      check("add", [&](const Kernels& t, auto& out) { t.add(x.data(), n, out.data()); });
      check("add_scaled", [&](const Kernels& t, auto& out) { t.add_scaled(x.data(), 0.37f, n, out.data()); });
      check("scale", [&](const Kernels& t, auto& out) { t.scale(1.7f, n, out.data()); });
      check("softcap", [&](const Kernels& t, auto& out) { t.softcap(3.0f, n, out.data()); });
      check("softmax", [&](const Kernels& t, auto& out) { t.softmax(n, out.data()); });
      check("norm",
            [&](const Kernels& t, auto& out) { t.rms_norm(x.data(), y.data(), 1e-6f, n, out.data()); });
      check("norm without weight",
            [&](const Kernels& t, auto& out) { t.rms_norm(x.data(), nullptr, 1e-6f, n, out.data()); });
      if (n % 2 == 0) {
        check("rotate",
              [&](const Kernels& t, auto& out) { t.rotate(x.data(), x.data() + n / 2, n / 2, out.data()); });
      }
    }
}

double relative_error(double got, double expected) {
  return std::fabs(got - expected) / std::max(1e-30, std::fabs(expected));
}

TEST(Elementwise, ActivationsAreFloatAccurateOverTheWholeRange) {
  double worst_gelu = 0, worst_silu = 0, worst_cap = 0;
  for (int i = -40000; i <= 40000; i++) {
    const float x = static_cast<float>(i) * 5e-4f, one = 1;
    float g, s, c = x;
    scalar::kTable.gelu_gate(&x, &one, 1, &g);
    scalar::kTable.silu_gate(&x, &one, 1, &s);
    scalar::kTable.softcap(5, 1, &c);
    const double d = x;
    const double u = 2 * std::sqrt(2 / M_PI) * (d + 0.044715 * d * d * d);
    if (d > -5) worst_gelu = std::max(worst_gelu, relative_error(g, d / (1 + std::exp(-u))));
    worst_silu = std::max(worst_silu, relative_error(s, d / (1 + std::exp(-d))));
    worst_cap = std::max(worst_cap, relative_error(c, 5 * std::tanh(d / 5)));
  }
  EXPECT_LT(worst_gelu, 4e-6);  // the exponent's rounding is magnified where gelu is tiny; 1e-7 absolute
  EXPECT_LT(worst_silu, 1e-6);
  EXPECT_LT(worst_cap, 5e-7);
  float far[] = {-500, 500, -88.5f, 88.5f}, ones[] = {1, 1, 1, 1};
  scalar::kTable.silu_gate(far, ones, 4, far);
  EXPECT_NEAR(far[0], 0, 1e-30);
  EXPECT_EQ(far[1], 500);
}

TEST(Elementwise, NormAndSoftmaxMatchDoubles) {
  const auto x = normals(1000, 4, 2), w = normals(1000, 5);
  std::vector<float> y(1000), p = x;
  scalar::kTable.rms_norm(x.data(), w.data(), 1e-6f, 1000, y.data());
  scalar::kTable.softmax(1000, p.data());
  double squares = 0, total = 0;
  for (float v : x) squares += double{v} * v, total += std::exp(double{v});
  for (size_t i = 0; i < 1000; i++) {
    EXPECT_NEAR(y[i], x[i] / std::sqrt(squares / 1000 + 1e-6) * w[i], 2e-6 * std::max(1.0f, std::fabs(y[i])));
    EXPECT_NEAR(p[i], std::exp(double{x[i]}) / total, 1e-6);
  }
}

// ---- choosing
// --------------------------------------------------------------------------------------------------------------------

TEST(Dispatch, TheEnvironmentForcesAnIsaAndUnknownOnesAreRefusedByName) {
  const char* before = std::getenv("LAPIDARY_ISA");
  const std::string saved = before ? before : "";
  setenv("LAPIDARY_ISA", "scalar", 1);
  EXPECT_EQ(kernels().isa, Isa::scalar);
  setenv("LAPIDARY_ISA", "sse9", 1);
  try {
    kernels();
    FAIL() << "an unknown ISA was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(e.what()).find("got \"sse9\""), std::string::npos) << e.what();
  }
  if (!isa_available(Isa::avx512)) {
    setenv("LAPIDARY_ISA", "avx512", 1);
    EXPECT_THROW(kernels(), Error);
  }
  if (saved.empty()) unsetenv("LAPIDARY_ISA");
  else setenv("LAPIDARY_ISA", saved.c_str(), 1);
}

}  // namespace
}  // namespace lapidary::kernels
