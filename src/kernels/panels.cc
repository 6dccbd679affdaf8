#include "kernels/panels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/blocks.h"
#include "base/error.h"
#include "base/half.h"

namespace lapidary::kernels {
namespace {

PanelFormat quantised_format(DType dtype, Codes codes) {
  const GroupLayout layout = group_layout(dtype);
  PanelFormat f{.codes = codes,
                .super_scales = layout.super_scales,
                .addend = layout.has_minimum,
                .group = layout.group,
                .zero = layout.q_min};
  const size_t numbers = f.addend ? 2 : 1, group = static_cast<size_t>(f.group);
  if (f.super_scales) {
    f.span = 256 / f.group;
    f.header_bytes = kLanes * 2 * numbers;
  }
  const size_t low = codes == Codes::q8 ? group : group / 2, high = codes == Codes::q5   ? group / 8
                                                                    : codes == Codes::q6 ? group / 4
                                                                                         : 0;
  f.group_bytes = kLanes * (numbers * (f.super_scales ? 1 : 2) + low + high);
  return f;
}

template <typename T>
T get(const std::byte* base, int64_t index) {
  T value;
  std::memcpy(&value, base + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void put(std::byte* base, int64_t index, T value) {
  std::memcpy(base + static_cast<size_t>(index) * sizeof(T), &value, sizeof(T));
}

bool finite_f16(uint16_t h) {
  return (h & 0x7c00) != 0x7c00;
}

size_t number_bytes(const PanelFormat& f) {  // of a scale or addend of a group
  return f.super_scales ? 1 : 2;
}

size_t codes_at(const PanelFormat& f) {
  return kLanes * number_bytes(f) * (f.addend ? 2 : 1);
}

// The first block with a scale that is no finite number.
std::optional<int64_t> bad_block(const UnpackedRow& row) {
  for (size_t i = 0; i < row.d.size(); i++)
    if (!finite_f16(row.d[i]) || (!row.m.empty() && !finite_f16(row.m[i]))) return static_cast<int64_t>(i);
  return {};
}

// Four neighbouring codes of a group, from input 4 * word on, as one little-endian word: q - zero byte by
// byte, added without carries from one byte to the next.
uint32_t code_word(const int8_t* q, int word, int zero) {
  uint32_t x;
  std::memcpy(&x, q + 4 * word, 4);
  const uint32_t y = 0x01010101u * static_cast<uint8_t>(-zero);
  return ((x & 0x7f7f7f7fu) + (y & 0x7f7f7f7fu)) ^ ((x ^ y) & 0x80808080u);
}

void put_codes(const int8_t* q, const PanelFormat& f, int64_t lane, std::byte* to) {
  const int words = f.group / 4;
  if (f.codes == Codes::q8) {
    for (int w = 0; w < words; w++) put(to, w * kLanes + lane, code_word(q, w, f.zero));
    return;
  }
  uint32_t code[8], high[2] = {};
  for (int w = 0; w < words; w++) code[w] = code_word(q, w, f.zero);
  for (int w = 0; w < words / 2; w++)
    put(to, w * kLanes + lane, (code[w] & 0x0f0f0f0fu) | (code[w + words / 2] & 0x0f0f0f0fu) << 4);
  to += kLanes * f.group / 2;
  if (f.codes == Codes::q5) {
    for (int w = 0; w < words; w++) high[0] |= (code[w] >> 4 & 0x01010101u) << w;
    put(to, lane, high[0]);
  } else if (f.codes == Codes::q6) {
    for (int w = 0; w < words; w++) high[w / 4] |= (code[w] >> 4 & 0x03030303u) << (2 * (w % 4));
    for (int p = 0; p < words / 4; p++) put(to, p * kLanes + lane, high[p]);
  }
}

int get_code(const PanelFormat& f, int64_t i, int64_t lane, const std::byte* from) {
  const int64_t word = i / 4, byte = lane * 4 + i % 4, half = f.group / 8;
  if (f.codes == Codes::q8) return get<uint8_t>(from, word * 64 + byte);
  const int low = get<uint8_t>(from, word % half * 64 + byte) >> (word < half ? 0 : 4) & 15;
  from += kLanes * f.group / 2;
  if (f.codes == Codes::q5) return low | (get<uint8_t>(from, byte) >> word & 1) << 4;
  if (f.codes == Codes::q6)
    return low | (get<uint8_t>(from, word / 4 * 64 + byte) >> (2 * (word % 4)) & 3) << 4;
  return low;
}

void put_quantised_lane(const UnpackedRow& row, const PanelFormat& f, int64_t n_inputs, int64_t lane,
                        std::byte* panel) {
  for (int64_t s = 0; s < n_inputs / f.span_inputs(); s++) {
    std::byte* span = panel + static_cast<size_t>(s) * f.span_bytes();
    if (f.super_scales) {
      put(span, lane, row.d[static_cast<size_t>(s)]);
      if (f.addend) put(span, kLanes + lane, row.m[static_cast<size_t>(s)]);
    }
    for (int64_t g = s * f.span; g < (s + 1) * f.span; g++) {
      const auto i = static_cast<size_t>(g);
      std::byte* group = span + f.header_bytes + static_cast<size_t>(g % f.span) * f.group_bytes;
      if (f.super_scales) {
        put(group, lane, row.c[i]);
        if (f.addend) put(group, kLanes + lane, row.b[i]);
      } else {
        put(group, lane, row.d[i]);
        if (f.addend) put(group, kLanes + lane, row.m[i]);
      }
      put_codes(row.q.data() + g * f.group, f, lane, group + codes_at(f));
    }
  }
}

template <size_t kBytes>  // of one number; rows of a file may lie at any address
void put_float_lane(const std::byte* row, int64_t n_inputs, int64_t lane, std::byte* panel) {
  for (int64_t k = 0; k < n_inputs; k++)
    std::memcpy(panel + static_cast<size_t>(k * kLanes + lane) * kBytes,
                row + static_cast<size_t>(k) * kBytes, kBytes);
}

std::optional<int64_t> bad_float(DType dtype, std::span<const std::byte> row, int64_t n) {
  for (int64_t k = 0; k < n; k++) {
    if (dtype == DType::f32) {
      float value;
      std::memcpy(&value, row.data() + 4 * k, 4);
      if (!std::isfinite(value)) return k;
    } else {
      uint16_t h;
      std::memcpy(&h, row.data() + 2 * k, 2);
      const uint16_t exponent = dtype == DType::f16 ? 0x7c00 : 0x7f80;
      if ((h & exponent) == exponent) return k;
    }
  }
  return {};
}

}  // namespace

PanelFormat panel_format(DType dtype) {
  switch (dtype) {
    case DType::f32: return {.codes = Codes::f32, .group_bytes = 4 * kLanes};
    case DType::f16: return {.codes = Codes::f16, .group_bytes = 2 * kLanes};
    case DType::bf16: return {.codes = Codes::bf16, .group_bytes = 2 * kLanes};
    case DType::q4_0:
    case DType::q4_1:
    case DType::q2_k:
    case DType::q3_k:
    case DType::q4_k: return quantised_format(dtype, Codes::q4);
    case DType::q5_0:
    case DType::q5_1:
    case DType::q5_k: return quantised_format(dtype, Codes::q5);
    case DType::q6_k: return quantised_format(dtype, Codes::q6);
    case DType::q8_0: return quantised_format(dtype, Codes::q8);
    default: fail(ErrorCode::unsupported, "no panel format for {} weights", dtype_name(dtype));
  }
}

Panels plan_panels(const TensorView& weight) {
  return {.format = panel_format(weight.dtype), .n_outputs = weight.rows(), .n_inputs = weight.columns()};
}

std::optional<BadWeight> pack_panels(const TensorView& weight, const Panels& plan, int64_t first,
                                     int64_t last, std::byte* out) {
  const PanelFormat& f = plan.format;
  const int64_t n_inputs = plan.n_inputs;
  std::optional<UnpackedRow> row;
  if (is_quantised(weight.dtype)) row.emplace(weight.dtype, static_cast<size_t>(n_inputs));
  for (int64_t panel = first; panel < last; panel++) {
    std::byte* to = out + static_cast<size_t>(panel) * plan.panel_bytes();
    std::memset(to, 0, plan.panel_bytes());
    for (int64_t lane = 0; lane < std::min(kLanes, plan.n_outputs - panel * kLanes); lane++) {
      const int64_t index = panel * kLanes + lane;
      const std::span<const std::byte> bytes = weight.row(index);
      if (row) {
        unpack_row(weight.dtype, bytes, row->parts());
        if (auto block = bad_block(*row))
          return BadWeight{index, *block * static_cast<int64_t>(dtype_info(weight.dtype).block_elements)};
        put_quantised_lane(*row, f, n_inputs, lane, to);
      } else {
        if (auto k = bad_float(weight.dtype, bytes, n_inputs)) return BadWeight{index, *k};
        if (f.codes == Codes::f32) put_float_lane<4>(bytes.data(), n_inputs, lane, to);
        else put_float_lane<2>(bytes.data(), n_inputs, lane, to);
      }
    }
  }
  return {};
}

float panel_weight(const Panels& panels, int64_t row, int64_t column) {
  const PanelFormat& f = panels.format;
  if (f.quantised()) {
    const PanelCode code = panel_code(panels, row, column);
    const float product = code.scale * static_cast<float>(code.q);
    return f.addend ? product + code.addend : product;
  }
  const int64_t lane = row % kLanes;
  const std::byte* numbers = panels.data + static_cast<size_t>(row / kLanes) * panels.panel_bytes() +
                             static_cast<size_t>(column) * f.group_bytes;
  if (f.codes == Codes::f32) return get<float>(numbers, lane);
  const auto half = get<uint16_t>(numbers, lane);
  return f.codes == Codes::f16 ? f16_to_float(half) : bf16_to_float(half);
}

PanelCode panel_code(const Panels& panels, int64_t row, int64_t column) {
  const PanelFormat& f = panels.format;
  const int64_t lane = row % kLanes, s = column / f.span_inputs(), g = column % f.span_inputs() / f.group;
  const std::byte* span = panels.data + static_cast<size_t>(row / kLanes) * panels.panel_bytes() +
                          static_cast<size_t>(s) * f.span_bytes();
  const std::byte* group = span + f.header_bytes + static_cast<size_t>(g) * f.group_bytes;
  PanelCode out{get_code(f, column % f.group, lane, group + codes_at(f)) + f.zero, 0, 0};
  if (f.super_scales) {
    out.scale = f16_to_float(get<uint16_t>(span, lane)) * static_cast<float>(get<int8_t>(group, lane));
    if (f.addend)
      out.addend = -(f16_to_float(get<uint16_t>(span, kLanes + lane)) *
                     static_cast<float>(get<uint8_t>(group, kLanes + lane)));
  } else {
    out.scale = f16_to_float(get<uint16_t>(group, lane));
    if (f.addend) out.addend = f16_to_float(get<uint16_t>(group, kLanes + lane));
  }
  return out;
}

}  // namespace lapidary::kernels
