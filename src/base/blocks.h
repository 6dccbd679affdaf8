// Block formats of GGUF: bit layouts in prose, one struct each, and decoding to float.
//
// A row is a whole number of blocks, a block 32 or 256 elements along the row ("super-block"). Inside a
// block, groups of 16 or 32 neighbours share one scale s and, in some formats, one addend a. With q the small
// integer of an element:
//   value = s * q          or          value = s * q + a          (float; the product is rounded, then the
//   sum)
// Numbers of several bytes are little-endian; "f16" is IEEE half; nibble, pair, bit count from the least
// significant end. No struct has padding or an alignment above one byte, so a block may be read at any
// address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/half.h"

namespace lapidary {

struct PackedF16 {
  uint8_t low, high;
  uint16_t bits() const { return static_cast<uint16_t>(low | high << 8); }
};
static_assert(sizeof(PackedF16) == 2);

// 8 bits. s = d; q[i] = qs[i].
struct BlockQ8_0 {
  PackedF16 d;
  int8_t qs[32];
};
static_assert(sizeof(BlockQ8_0) == 34 && alignof(BlockQ8_0) == 1);

// 4 bits. s = d; q[i] = low nibble of qs[i] - 8, q[i + 16] = high nibble of qs[i] - 8, for i < 16.
struct BlockQ4_0 {
  PackedF16 d;
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ4_0) == 18 && alignof(BlockQ4_0) == 1);

// 4 bits with a minimum. s = d, a = m; nibbles as in Q4_0, nothing subtracted.
struct BlockQ4_1 {
  PackedF16 d, m;
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ4_1) == 20 && alignof(BlockQ4_1) == 1);

// 5 bits. s = d; nibbles as in Q4_0; qh is a 32-bit number whose bit i is the fifth bit (worth 16) of element
// i; 16 is subtracted.
struct BlockQ5_0 {
  PackedF16 d;
  uint8_t qh[4];
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ5_0) == 22 && alignof(BlockQ5_0) == 1);

// 5 bits with a minimum. s = d, a = m; bits as in Q5_0, nothing subtracted.
struct BlockQ5_1 {
  PackedF16 d, m;
  uint8_t qh[4];
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ5_1) == 24 && alignof(BlockQ5_1) == 1);

// 2 bits, 16 groups of 16. Group g: s = d * (low nibble of scales[g]), a = -(dmin * (high nibble of
// scales[g])). Element 128h + 32p + i (h < 2, p < 4, i < 32) is pair p of qs[32h + i].
struct BlockQ2_K {
  uint8_t scales[16];
  uint8_t qs[64];
  PackedF16 d, dmin;
};
static_assert(sizeof(BlockQ2_K) == 84 && alignof(BlockQ2_K) == 1);

// 3 bits, 16 groups of 16. Group g: s = d * (c[g] - 32), c[g] of six bits: the lower four are the low (g < 8)
// or high (g >= 8) nibble of scales[g % 8], the upper two are pair g / 4 of scales[8 + g % 4]. Element 128h +
// 32p + i: two bits as in Q2_K; bit 4h + p of hmask[i] is the third (worth 4); 4 is subtracted.
struct BlockQ3_K {
  uint8_t hmask[32];
  uint8_t qs[64];
  uint8_t scales[12];
  PackedF16 d;
};
static_assert(sizeof(BlockQ3_K) == 110 && alignof(BlockQ3_K) == 1);

// 4 bits, 8 groups of 32. Group g: s = d * c[g], a = -(dmin * b[g]), both of six bits. For g < 4: c[g] =
// lower six bits of scales[g], b[g] = lower six bits of scales[g + 4]. For g >= 4: lower four bits of c[g]
// and b[g] = low and high nibble of scales[g + 4], their upper two bits = the top two bits of scales[g - 4]
// and scales[g]. Element 64c + i is the low nibble, 64c + 32 + i the high nibble of qs[32c + i] (c < 4, i <
// 32).
struct BlockQ4_K {
  PackedF16 d, dmin;
  uint8_t scales[12];
  uint8_t qs[128];
};
static_assert(sizeof(BlockQ4_K) == 144 && alignof(BlockQ4_K) == 1);

// 5 bits, 8 groups of 32. Scales and nibbles as in Q4_K; bit g of qh[i] is the fifth bit (worth 16) of
// element 32g + i.
struct BlockQ5_K {
  PackedF16 d, dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
};
static_assert(sizeof(BlockQ5_K) == 176 && alignof(BlockQ5_K) == 1);

// 6 bits, 16 groups of 16. Group g: s = d * scales[g], scales signed. Element 128h + 32p + i (h < 2, p < 4, i
// < 32): the lower four bits are the low (p < 2) or high (p >= 2) nibble of ql[64h + 32(p % 2) + i], the
// upper two are pair p of qh[32h + i]; 32 is subtracted.
struct BlockQ6_K {
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  PackedF16 d;
};
static_assert(sizeof(BlockQ6_K) == 210 && alignof(BlockQ6_K) == 1);

// How a block format groups elements, and the range of their integers.
struct GroupLayout {
  int group;          // 16 or 32 elements along the row share scale and addend
  int q_min, q_max;   // after the format's offset was subtracted: -8..7 for Q4_0
  bool has_minimum;   // there is an addend
  bool super_scales;  // scale and addend are small integers times numbers that 256 elements share
};

// REQUIRES: is_quantised(dtype).
GroupLayout group_layout(DType dtype);

// Where the parts of a row go. With g = i / group and b = i / (elements of a block):
//   scale[g] = d[b], addend[g] = m[b]; with super-scales scale[g] = d[b] * c[g], addend[g] = -(m[b] * b[g])
// and value[i] = scale[g] * q[i] + addend[g], bit for bit as decode_row computes it. Unused parts are empty.
struct RowParts {
  std::span<int8_t> q;       // [n]
  std::span<uint16_t> d, m;  // f16, [n / block]; m: with a minimum
  std::span<int8_t> c;       // [n / group], with super-scales
  std::span<uint8_t> b;      // [n / group], with super-scales and a minimum
};

// Memory for the parts of a row of n elements, to be used row after row. REQUIRES: is_quantised(dtype), n a
// whole number of blocks.
struct UnpackedRow {
  std::vector<int8_t> q, c;
  std::vector<uint16_t> d, m;
  std::vector<uint8_t> b;
  UnpackedRow(DType dtype, size_t n);
  RowParts parts() { return {q, d, m, c, b}; }
};

// Takes one row apart. REQUIRES: is_quantised(dtype); bytes.size() = row_bytes(dtype, n).
void unpack_row(DType dtype, std::span<const std::byte> bytes, const RowParts& to);

// Decodes one row of `out.size()` elements. The scalar truth for every packed form; floats and block formats
// only. REQUIRES: bytes.size() == row_bytes(dtype, out.size()).
void decode_row(DType dtype, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace lapidary
