#include "base/blocks.h"

#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace lapidary {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read as they lie in memory");

// The parts of one block. Without super-scales there is one group, d is its scale and m its addend.
template <int kElements_, int kGroup_, int kMin, int kMax, bool kHasMinimum_>
struct Parts {
  static constexpr int kElements = kElements_, kGroup = kGroup_, kGroups = kElements / kGroup;
  static constexpr bool kHasMinimum = kHasMinimum_, kSuper = kGroups > 1;
  static constexpr GroupLayout kLayout = {kGroup, kMin, kMax, kHasMinimum, kSuper};
  int8_t q[kElements];
  uint16_t d, m;       // f16; m: only with a minimum
  int8_t c[kGroups];   // only with super-scales
  uint8_t b[kGroups];  // only with super-scales and a minimum
  float scale(int g) const { return kSuper ? f16_to_float(d) * static_cast<float>(c[g]) : f16_to_float(d); }
  float addend(int g) const {
    return kSuper ? -(f16_to_float(m) * static_cast<float>(b[g])) : f16_to_float(m);
  }
};

// Loops over elements run along bytes, so that the compiler can take many at a time.

// Lower nibbles of n bytes to q, upper ones to q + apart, plus `zero`.
void take_nibbles(const uint8_t* bytes, int n, int apart, int zero, int8_t* q) {
  for (int i = 0; i < n; ++i) q[i] = static_cast<int8_t>((bytes[i] & 15) + zero);
  for (int i = 0; i < n; ++i) q[i + apart] = static_cast<int8_t>((bytes[i] >> 4) + zero);
}
// q[i] += weight * (`bits` bits of bytes[i] from `shift` on).
void add_bits(const uint8_t* bytes, int n, int shift, int bits, int weight, int8_t* q) {
  const int mask = (1 << bits) - 1;
  for (int i = 0; i < n; ++i) q[i] = static_cast<int8_t>(q[i] + weight * ((bytes[i] >> shift) & mask));
}
// q[i] += 16 * bit i of a 32-bit number.
void add_fifth_bits(const uint8_t (&qh)[4], int8_t* q) {
  for (int i = 0; i < 32; ++i) q[i] = static_cast<int8_t>(q[i] + ((qh[i / 8] >> (i % 8)) & 1) * 16);
}

int nibble(uint8_t byte, int index) {
  return (byte >> (4 * index)) & 15;
}
int pair(uint8_t byte, int index) {
  return (byte >> (2 * index)) & 3;
}

Parts<32, 32, -128, 127, false> take_apart(const BlockQ8_0& b) {
  Parts<32, 32, -128, 127, false> p;
  std::memcpy(p.q, b.qs, sizeof p.q);
  p.d = b.d.bits();
  return p;
}

Parts<32, 32, -8, 7, false> take_apart(const BlockQ4_0& b) {
  Parts<32, 32, -8, 7, false> p;
  take_nibbles(b.qs, 16, 16, -8, p.q);
  p.d = b.d.bits();
  return p;
}

Parts<32, 32, 0, 15, true> take_apart(const BlockQ4_1& b) {
  Parts<32, 32, 0, 15, true> p;
  take_nibbles(b.qs, 16, 16, 0, p.q);
  p.d = b.d.bits();
  p.m = b.m.bits();
  return p;
}

Parts<32, 32, -16, 15, false> take_apart(const BlockQ5_0& b) {
  Parts<32, 32, -16, 15, false> p;
  take_nibbles(b.qs, 16, 16, -16, p.q);
  add_fifth_bits(b.qh, p.q);
  p.d = b.d.bits();
  return p;
}

Parts<32, 32, 0, 31, true> take_apart(const BlockQ5_1& b) {
  Parts<32, 32, 0, 31, true> p;
  take_nibbles(b.qs, 16, 16, 0, p.q);
  add_fifth_bits(b.qh, p.q);
  p.d = b.d.bits();
  p.m = b.m.bits();
  return p;
}

