// The meaning of every kernel, in plain loops. Slow, never deleted: the vector kernels must give these bits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"
#include "kernels/kernels.h"

namespace lapidary::kernels::scalar {
namespace {

float fma(float a, float b, float c) {
  return std::fma(a, b, c);
}

// The larger; the second when they are equal or one is not a number (as the vector instruction answers).
float larger(float a, float b) {
  return a > b ? a : b;
}
float smaller(float a, float b) {
  return a < b ? a : b;
}

// e^x within 1 ulp or so: 2^n times a polynomial on [-ln2/2, ln2/2] (coefficients of the Cephes library).
// Clamped to normal numbers.
float exp(float x) {
  x = smaller(larger(x, -87.33654f), 88.0f);
  const float n =
      fma(x, 1.44269504f, 12582912.0f) - 12582912.0f;  // round to nearest by the bits that fall off
  float r = fma(n, -0.693359375f, x);
  r = fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fma(p, r, 1.3981999507e-3f);
  p = fma(p, r, 8.3334519073e-3f);
  p = fma(p, r, 4.1665795894e-2f);
  p = fma(p, r, 1.6666665459e-1f);
  p = fma(p, r, 5.0000001201e-1f);
  p = fma(p, r * r, r) + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

// Polynomial for small arguments (Cephes), else by exp.
float tanh(float x) {
  const float a = std::fabs(x);
  if (a < 0.625f) {
    const float z = x * x;
    float p = -5.70498872745e-3f;
    p = fma(p, z, 2.06390887954e-2f);
    p = fma(p, z, -5.37397155531e-2f);
    p = fma(p, z, 1.33314422036e-1f);
    p = fma(p, z, -3.33332819422e-1f);
    return fma(p * z, x, x);
  }
  return std::copysign(1.0f - 2.0f / (exp(a + a) + 1.0f), x);
}

float gelu(float x) {
  const float u = fma(0.044715f * x, x * x, x) * 1.5957691216f;  // 2 sqrt(2/π)
  return x / (1.0f + exp(0.0f - u));
}

float silu(float x) {
  return x / (1.0f + exp(0.0f - x));
}

// Sum of 16 lanes: l with l + 8, then + 4, + 2, + 1.
float sum_lanes(float* lanes) {
  for (int width = 8; width > 0; width /= 2)
    for (int l = 0; l < width; l++) lanes[l] += lanes[l + width];
  return lanes[0];
}

void matmul(const Panels& w, int64_t first, int64_t last, const float* x, int64_t ldx, int64_t m, float* y,
            int64_t ldy) {
  for (int64_t n = first * kLanes; n < std::min(last * kLanes, w.n_outputs); n++) {
    for (int64_t r = 0; r < m; r++) y[r * ldy + n] = 0;
    for (int64_t k = 0; k < w.n_inputs; k++) {
      const float weight = panel_weight(w, n, k);
      for (int64_t r = 0; r < m; r++) y[r * ldy + n] = fma(x[r * ldx + k], weight, y[r * ldy + n]);
    }
  }
}

// A group of zeros under the given scale.
void put_nothing(const QuantisedRows& to, int64_t row, int64_t group, float scale) {
  const int64_t at = to.group_at(row, group);
  to.scales[at] = scale;
  std::fill_n(to.hi + kQuantGroup * at, kQuantGroup, int8_t{0});
  if (to.lo) std::fill_n(to.lo + kQuantGroup * at, kQuantGroup, int8_t{0});
  for (int half = 0; half < 2; half++) to.sums[to.sum_at(row, 2 * group + half)] = 0;
}

void quantise(const float* x, int64_t n, const QuantisedRows& to, int64_t row) {
  const float greatest_q = to.lo ? 16256.0f : 127.0f;
  for (int64_t group = 0; group < n / kQuantGroup; group++, x += kQuantGroup) {
    float greatest = 0, poison = 0;  // poison: 0, or NaN where a number is not finite
    for (int64_t i = 0; i < kQuantGroup; i++) {
      greatest = larger(std::fabs(x[i]), greatest);
      poison += x[i] * 0.0f;
    }
    if (!(poison == 0)) {
      put_nothing(to, row, group, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    if (greatest < 1e-30f) {  // its inverse would not be finite
      put_nothing(to, row, group, 0.0f);
      continue;
    }
    const float inverse = greatest_q / greatest;
    const int64_t at = to.group_at(row, group);
    to.scales[at] = greatest / greatest_q;
    int32_t sums[2] = {};
    for (int64_t i = 0; i < kQuantGroup; i++) {
      const auto q = static_cast<int32_t>(std::nearbyint(x[i] * inverse));
      const int32_t hi = to.lo ? (q + 64) >> 7 : q;
      to.hi[kQuantGroup * at + i] = static_cast<int8_t>(hi);
      if (to.lo) to.lo[kQuantGroup * at + i] = static_cast<int8_t>(q - 128 * hi);
      sums[i / kSumGroup] += q;
    }
    for (int half = 0; half < 2; half++) to.sums[to.sum_at(row, 2 * group + half)] = sums[half];
  }
}

float quantised_product(const Panels& w, int64_t n, const QuantisedRows& x, int64_t row) {
  const int64_t group = w.format.group;
  float y = 0;
  for (int64_t k = 0; k < w.n_inputs; k += group) {
    const PanelCode first = panel_code(w, n, k);
    const int64_t at = x.group_at(row, k / kQuantGroup);
    int32_t dot = 0, sum = 0;
    for (int64_t i = k; i < k + group; i++) {
      const int64_t place = kQuantGroup * at + i % kQuantGroup;
      const int32_t q = x.lo ? 128 * x.hi[place] + x.lo[place] : x.hi[place];
      dot += panel_code(w, n, i).q * q;
      sum += q;
    }
    const float scale = x.scales[at];
    y = fma(static_cast<float>(dot), first.scale * scale, y);
    if (w.format.addend) y = fma(first.addend, scale * static_cast<float>(sum), y);
  }
  return y;
}

void matmul_quantised(const Panels& w, int64_t first, int64_t last, const QuantisedRows& x, int64_t m,
                      float* y, int64_t ldy) {
  for (int64_t n = first * kLanes; n < std::min(last * kLanes, w.n_outputs); n++)
    for (int64_t r = 0; r < m; r++) y[r * ldy + n] = quantised_product(w, n, x, r);
}

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; i++) lanes[i % kLanes] = fma(x[i], x[i], lanes[i % kLanes]);
  const float scale = 1.0f / std::sqrt(sum_lanes(lanes) / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; i++) y[i] = weight ? x[i] * scale * weight[i] : x[i] * scale;
}

void gelu_gate(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i++) out[i] = gelu(gate[i]) * up[i];
}

void silu_gate(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i++) out[i] = silu(gate[i]) * up[i];
}

void add(const float* x, int64_t n, float* h) {
  for (int64_t i = 0; i < n; i++) h[i] = h[i] + x[i];
}

void add_scaled(const float* x, float s, int64_t n, float* h) {
  for (int64_t i = 0; i < n; i++) h[i] = fma(s, x[i], h[i]);
}

void scale(float s, int64_t n, float* h) {
  for (int64_t i = 0; i < n; i++) h[i] = h[i] * s;
}

void rotate(const float* cosines, const float* sines, int64_t half, float* head) {
  for (int64_t i = 0; i < half; i++) {
    const float a = head[i], b = head[i + half];
    head[i] = fma(a, cosines[i], 0.0f - b * sines[i]);
    head[i + half] = fma(b, cosines[i], a * sines[i]);
  }
}

void softcap(float cap, int64_t n, float* z) {
  for (int64_t i = 0; i < n; i++) z[i] = tanh(z[i] / cap) * cap;
}

void softmax(int64_t n, float* z) {
  float best = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; i++) best = larger(best, z[i]);
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; i++) {
    z[i] = exp(z[i] - best);
    lanes[i % kLanes] += z[i];
  }
  const float total = sum_lanes(lanes);
  for (int64_t i = 0; i < n; i++) z[i] = z[i] / total;
}

