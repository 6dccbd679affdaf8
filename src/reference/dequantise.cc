#include "reference/dequantise.h"

#include "base/error.h"

namespace lapidary::reference {
namespace {

using at::Tensor;

// n blocks of one format, as bytes [n, block_bytes].
class Blocks {
 public:
  explicit Blocks(Tensor bytes) : bytes_(std::move(bytes)) {}
  int64_t n() const { return bytes_.size(0); }

  Tensor u8(int64_t offset, int64_t count) const { return bytes_.narrow(1, offset, count).to(at::kInt); }
  Tensor i8(int64_t offset, int64_t count) const {
    return bytes_.narrow(1, offset, count).contiguous().view(at::kChar).to(at::kInt);
  }
  // One half, [n, 1].
  Tensor f16(int64_t offset) const {
    return bytes_.narrow(1, offset, 2).contiguous().view(at::kHalf).to(at::kFloat);
  }

 private:
  Tensor bytes_;
};

Tensor counts(std::initializer_list<int> values) {
  return at::tensor(std::vector<int>(values), at::kInt);
}

// Bit fields of `width` bits at each of the given shifts, along a new dimension in front of the last.
Tensor fields(const Tensor& words, const Tensor& shifts, int width) {
  return at::bitwise_and(at::bitwise_right_shift(words.unsqueeze(-2), shifts.unsqueeze(-1)),
                         (1 << width) - 1);
}

// value = s * q, or s * q + a: the product is rounded to float32, then the sum. q [n, groups, group]; s, a
// [n, groups].
Tensor values(const Tensor& q, const Tensor& s) {
  return (q.to(at::kFloat) * s.unsqueeze(-1)).flatten(1);
}
Tensor values(const Tensor& q, const Tensor& s, const Tensor& a) {
  return (q.to(at::kFloat) * s.unsqueeze(-1) + a.unsqueeze(-1)).flatten(1);
}

// Nibbles of 16 bytes in the order low, high: [n, 32].
Tensor nibbles_of_16(const Blocks& b, int64_t offset) {
  return fields(b.u8(offset, 16), counts({0, 4}), 4).flatten(1);
}

// Bits 0 to 31 of a little-endian word: [n, 32].
Tensor bits_of_word(const Blocks& b, int64_t offset) {
  const Tensor bytes = b.u8(offset, 4).unsqueeze(-1);
  return at::bitwise_and(at::bitwise_right_shift(bytes, at::arange(8, at::kInt)), 1).flatten(1);
}

Tensor q8_0(const Blocks& b) {
  return values(b.i8(2, 32).unsqueeze(1), b.f16(0));
}
Tensor q4_0(const Blocks& b) {
  return values((nibbles_of_16(b, 2) - 8).unsqueeze(1), b.f16(0));
}
Tensor q4_1(const Blocks& b) {
  return values(nibbles_of_16(b, 4).unsqueeze(1), b.f16(0), b.f16(2));
}
Tensor q5_0(const Blocks& b) {
  return values((nibbles_of_16(b, 6) + bits_of_word(b, 2) * 16 - 16).unsqueeze(1), b.f16(0));
}
Tensor q5_1(const Blocks& b) {
  return values((nibbles_of_16(b, 8) + bits_of_word(b, 4) * 16).unsqueeze(1), b.f16(0), b.f16(2));
}

// Pairs of bits of 64 bytes: element 128h + 32p + i is pair p of byte 32h + i. [n, 2, 4, 32].
Tensor pairs_of_64(const Blocks& b, int64_t offset) {
  return fields(b.u8(offset, 64).view({b.n(), 2, 32}), counts({0, 2, 4, 6}), 2);
}

Tensor q2_k(const Blocks& b) {
  const Tensor scales = b.u8(0, 16);
  const Tensor s = b.f16(80) * at::bitwise_and(scales, 15).to(at::kFloat);
  const Tensor a = -(b.f16(82) * at::bitwise_right_shift(scales, 4).to(at::kFloat));
  return values(pairs_of_64(b, 16).reshape({b.n(), 16, 16}), s, a);
}

Tensor q3_k(const Blocks& b) {
  // Scale of group g: low four bits in a nibble of bytes 0..7 (low nibbles first), upper two in pair g / 4 of
  // byte 8 + g % 4.
  const Tensor lower = fields(b.u8(96, 8), counts({0, 4}), 4).flatten(1);
  const Tensor upper = fields(b.u8(104, 4), counts({0, 2, 4, 6}), 2).flatten(1);
  const Tensor s = b.f16(108) * (lower + upper * 16 - 32).to(at::kFloat);
  const Tensor third = fields(b.u8(0, 32), counts({0, 1, 2, 3, 4, 5, 6, 7}), 1).view({b.n(), 2, 4, 32});
  return values((pairs_of_64(b, 32) + third * 4 - 4).reshape({b.n(), 16, 16}), s);
}

struct SixBitScales {  // eight scales and eight minima in twelve bytes, [n, 8] each
  Tensor scale, minimum;
};

SixBitScales six_bit_scales(const Blocks& b, int64_t offset) {
  const Tensor first = b.u8(offset, 4), second = b.u8(offset + 4, 4), third = b.u8(offset + 8, 4);
  const Tensor scale_high = at::bitwise_and(third, 15) + at::bitwise_right_shift(first, 6) * 16;
  const Tensor minimum_high = at::bitwise_right_shift(third, 4) + at::bitwise_right_shift(second, 6) * 16;
  return {at::cat({at::bitwise_and(first, 63), scale_high}, 1),
          at::cat({at::bitwise_and(second, 63), minimum_high}, 1)};
}

// Nibbles of 128 bytes: element 64c + 32k + i is nibble k of byte 32c + i. [n, 8, 32].
Tensor nibbles_of_128(const Blocks& b, int64_t offset) {
  return fields(b.u8(offset, 128).view({b.n(), 4, 32}), counts({0, 4}), 4).reshape({b.n(), 8, 32});
}

Tensor with_minima(const Blocks& b, const Tensor& q) {
  const SixBitScales six = six_bit_scales(b, 4);
  return values(q, b.f16(0) * six.scale.to(at::kFloat), -(b.f16(2) * six.minimum.to(at::kFloat)));
}

Tensor q4_k(const Blocks& b) {
  return with_minima(b, nibbles_of_128(b, 16));
}
Tensor q5_k(const Blocks& b) {
  const Tensor fifth = fields(b.u8(16, 32), counts({0, 1, 2, 3, 4, 5, 6, 7}), 1);
  return with_minima(b, nibbles_of_128(b, 48) + fifth * 16);
}

Tensor q6_k(const Blocks& b) {
  // Element 128h + 32p + i: nibble p / 2 of byte 64h + 32(p % 2) + i, and pair p of byte 32h + i.
  const Tensor lower =
      fields(b.u8(0, 128).view({b.n(), 2, 64}), counts({0, 4}), 4).reshape({b.n(), 2, 4, 32});
  const Tensor q = lower + pairs_of_64(b, 128) * 16 - 32;
  return values(q.reshape({b.n(), 16, 16}), b.f16(208) * b.i8(192, 16).to(at::kFloat));
}

struct BlockFormat {
  int64_t bytes;
  Tensor (*decode)(const Blocks&);
};

BlockFormat block_format(DType dtype) {
  switch (dtype) {
    case DType::q8_0: return {34, q8_0};
    case DType::q4_0: return {18, q4_0};
    case DType::q4_1: return {20, q4_1};
    case DType::q5_0: return {22, q5_0};
    case DType::q5_1: return {24, q5_1};
    case DType::q2_k: return {84, q2_k};
    case DType::q3_k: return {110, q3_k};
    case DType::q4_k: return {144, q4_k};
    case DType::q5_k: return {176, q5_k};
    case DType::q6_k: return {210, q6_k};
    default: fail(ErrorCode::unsupported, "the reference has no weight type {}", dtype_name(dtype));
  }
}

}  // namespace

Tensor dequantise(const TensorView& view) {
  // A copy: the bytes of a file may lie at any address and may be gone later.
  const Tensor bytes = at::from_blob(const_cast<std::byte*>(view.bytes.data()),
                                     {static_cast<int64_t>(view.bytes.size())}, at::kByte)
                           .clone();
  switch (view.dtype) {
    case DType::f32: return bytes.view(at::kFloat).view(view.shape);
    case DType::f16: return bytes.view(at::kHalf).view(view.shape);
    case DType::bf16: return bytes.view(at::kBFloat16).view(view.shape);
    default: {
      const BlockFormat format = block_format(view.dtype);
      return format.decode(Blocks(bytes.view({-1, format.bytes}))).reshape(view.shape);
    }
  }
}

}  // namespace lapidary::reference
