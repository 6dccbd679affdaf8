// Leaf kernels, one table per ISA. They know numbers and layouts, never models. All are noexcept in spirit:
// no errors, no allocation.
//
// One arithmetic: every kernel's result is a fixed sequence of IEEE operations per output element (fused
// multiply-add spelled out, 16 fixed lanes and a fixed tree where a sum crosses lanes, own exp and tanh). So
// the same inputs give the same bits on every ISA, for any number of rows and any split of the work.
// scalar.cc is the meaning, in plain loops; the tests compare the others with it as bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/kv_layout.h"
#include "kernels/panels.h"

namespace lapidary::kernels {

// avx2_vnni and amx differ from avx2 and avx512 in their integer products only.
enum class Isa { scalar, avx2, avx2_vnni, avx512, amx };
constexpr Isa kIsas[] = {Isa::scalar, Isa::avx2, Isa::avx2_vnni, Isa::avx512, Isa::amx};

// Rows of activations as integers: x = scale * q, q = 128 * hi + lo in two terms (|q| <= 16256: 15 bits) or q
// = hi in one (|q| <= 127), a scale for every 32 neighbours: the greatest of them has the greatest |q|. A
// group with a number that is not finite becomes zeros under a scale that is NaN: what is multiplied with it
// is NaN too. Rounded to nearest, ties to even.
//
// Rows lie in tiles of `height` rows, so that the rows of one group of inputs are neighbours: hi and lo are
// [tile][ld / 32][height][32], scales [tile][ld / 32][height], sums [tile][ld / 16][height]. The memory of
// the last tile is there whole, and kMaxTileHeight numbers more can be read behind scales and sums; what they
// hold is never used.
constexpr int64_t kQuantGroup = 32, kSumGroup = 16, kMaxTileHeight = 16;
struct QuantisedRows {
  int8_t* hi = nullptr;
  int8_t* lo = nullptr;  // 0 to 63, or -64 to -1; null: one term
  float* scales = nullptr;
  int32_t* sums = nullptr;  // of q, over 16 inputs
  int64_t ld = 0;           // inputs, a multiple of kQuantGroup
  int64_t height = 1;       // 1 to kMaxTileHeight
  // Index of a row's scale of a group; its integers begin at 32 times this.
  int64_t group_at(int64_t row, int64_t group) const {
    return (row / height * (ld / kQuantGroup) + group) * height + row % height;
  }
  int64_t sum_at(int64_t row, int64_t half_group) const {
    return (row / height * (ld / kSumGroup) + half_group) * height + row % height;
  }
};
constexpr int64_t tile_height(int64_t rows) {  // best for so many rows
  return rows < kMaxTileHeight ? rows : kMaxTileHeight;
}
constexpr int64_t padded_rows(int64_t rows) {  // that there must be memory for
  const int64_t height = tile_height(rows);
  return (rows + height - 1) / height * height;
}

struct Kernels {
  Isa isa = Isa::scalar;
  std::string_view name;

  // y[r][n] = sum over k in order of x[r][k] * w[n][k], for the outputs n of panels [first, last) and rows r
  // in [0, m). One accumulator an output, fused multiply-add, from 0.
  void (*matmul)(const Panels& w, int64_t first, int64_t last, const float* x, int64_t ldx, int64_t m,
                 float* y, int64_t ldy);
  // One row x [n] into a row of `to`. n: multiple of kQuantGroup.
  void (*quantise)(const float* x, int64_t n, const QuantisedRows& to, int64_t row);
  // The same product from integers. Per group of inputs that share a scale, in order of k, and per output n:
  //   y = fma(float(sum over the group of q_w * q_x), scale_w * scale_x, y); y = fma(addend_w, scale_x *
  //   float(sum q_x), y)
  // The sums of integers are exact, so any order of them gives the same bits. REQUIRES: w.format.quantised();
  // x.height = tile_height(m).
  void (*matmul_quantised)(const Panels& w, int64_t first, int64_t last, const QuantisedRows& x, int64_t m,
                           float* y, int64_t ldy);
  // y = x / sqrt(mean(x²) + eps) * weight; weight may be null (all ones). y may be x.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);
  // out = act(gate) * up. gelu is the tanh form, x * sigmoid(2u), u = sqrt(2/π)(x + 0.044715 x³). out may be
  // gate or up.
  void (*gelu_gate)(const float* gate, const float* up, int64_t n, float* out);
  void (*silu_gate)(const float* gate, const float* up, int64_t n, float* out);
  void (*add)(const float* x, int64_t n, float* h);                  // h += x
  void (*add_scaled)(const float* x, float s, int64_t n, float* h);  // h = fma(s, x, h)
  void (*scale)(float s, int64_t n, float* h);                       // h *= s
  // Turns the pairs (i, i + half) of one head by the angles whose cosines and sines are given.
  void (*rotate)(const float* cosines, const float* sines, int64_t half, float* head);
  void (*softcap)(float cap, int64_t n, float* z);  // z = cap * tanh(z / cap)
  void (*softmax)(int64_t n, float* z);             // in place, of the whole row
  // Attention of every query of a part over the positions that it sees there, from nothing: fills `state`.
  // Per query: scores, each a sum over d in order; their maximum; exp(score - maximum), summed in 16 lanes of
  // positions and their tree; each value a sum over positions in order. What is not seen is left out.
  void (*attend)(const AttentionPart& part, const AttentionState& state);
  // Takes what n queries have got from the next part into what they have from all before it.
  void (*merge)(const AttentionState& next, int64_t n, int64_t padded_dim, const AttentionState& so_far);
  // One key or value [n] rounded to a type of the KV cache: n codes, and their scale where they are int8.
  // codes may be x. False, and nothing is written, when a number is not finite or is beyond the type.
  bool (*encode_kv)(DType type, const float* x, int64_t n, void* codes, float* scale);
};

std::string_view isa_name(Isa isa);
bool isa_available(Isa isa);  // compiled in, and this CPU and operating system have it
// The best available, or the one that the environment variable LAPIDARY_ISA names. Error(unsupported) naming
// it when it is unknown or when this CPU lacks it.
const Kernels& kernels();
const Kernels& kernels(Isa isa);

namespace scalar {
extern const Kernels kTable;
}
namespace avx2 {
extern const Kernels kTable;
}
namespace avx2_vnni {
const Kernels& table();
}
namespace avx512 {
extern const Kernels kTable;
}
namespace amx {
const Kernels& table();
}

}  // namespace lapidary::kernels