Parts<256, 16, 0, 3, true> take_apart(const BlockQ2_K& b) {
  Parts<256, 16, 0, 3, true> p;
  std::memset(p.q, 0, sizeof p.q);
  for (int e = 0; e < 256; e += 32) add_bits(b.qs + e / 128 * 32, 32, e / 32 % 4 * 2, 2, 1, p.q + e);
  p.d = b.d.bits();
  p.m = b.dmin.bits();
  for (int g = 0; g < 16; ++g) {
    p.c[g] = static_cast<int8_t>(nibble(b.scales[g], 0));
    p.b[g] = static_cast<uint8_t>(nibble(b.scales[g], 1));
  }
  return p;
}

Parts<256, 16, -4, 3, false> take_apart(const BlockQ3_K& b) {
  Parts<256, 16, -4, 3, false> p;
  std::memset(p.q, -4, sizeof p.q);
  for (int e = 0; e < 256; e += 32) {
    add_bits(b.qs + e / 128 * 32, 32, e / 32 % 4 * 2, 2, 1, p.q + e);
    add_bits(b.hmask, 32, e / 32, 1, 4, p.q + e);
  }
  p.d = b.d.bits();
  for (int g = 0; g < 16; ++g)
    p.c[g] =
        static_cast<int8_t>((nibble(b.scales[g % 8], g / 8) | pair(b.scales[8 + g % 4], g / 4) << 4) - 32);
  return p;
}

// The six-bit scales and minima that Q4_K and Q5_K share.
template <typename Block, typename P>
void take_scales(const Block& b, P& p) {
  p.d = b.d.bits();
  p.m = b.dmin.bits();
  for (int g = 0; g < 8; ++g) {
    int c, m;
    if (g < 4) {
      c = b.scales[g] & 63;
      m = b.scales[g + 4] & 63;
    } else {
      c = nibble(b.scales[g + 4], 0) | pair(b.scales[g - 4], 3) << 4;
      m = nibble(b.scales[g + 4], 1) | pair(b.scales[g], 3) << 4;
    }
    p.c[g] = static_cast<int8_t>(c);
    p.b[g] = static_cast<uint8_t>(m);
  }
}

Parts<256, 32, 0, 15, true> take_apart(const BlockQ4_K& b) {
  Parts<256, 32, 0, 15, true> p;
  for (int e = 0; e < 256; e += 64) take_nibbles(b.qs + e / 2, 32, 32, 0, p.q + e);
  take_scales(b, p);
  return p;
}

Parts<256, 32, 0, 31, true> take_apart(const BlockQ5_K& b) {
  Parts<256, 32, 0, 31, true> p;
  for (int e = 0; e < 256; e += 64) take_nibbles(b.qs + e / 2, 32, 32, 0, p.q + e);
  for (int e = 0; e < 256; e += 32) add_bits(b.qh, 32, e / 32, 1, 16, p.q + e);
  take_scales(b, p);
  return p;
}

Parts<256, 16, -32, 31, false> take_apart(const BlockQ6_K& b) {
  Parts<256, 16, -32, 31, false> p;
  for (int e = 0; e < 256; e += 128) take_nibbles(b.ql + e / 2, 64, 64, -32, p.q + e);
  for (int e = 0; e < 256; e += 32) add_bits(b.qh + e / 128 * 32, 32, e / 32 % 4 * 2, 2, 16, p.q + e);
  p.d = b.d.bits();
  std::memcpy(p.c, b.scales, sizeof p.c);
  return p;
}

template <typename Block>
using PartsOf = decltype(take_apart(std::declval<const Block&>()));

// Calls f(std::type_identity<BlockX>) for the struct of a block format.
template <typename F>
auto with_block_type(DType dtype, F f) {
  switch (dtype) {
    case DType::q8_0: return f(std::type_identity<BlockQ8_0>{});
    case DType::q4_0: return f(std::type_identity<BlockQ4_0>{});
    case DType::q4_1: return f(std::type_identity<BlockQ4_1>{});
    case DType::q5_0: return f(std::type_identity<BlockQ5_0>{});
    case DType::q5_1: return f(std::type_identity<BlockQ5_1>{});
    case DType::q2_k: return f(std::type_identity<BlockQ2_K>{});
    case DType::q3_k: return f(std::type_identity<BlockQ3_K>{});
    case DType::q4_k: return f(std::type_identity<BlockQ4_K>{});
    case DType::q5_k: return f(std::type_identity<BlockQ5_K>{});
    case DType::q6_k: return f(std::type_identity<BlockQ6_K>{});
    default: fail(ErrorCode::internal, "{} is not a block format", dtype_name(dtype));
  }
}

