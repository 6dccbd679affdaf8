#include "base/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/blocks.h"
#include "base/error.h"
#include "base/fit.h"
#include "base/super_block.h"

namespace lapidary {
namespace {

constexpr float kLargestF16 = 65504.0f;

PackedF16 packed(uint16_t bits) {
  return {static_cast<uint8_t>(bits), static_cast<uint8_t>(bits >> 8)};
}

uint8_t byte_of(int value) {
  return static_cast<uint8_t>(value);
}

using Block32 = std::span<const float, 32>;
using Block256 = std::span<const float, kSuperBlock>;

// ---- blocks of 32

struct Fit32 {
  PackedF16 d{}, m{};
  int8_t q[32];
};

// Keeps the scale and addend that fit best once they are what the format stores.
class Best32 {
 public:
  Best32(Block32 x, int q_min, int q_max) : x_(x), q_min_(q_min), q_max_(q_max) {}

  void consider(uint16_t d, uint16_t m) {
    if ((d & 0x7fff) >= 0x7c00 || (m & 0x7fff) >= 0x7c00) return;  // infinity
    const double error = squared_error(x_, f16_to_float(d), f16_to_float(m), q_min_, q_max_);
    if (error >= error_) return;
    error_ = error;
    d_ = d;
    m_ = m;
  }
  bool exact() const { return error_ == 0; }

  Fit32 take() const {
    Fit32 out;
    out.d = packed(d_);
    out.m = packed(m_);
    squared_error(x_, f16_to_float(d_), f16_to_float(m_), q_min_, q_max_, out.q);
    return out;
  }