// A stored number without its scale, which is applied to sums.
float code(DType type, const std::byte* base, int64_t index) {
  switch (type) {
    case DType::f16: return f16_to_float(reinterpret_cast<const uint16_t*>(base)[index]);
    case DType::bf16: return bf16_to_float(reinterpret_cast<const uint16_t*>(base)[index]);
    case DType::i8: return static_cast<float>(reinterpret_cast<const int8_t*>(base)[index]);
    default: return reinterpret_cast<const float*>(base)[index];
  }
}

float scale_at(const std::byte* base, int64_t position) {
  return reinterpret_cast<const float*>(base)[position];
}

void attend_one(const AttentionPart& part, const float* q, Seen seen, float* max, float* sum, float* values) {
  const KvLayout& l = part.layout;
  float p[kPartPositions], best = -std::numeric_limits<float>::infinity(), lanes[kLanes] = {};
  for (int j = seen.lo; j < seen.hi; j++) {
    const std::byte* head = part.blocks[j / kBlock];
    p[j] = 0;
    for (int64_t d = 0; d < l.head_dim; d++)
      p[j] = fma(q[d], code(l.types.keys, head, d * kBlock + j % kBlock), p[j]);
    if (l.types.keys == DType::i8) p[j] = p[j] * scale_at(head + l.key_scales_at, j % kBlock);
    best = larger(best, p[j]);
  }
  for (int j = seen.lo; j < seen.hi; j++) {
    p[j] = exp(p[j] - best);
    lanes[j % kLanes] += p[j];
  }
  *max = best;
  *sum = sum_lanes(lanes);
  for (int j = seen.lo; j < seen.hi; j++)
    if (l.types.values == DType::i8)
      p[j] = p[j] * scale_at(part.blocks[j / kBlock] + l.value_scales_at, j % kBlock);
  for (int64_t d = 0; d < l.padded_dim; d++) {
    float v = 0;
    for (int j = seen.lo; j < seen.hi; j++)
      v = fma(p[j],
              code(l.types.values, part.blocks[j / kBlock] + l.values_at, j % kBlock * l.padded_dim + d), v);
    values[d] = v + 0.0f;  // never -0, so that a term of +0 is the same as none
  }
}