template <typename T>
T load(std::span<const std::byte> bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <typename Block>
void unpack_blocks(std::span<const std::byte> bytes, const RowParts& to) {
  using P = PartsOf<Block>;
  for (size_t b = 0; b < bytes.size() / sizeof(Block); ++b) {
    const P p = take_apart(load<Block>(bytes, b));
    std::memcpy(to.q.data() + b * P::kElements, p.q, sizeof p.q);
    to.d[b] = p.d;
    if constexpr (P::kHasMinimum) to.m[b] = p.m;
    if constexpr (P::kSuper) std::memcpy(to.c.data() + b * P::kGroups, p.c, sizeof p.c);
    if constexpr (P::kSuper && P::kHasMinimum) std::memcpy(to.b.data() + b * P::kGroups, p.b, sizeof p.b);
  }
}

template <typename Block>
void decode_blocks(std::span<const std::byte> bytes, float* out) {
  using P = PartsOf<Block>;
  for (size_t b = 0; b < bytes.size() / sizeof(Block); ++b) {
    const P p = take_apart(load<Block>(bytes, b));
    for (int g = 0; g < P::kGroups; ++g) {
      const float scale = p.scale(g);
      [[maybe_unused]] const float addend = P::kHasMinimum ? p.addend(g) : 0.0f;
      for (int e = g * P::kGroup; e < (g + 1) * P::kGroup; ++e) {
        const float product = scale * static_cast<float>(p.q[e]);
        if constexpr (P::kHasMinimum) *out++ = product + addend;
        else *out++ = product;
      }
    }
  }
}

void check_row(DType dtype, size_t bytes, size_t elements) {
  ensure(bytes == row_bytes(dtype, elements), ErrorCode::internal,
         "row of {} {} elements: expected {} bytes, got {}", elements, dtype_name(dtype),
         row_bytes(dtype, elements), bytes);
}

}  // namespace

GroupLayout group_layout(DType dtype) {
  return with_block_type(dtype, [](auto type) { return PartsOf<typename decltype(type)::type>::kLayout; });
}

UnpackedRow::UnpackedRow(DType dtype, size_t n) {
  const GroupLayout layout = group_layout(dtype);
  const size_t groups = n / static_cast<size_t>(layout.group), blocks = n / dtype_info(dtype).block_elements;
  q.resize(n);
  d.resize(blocks);
  m.resize(layout.has_minimum ? blocks : 0);
  c.resize(layout.super_scales ? groups : 0);
  b.resize(layout.super_scales && layout.has_minimum ? groups : 0);
}

void unpack_row(DType dtype, std::span<const std::byte> bytes, const RowParts& to) {
  const GroupLayout layout = group_layout(dtype);
  check_row(dtype, bytes.size(), to.q.size());
  const size_t groups = to.q.size() / static_cast<size_t>(layout.group),
               blocks = to.q.size() / dtype_info(dtype).block_elements;
  ensure(to.d.size() == blocks && to.m.size() == (layout.has_minimum ? blocks : 0) &&
             to.c.size() == (layout.super_scales ? groups : 0) &&
             to.b.size() == (layout.super_scales && layout.has_minimum ? groups : 0),
         ErrorCode::internal, "unpack_row of {} {} elements: parts of the wrong sizes", to.q.size(),
         dtype_name(dtype));
  with_block_type(dtype, [&](auto type) { unpack_blocks<typename decltype(type)::type>(bytes, to); });
}

void decode_row(DType dtype, std::span<const std::byte> bytes, std::span<float> out) {
  ensure(is_float(dtype) || is_quantised(dtype), ErrorCode::internal, "{} elements do not decode to float",
         dtype_name(dtype));
  check_row(dtype, bytes.size(), out.size());
  if (out.empty()) return;
  if (dtype == DType::f32) {
    std::memcpy(out.data(), bytes.data(), bytes.size());
  } else if (dtype == DType::bf16) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = bf16_to_float(load<uint16_t>(bytes, i));
  } else if (dtype == DType::f16) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = f16_to_float(load<uint16_t>(bytes, i));
  } else {
    with_block_type(dtype,
                    [&](auto type) { decode_blocks<typename decltype(type)::type>(bytes, out.data()); });
  }
}

}  // namespace lapidary
