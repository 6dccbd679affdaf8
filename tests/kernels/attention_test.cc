// Attention: every ISA gives the bits of scalar.cc for any shape, type, and view of the queries; scalar.cc
// gives the numbers; and what is stored is rounded as base/half.h says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "kernels/kernels.h"

namespace lapidary::kernels {

namespace avx512_emulated {
extern const Kernels kTable;
}  // namespace avx512_emulated

namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::i8};

std::vector<float> normals(size_t n, uint64_t stream, float scale = 1) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; i++) x[i] = scale * normal(7, stream, i);
  return x;
}

std::vector<const Kernels*> fast_isas() {
  std::vector<const Kernels*> found;
  if (isa_available(Isa::avx2))
    found.push_back(&avx512_emulated::kTable);  // compiled for AVX2, so it needs that
  for (Isa isa : {Isa::avx2, Isa::avx512})
    if (isa_available(isa)) found.push_back(&kernels(isa));
  return found;
}

// The pages of some parts; what nobody writes is poisoned: NaN in every float type and scale.
class Pages {
 public:
  Pages(const KvTypes& types, int64_t head_dim, int64_t n_parts)
      : layout_(kv_layout(types, head_dim)),
        memory_(layout_.head_bytes * static_cast<size_t>(n_parts * kPartBlocks), std::byte{0xff}) {
    for (int64_t b = 0; b < n_parts * kPartBlocks; b++) blocks_.push_back(memory_.data() + offset(b));
  }
  void put(int64_t position, const float* k, const float* v) {
    std::byte* head = memory_.data() + offset(position / kBlock);
    const int64_t at = position % kBlock, n = layout_.head_dim;
    std::vector<std::byte> codes(static_cast<size_t>(n) * sizeof(float));
    float scale = 0;
    ASSERT_TRUE(scalar::kTable.encode_kv(layout_.types.keys, k, n, codes.data(), &scale));
    const size_t size = dtype_info(layout_.types.keys).block_bytes;
    for (int64_t d = 0; d < n; d++)
      std::memcpy(head + static_cast<size_t>(d * kBlock + at) * size, &codes[static_cast<size_t>(d) * size],
                  size);
    if (layout_.types.keys == DType::i8) std::memcpy(head + layout_.key_scales_at + 4 * at, &scale, 4);
    const size_t row =
        static_cast<size_t>(at * layout_.padded_dim) * dtype_info(layout_.types.values).block_bytes;
    ASSERT_TRUE(scalar::kTable.encode_kv(layout_.types.values, v, n, head + layout_.values_at + row, &scale));
    if (layout_.types.values == DType::i8) std::memcpy(head + layout_.value_scales_at + 4 * at, &scale, 4);
  }
  float key(int64_t position, int64_t d) const {
    return kv_key(layout_, blocks_[static_cast<size_t>(position / kBlock)], position % kBlock, d);
  }
  float value(int64_t position, int64_t d) const {
    return kv_value(layout_, blocks_[static_cast<size_t>(position / kBlock)], position % kBlock, d);
  }
  AttentionPart part(int64_t index, const std::vector<float>& q, const std::vector<Seen>& seen) const {
    return {layout_,          blocks_.data() + index * kPartBlocks, q.data(),
            layout_.head_dim, static_cast<int64_t>(seen.size()),    seen.data()};
  }
  const KvLayout& layout() const { return layout_; }

 private:
  size_t offset(int64_t block) const { return static_cast<size_t>(block) * layout_.head_bytes; }
  KvLayout layout_;
  std::vector<std::byte> memory_;
  std::vector<const std::byte*> blocks_;
};

struct States {
  std::vector<float> max, sum, values;
  int64_t padded;
  States(size_t n, int64_t padded_dim, float garbage = 77)
      : max(n, garbage),
        sum(n, garbage),
        values(n * static_cast<size_t>(padded_dim), garbage),
        padded(padded_dim) {}
  AttentionState view() { return {max.data(), sum.data(), values.data()}; }
};