void attend(const AttentionPart& part, const AttentionState& state) {
  for (int64_t i = 0; i < part.n_queries; i++)
    attend_one(part, part.q + i * part.ldq, part.seen[i], state.max + i, state.sum + i,
               state.values + i * part.layout.padded_dim);
}

void merge(const AttentionState& next, int64_t n, int64_t padded_dim, const AttentionState& so_far) {
  for (int64_t i = 0; i < n; i++) {
    if (next.sum[i] == 0) continue;
    const float* from = next.values + i * padded_dim;
    float* to = so_far.values + i * padded_dim;
    if (so_far.sum[i] == 0) {
      so_far.max[i] = next.max[i];
      so_far.sum[i] = next.sum[i];
      std::copy_n(from, padded_dim, to);
      continue;
    }
    const float best = larger(next.max[i], so_far.max[i]), old_share = exp(so_far.max[i] - best),
                new_share = exp(next.max[i] - best);
    so_far.max[i] = best;
    so_far.sum[i] = fma(so_far.sum[i], old_share, next.sum[i] * new_share);
    for (int64_t d = 0; d < padded_dim; d++) to[d] = fma(to[d], old_share, from[d] * new_share);
  }
}

// The least magnitude that would round to infinity.
float beyond(DType type) {
  return type == DType::f16    ? 65520.0f
         : type == DType::bf16 ? 0x1.ffp127f
                               : std::numeric_limits<float>::infinity();
}

bool encode_kv(DType type, const float* x, int64_t n, void* codes, float* scale) {
  float greatest = 0, poison = 0;
  for (int64_t i = 0; i < n; i++) {
    greatest = larger(std::fabs(x[i]), greatest);
    poison += x[i] * 0.0f;
  }
  if (!(poison == 0) || !(greatest < beyond(type))) return false;
  const float inverse = greatest < 1e-30f ? 0.0f : 127.0f / greatest;  // q8: below, it would not be finite
  if (type == DType::i8) *scale = greatest < 1e-30f ? 0.0f : greatest / 127.0f;
  auto* to = static_cast<std::byte*>(codes);  // may be x: a code is no longer than the float it comes from
  for (int64_t i = 0; i < n; i++) {
    const float number = x[i];
    const auto put = [&](auto code) {
      std::memcpy(to + static_cast<size_t>(i) * sizeof code, &code, sizeof code);
    };
    switch (type) {
      case DType::f16: put(float_to_f16(number)); break;
      case DType::bf16: put(float_to_bf16(number)); break;
      case DType::i8: put(static_cast<int8_t>(std::nearbyint(number * inverse))); break;
      default: put(number);
    }
  }
  return true;
}

}  // namespace

const Kernels kTable{Isa::scalar, "scalar", matmul,     quantise, matmul_quantised, rms_norm, gelu_gate,
                     silu_gate,   add,      add_scaled, scale,    rotate,           softcap,  softmax,
                     attend,      merge,    encode_kv};

}  // namespace lapidary::kernels::scalar