 private:
  Block32 x_;
  int q_min_, q_max_;
  double error_ = std::numeric_limits<double>::infinity();
  uint16_t d_ = 0, m_ = 0;
};

Fit32 symmetric32(Block32 x, int q_min, int q_max) {
  Best32 best(x, q_min, q_max);
  const uint16_t ideal = float_to_f16(fit_scale(x, q_min, q_max));
  best.consider(ideal, 0);
  best.consider(static_cast<uint16_t>(ideal + 1), 0);
  if ((ideal & 0x7fff) != 0) best.consider(static_cast<uint16_t>(ideal - 1), 0);
  // Where several scales fit as well, only some are numbers that the format has.
  const float extreme =
      *std::max_element(x.begin(), x.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  const int least = q_max > 64 ? q_max - 4 : 1;  // fine ranges are used to their end
  for (int n = q_min; n <= q_max && !best.exact(); ++n) {
    if (std::abs(n) < least) continue;
    const uint16_t d = float_to_f16(extreme / static_cast<float>(n));
    if (f16_to_float(d) * static_cast<float>(n) == extreme) best.consider(d, 0);
  }
  return best.take();
}

Fit32 affine32(Block32 x, int q_max) {
  Best32 best(x, 0, q_max);
  const AffineFit fit = fit_affine(x, q_max, false);
  const uint16_t d = float_to_f16(fit.scale), m = float_to_f16(fit.addend);
  best.consider(d, m);
  best.consider(static_cast<uint16_t>(d + 1), m);
  if (d != 0) best.consider(static_cast<uint16_t>(d - 1), m);
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const uint16_t least = float_to_f16(*low);
  for (int n = 1; n <= q_max && !best.exact(); ++n) {
    const uint16_t step = float_to_f16((*high - f16_to_float(least)) / static_cast<float>(n));
    if (f16_to_float(step) * static_cast<float>(n) + f16_to_float(least) == *high) best.consider(step, least);
  }
  return best.take();
}

void pack_nibbles(const int8_t (&q)[32], int offset, uint8_t (&qs)[16]) {
  for (size_t i = 0; i < 16; ++i) qs[i] = byte_of(((q[i] + offset) & 15) | ((q[i + 16] + offset) & 15) << 4);
}

void pack_fifth_bits(const int8_t (&q)[32], int offset, uint8_t (&qh)[4]) {
  std::fill(std::begin(qh), std::end(qh), uint8_t{0});
  for (size_t i = 0; i < 32; ++i) qh[i / 8] |= byte_of(((q[i] + offset) >> 4 & 1) << (i % 8));
}

void encode(Block32 x, BlockQ8_0& out) {
  const Fit32 fit = symmetric32(x, -127, 127);
  out.d = fit.d;
  std::memcpy(out.qs, fit.q, sizeof out.qs);
}

void encode(Block32 x, BlockQ4_0& out) {
  const Fit32 fit = symmetric32(x, -8, 7);
  out.d = fit.d;
  pack_nibbles(fit.q, 8, out.qs);
}

void encode(Block32 x, BlockQ4_1& out) {
  const Fit32 fit = affine32(x, 15);
  out.d = fit.d;
  out.m = fit.m;
  pack_nibbles(fit.q, 0, out.qs);
}

void encode(Block32 x, BlockQ5_0& out) {
  const Fit32 fit = symmetric32(x, -16, 15);
  out.d = fit.d;
  pack_nibbles(fit.q, 16, out.qs);
  pack_fifth_bits(fit.q, 16, out.qh);
}

void encode(Block32 x, BlockQ5_1& out) {
  const Fit32 fit = affine32(x, 31);
  out.d = fit.d;
  out.m = fit.m;
  pack_nibbles(fit.q, 0, out.qs);
  pack_fifth_bits(fit.q, 0, out.qh);
}

// ---- super-blocks; blocks.h states each layout

void encode(Block256 x, BlockQ2_K& out) {
  const AffineBlock fit = fit_affine(x, {16, 15, 3});
  out.d = packed(fit.d);
  out.dmin = packed(fit.dmin);
  for (size_t g = 0; g < 16; ++g) out.scales[g] = byte_of(fit.scale[g] | fit.minimum[g] << 4);
  for (size_t i = 0; i < 64; ++i) {
    const int8_t* q = fit.q.data() + 128 * (i / 32) + i % 32;
    out.qs[i] = byte_of(q[0] | q[32] << 2 | q[64] << 4 | q[96] << 6);
  }
}

void encode(Block256 x, BlockQ3_K& out) {
  const SymmetricBlock fit = fit_symmetric(x, {16, -32, 31, -4, 3});
  out.d = packed(fit.d);
  std::memset(out.hmask, 0, sizeof out.hmask);
  std::memset(out.scales, 0, sizeof out.scales);
  for (size_t g = 0; g < 16; ++g) {
    const int code = fit.scale[g] + 32;
    out.scales[g % 8] |= byte_of((code & 15) << (g < 8 ? 0 : 4));
    out.scales[8 + g % 4] |= byte_of((code >> 4) << (2 * (g / 4)));
  }
  for (size_t i = 0; i < 64; ++i) {
    const size_t h = i / 32;
    int byte = 0;
    for (size_t p = 0; p < 4; ++p) {
      const int code = fit.q[128 * h + 32 * p + i % 32] + 4;
      byte |= (code & 3) << (2 * p);
      out.hmask[i % 32] |= byte_of((code >> 2) << (4 * h + p));
    }
    out.qs[i] = byte_of(byte);
  }
}

// Six-bit scales and minima of eight groups in twelve bytes.
void pack_scales(const AffineBlock& fit, uint8_t (&scales)[12]) {
  for (size_t g = 0; g < 4; ++g) {
    const int low = fit.scale[g], low_min = fit.minimum[g], high = fit.scale[g + 4],
              high_min = fit.minimum[g + 4];
    scales[g] = byte_of(low | (high >> 4) << 6);
    scales[g + 4] = byte_of(low_min | (high_min >> 4) << 6);
    scales[g + 8] = byte_of((high & 15) | (high_min & 15) << 4);
  }
}

void encode(Block256 x, BlockQ4_K& out) {
  const AffineBlock fit = fit_affine(x, {32, 63, 15});
  out.d = packed(fit.d);
  out.dmin = packed(fit.dmin);
  pack_scales(fit, out.scales);
  for (size_t i = 0; i < 128; ++i) {
    const int8_t* q = fit.q.data() + 64 * (i / 32) + i % 32;
    out.qs[i] = byte_of(q[0] | q[32] << 4);
  }
}

void encode(Block256 x, BlockQ5_K& out) {
  const AffineBlock fit = fit_affine(x, {32, 63, 31});
  out.d = packed(fit.d);
  out.dmin = packed(fit.dmin);
  pack_scales(fit, out.scales);
  std::memset(out.qh, 0, sizeof out.qh);
  for (size_t i = 0; i < 128; ++i) {
    const int8_t* q = fit.q.data() + 64 * (i / 32) + i % 32;
    out.qs[i] = byte_of((q[0] & 15) | (q[32] & 15) << 4);
  }
  for (size_t i = 0; i < kSuperBlock; ++i) out.qh[i % 32] |= byte_of((fit.q[i] >> 4) << (i / 32));
}

void encode(Block256 x, BlockQ6_K& out) {
  const SymmetricBlock fit = fit_symmetric(x, {16, -128, 127, -32, 31});
  out.d = packed(fit.d);
  std::memcpy(out.scales, fit.scale.data(), sizeof out.scales);
  for (size_t i = 0; i < 64; ++i) {
    const size_t h = i / 32;
    int code[4], high = 0;
    for (size_t p = 0; p < 4; ++p) {
      code[p] = fit.q[128 * h + 32 * p + i % 32] + 32;
      high |= (code[p] >> 4) << (2 * p);
    }
    out.ql[64 * h + i % 32] = byte_of((code[0] & 15) | (code[2] & 15) << 4);
    out.ql[64 * h + 32 + i % 32] = byte_of((code[1] & 15) | (code[3] & 15) << 4);
    out.qh[i] = byte_of(high);
  }
}

// ---- rows

template <typename Block, size_t N>
void encode_blocks(std::span<const float> row, std::span<std::byte> bytes) {
  for (size_t i = 0; i * N < row.size(); ++i) {
    Block block;
    encode(row.subspan(i * N).first<N>(), block);
    std::memcpy(bytes.data() + i * sizeof block, &block, sizeof block);
  }
}

template <uint16_t (*Convert)(float)>
void encode_halves(std::span<const float> row, std::span<std::byte> bytes) {
  for (size_t i = 0; i < row.size(); ++i) {
    const uint16_t bits = Convert(row[i]);
    std::memcpy(bytes.data() + 2 * i, &bits, sizeof bits);
  }
}

// The largest magnitude that the format is sure to hold: in blocks, scale and addend are f16.
float largest(DType dtype) {
  switch (dtype) {
    case DType::f32: return std::numeric_limits<float>::max();
    case DType::bf16: return 3.3895314e38f;  // its largest finite number
    default: return kLargestF16;
  }
}

}  // namespace

bool can_encode(DType dtype) {
  return is_float(dtype) || is_quantised(dtype);
}

bool encode_row(DType dtype, std::span<const float> row, std::span<std::byte> bytes) {
  const float limit = largest(dtype);
  for (const float x : row) {
    if (!(std::fabs(x) <= limit)) return false;
  }
  switch (dtype) {
    case DType::f32: std::memcpy(bytes.data(), row.data(), row.size_bytes()); break;
    case DType::f16: encode_halves<float_to_f16>(row, bytes); break;
    case DType::bf16: encode_halves<float_to_bf16>(row, bytes); break;
    case DType::q8_0: encode_blocks<BlockQ8_0, 32>(row, bytes); break;
    case DType::q4_0: encode_blocks<BlockQ4_0, 32>(row, bytes); break;
    case DType::q4_1: encode_blocks<BlockQ4_1, 32>(row, bytes); break;
    case DType::q5_0: encode_blocks<BlockQ5_0, 32>(row, bytes); break;
    case DType::q5_1: encode_blocks<BlockQ5_1, 32>(row, bytes); break;
    case DType::q2_k: encode_blocks<BlockQ2_K, kSuperBlock>(row, bytes); break;
    case DType::q3_k: encode_blocks<BlockQ3_K, kSuperBlock>(row, bytes); break;
    case DType::q4_k: encode_blocks<BlockQ4_K, kSuperBlock>(row, bytes); break;
    case DType::q5_k: encode_blocks<BlockQ5_K, kSuperBlock>(row, bytes); break;
    case DType::q6_k: encode_blocks<BlockQ6_K, kSuperBlock>(row, bytes); break;
    default: fail(ErrorCode::internal, "encode_row: no encoder for {}", dtype_name(dtype));
  }
  return true;
}

}  // namespace lapidary