// Without the padding, whose contents mean nothing. A maximum is compared where something was seen.
void expect_same_bits(const States& got, const States& expected, int64_t head_dim, const std::string& what) {
  for (size_t i = 0; i < expected.sum.size(); i++) {
    ASSERT_EQ(std::memcmp(&got.sum[i], &expected.sum[i], 4), 0) << what << ": sum of query " << i;
    ASSERT_EQ(got.max[i], expected.max[i]) << what << ": maximum of query " << i;
    for (int64_t d = 0; d < head_dim; d++) {
      const size_t at = i * static_cast<size_t>(expected.padded) + static_cast<size_t>(d);
      ASSERT_EQ(std::memcmp(&got.values[at], &expected.values[at], 4), 0)
          << what << ": query " << i << ", element " << d << " is " << got.values[at] << ", expected "
          << expected.values[at];
    }
  }
}

Pages filled(const KvTypes& types, int64_t head_dim, int64_t n_parts, int64_t lo, int64_t hi) {
  Pages pages(types, head_dim, n_parts);
  for (int64_t j = lo; j < hi; j++) {
    const auto stream = static_cast<uint64_t>(j);
    pages.put(j, normals(static_cast<size_t>(head_dim), 100 + 2 * stream).data(),
              normals(static_cast<size_t>(head_dim), 101 + 2 * stream).data());
  }
  return pages;
}

std::vector<float> queries(size_t n, int64_t head_dim) {
  return normals(n * static_cast<size_t>(head_dim), 1, 2 / std::sqrt(static_cast<float>(head_dim)));
}

// What rows of a causal model with a window see: ragged at either end, and some see nothing of the part.
std::vector<Seen> views(size_t n, int lo, int hi) {
  std::vector<Seen> seen;
  for (size_t i = 0; i < n; i++) {
    const auto a = static_cast<int>(philox(5, n, i)[0] % 40), b = static_cast<int>(philox(5, n, i)[1] % 40);
    if (i % 5 == 3) seen.push_back({hi, lo});  // nothing
    else if (i % 7 == 2) seen.push_back({lo + a, lo + a + 1});
    else seen.push_back({std::min(lo + a, hi - 1), std::max(hi - b, lo + a + 1)});
    seen.back().hi = std::min(seen.back().hi, hi + (i % 5 == 3 ? -1 : 0));
  }
  return seen;
}

struct Shape {
  int64_t head_dim;
  int lo, hi;
};

class Attention : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         ::testing::Values(Shape{2, 0, 32}, Shape{16, 0, 512}, Shape{24, 7, 9},
                                           Shape{40, 31, 500}, Shape{64, 100, 200}, Shape{72, 16, 48},
                                           Shape{144, 495, 512}, Shape{256, 3, 130}, Shape{512, 60, 140}));

TEST_P(Attention, EveryIsaGivesTheScalarBits) {
  const auto [head_dim, lo, hi] = GetParam();
  for (const DType key_type : kTypes) {
    for (const DType value_type : kTypes) {
      const Pages pages = filled({key_type, value_type}, head_dim, 1, lo, hi);
      for (size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 29}) {
        if (n > 5 && head_dim > 100 && key_type != value_type) continue;
        const std::vector<float> q = queries(n, head_dim);
        const std::vector<Seen> seen = views(n, lo, hi);
        States expected(n, pages.layout().padded_dim);
        scalar::kTable.attend(pages.part(0, q, seen), expected.view());
        for (const Kernels* table : fast_isas()) {
          States got(n, pages.layout().padded_dim);
          table->attend(pages.part(0, q, seen), got.view());
          expect_same_bits(got, expected, head_dim,
                           std::string(table->name) + ", " + kv_types_name({key_type, value_type}) + ", " +
                               std::to_string(n) + " queries");
        }
      }
    }
  }
}

TEST_P(Attention, AQuerysBitsDoNotDependOnTheOthersInTheCall) {
  const auto [head_dim, lo, hi] = GetParam();
  const size_t n = 13;
  for (const DType type : kTypes) {
    const Pages pages = filled(type, head_dim, 1, lo, hi);
    const std::vector<float> q = queries(n, head_dim);
    const std::vector<Seen> seen = views(n, lo, hi);
    States together(n, pages.layout().padded_dim);
    kernels().attend(pages.part(0, q, seen), together.view());
    for (size_t i = 0; i < n; i++) {
      const auto at = static_cast<std::ptrdiff_t>(i);
      const std::vector<float> own(q.begin() + at * head_dim, q.begin() + (at + 1) * head_dim);
      States alone(1, pages.layout().padded_dim), expected(1, pages.layout().padded_dim);
      kernels().attend(pages.part(0, own, {seen[i]}), alone.view());
      expected.max[0] = together.max[i];
      expected.sum[0] = together.sum[i];
      std::copy_n(together.values.begin() + at * expected.padded, expected.padded, expected.values.begin());
      expect_same_bits(alone, expected, head_dim, "query " + std::to_string(i));
    }
  }
}

// Three parts, merged: the softmax over all positions, as doubles have it.
TEST(AttentionParts, MergedAreTheWholeAndEveryIsaGivesTheScalarBits) {
  const int64_t head_dim = 40, lo = 470, hi = 2 * kPartPositions + 100;
  const size_t n = 3;
  for (const DType type : kTypes) {
    const Pages pages = filled(type, head_dim, 3, lo, hi);
    const std::vector<float> q = queries(n, head_dim);
    const auto run = [&](const Kernels& k) {
      States all(n, pages.layout().padded_dim, 0.0f), one(n, pages.layout().padded_dim);
      for (int64_t i = 0; i < 3; i++) {
        const int64_t start = i * kPartPositions;
        std::vector<Seen> seen(n, {static_cast<int>(std::clamp(lo - start, int64_t{0}, kPartPositions)),
                                   static_cast<int>(std::clamp(hi - start, int64_t{0}, kPartPositions))});
        if (i == 1) seen[1] = {5, 5};  // the second query sees nothing of the second part
        k.attend(pages.part(i, q, seen), one.view());
        k.merge(one.view(), static_cast<int64_t>(n), pages.layout().padded_dim, all.view());
      }
      return all;
    };
    const States got = run(scalar::kTable);
    for (const Kernels* table : fast_isas())
      expect_same_bits(run(*table), got, head_dim, std::string(table->name));
    for (size_t i = 0; i < n; i++) {
      std::vector<double> p;
      double total = 0;
      for (int64_t j = lo; j < hi; j++) {
        double dot = 0;
        for (int64_t d = 0; d < head_dim; d++)
          dot += double{q[i * head_dim + static_cast<size_t>(d)]} * pages.key(j, d);
        p.push_back(i == 1 && j / kPartPositions == 1 ? 0 : std::exp(dot));
        total += p.back();
      }
      for (int64_t d = 0; d < head_dim; d++) {
        double expected = 0;
        for (int64_t j = lo; j < hi; j++)
          expected += p[static_cast<size_t>(j - lo)] / total * pages.value(j, d);
        ASSERT_NEAR(got.values[i * static_cast<size_t>(got.padded) + static_cast<size_t>(d)] / got.sum[i],
                    expected, 3e-6)
            << "query " << i << ", element " << d;
      }
    }
  }
}

TEST(AttentionParts, WhatSawNothingChangesNothing) {
  for (const Kernels* table : fast_isas()) {
    States nothing(1, 16), some(1, 16, 3.0f), empty(1, 16, 0.0f);
    nothing.sum[0] = 0;
    table->merge(nothing.view(), 1, 16, some.view());
    EXPECT_EQ(some.max[0], 3.0f);
    EXPECT_EQ(some.values, std::vector<float>(16, 3.0f));
    table->merge(some.view(), 1, 16, empty.view());
    EXPECT_EQ(empty.sum, some.sum);
    EXPECT_EQ(empty.values, some.values);
  }
}

// ---- storing

std::vector<std::byte> encoded(const Kernels& k, DType type, const std::vector<float>& x, float* scale) {
  std::vector<std::byte> codes(x.size() * sizeof(float), std::byte{0x55});
  EXPECT_TRUE(k.encode_kv(type, x.data(), static_cast<int64_t>(x.size()), codes.data(), scale));
  return codes;
}

TEST(StoredNumbers, EveryIsaRoundsAlikeAndInPlaceToo) {
  for (const DType type : kTypes) {
    for (const size_t n : {1, 15, 16, 17, 64, 100}) {
      for (const float size : {1e-38f, 1e-6f, 1.0f, 1000.0f}) {
        const std::vector<float> x = normals(n, 9, size);
        float expected_scale = 0;
        const auto expected = encoded(scalar::kTable, type, x, &expected_scale);
        for (const Kernels* table : fast_isas()) {
          float scale = 0;
          EXPECT_EQ(encoded(*table, type, x, &scale), expected) << table->name << ", " << kv_type_name(type);
          EXPECT_EQ(scale, expected_scale);
          std::vector<float> own = x;
          ASSERT_TRUE(table->encode_kv(type, own.data(), static_cast<int64_t>(n), own.data(), &scale));
          const size_t bytes = n * dtype_info(type).block_bytes;
          EXPECT_EQ(std::memcmp(own.data(), expected.data(), bytes), 0) << table->name;
        }
      }
    }
  }
}

TEST(StoredNumbers, AreTheNearest) {
  const std::vector<float> x = normals(200, 11, 3);
  float scale = 0;
  const auto halves = encoded(kernels(), DType::f16, x, &scale),
             brains = encoded(kernels(), DType::bf16, x, &scale),
             bytes = encoded(kernels(), DType::i8, x, &scale);
  float greatest = 0;
  for (const float number : x) greatest = std::max(greatest, std::fabs(number));
  EXPECT_EQ(scale, greatest / 127);
  for (size_t i = 0; i < x.size(); i++) {
    uint16_t half, brain;
    std::memcpy(&half, &halves[2 * i], 2);
    std::memcpy(&brain, &brains[2 * i], 2);
    EXPECT_EQ(half, float_to_f16(x[i]));
    EXPECT_EQ(brain, float_to_bf16(x[i]));
    EXPECT_NEAR(scale * static_cast<float>(static_cast<int8_t>(bytes[i])), x[i], scale * 0.5001f);
  }
}

TEST(StoredNumbers, WhatDoesNotFitIsRefusedAndNothingIsWritten) {
  std::vector<const Kernels*> tables = fast_isas();
  tables.push_back(&scalar::kTable);
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (const Kernels* table : tables) {
    for (const DType type : kTypes) {
      for (const float bad : {infinity, -infinity, nan, 65520.0f, 3.4e38f}) {
        for (const size_t at : {0, 5, 20}) {
          std::vector<float> x = normals(21, 3);
          x[at] = bad;
          std::vector<std::byte> codes(x.size() * 4, std::byte{0x55});
          const bool fits = std::isfinite(bad) &&
                            (type == DType::f32 || type == DType::i8 || (type == DType::bf16 && bad < 1e38f));
          float scale = 5;
          EXPECT_EQ(table->encode_kv(type, x.data(), 21, codes.data(), &scale), fits)
              << table->name << ", " << kv_type_name(type) << ", " << bad;
          if (fits) continue;
          EXPECT_EQ(codes, std::vector<std::byte>(codes.size(), std::byte{0x55}));
          EXPECT_EQ(scale, 5);
        }
      }
      std::vector<float> edge(3, 65519.0f), zeros(3, 0.0f);
      float scale = 5;
      EXPECT_TRUE(table->encode_kv(type, edge.data(), 3, edge.data(), &scale));
      EXPECT_TRUE(table->encode_kv(type, zeros.data(), 3, zeros.data(), &scale));
    }
  }
}

}  // namespace
}  // namespace lapidary::kernels
