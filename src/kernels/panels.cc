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

PanelFormat quantised_format(DType dtype, bool nibbles, bool half_scales) {
  const GroupLayout layout = group_layout(dtype);
  PanelFormat f{.codes = nibbles ? Codes::q4 : Codes::q8,
                .half_scales = half_scales,
                .addend = layout.has_minimum,
                .group = layout.group};
  f.zero = nibbles ? layout.q_min : -128;
  const size_t scale_bytes = (half_scales ? 2 : 4) * (layout.has_minimum ? 2 : 1);
  f.group_bytes = kLanes * (scale_bytes + static_cast<size_t>(layout.group) / (nibbles ? 2 : 1));
  return f;
}

void put_number(std::byte* base, bool half, int64_t index, float value) {
  if (half) {
    const uint16_t h = float_to_f16(value);  // exact: it was an f16 in the file
    std::memcpy(base + 2 * index, &h, 2);
  } else {
    std::memcpy(base + 4 * index, &value, 4);
  }
}

float get_number(const std::byte* base, bool half, int64_t index) {
  if (half) {
    uint16_t h;
    std::memcpy(&h, base + 2 * index, 2);
    return f16_to_float(h);
  }
  float value;
  std::memcpy(&value, base + 4 * index, 4);
  return value;
}

size_t number_bytes(const PanelFormat& f) {
  return f.half_scales ? 2 : 4;
}

struct CodePlace {
  size_t byte;  // behind the group's scales and addends
  int shift;    // of the nibble
};

// Where the code of input i of a group is.
CodePlace code_place(const PanelFormat& f, int64_t i, int64_t lane) {
  const int64_t half = f.group / 2;
  const bool high = f.codes == Codes::q4 && i >= half;
  if (high) i -= half;
  return {static_cast<size_t>((i / 4 * kLanes + lane) * 4 + i % 4), high ? 4 : 0};
}

// The unpacked rows of one panel, reused from panel to panel.
struct UnpackedRow {
  std::vector<int8_t> q;
  std::vector<float> scale, addend;
};

std::optional<int64_t> bad_group(const UnpackedRow& row, bool addend) {
  for (size_t g = 0; g < row.scale.size(); g++)
    if (!std::isfinite(row.scale[g]) || (addend && !std::isfinite(row.addend[g])))
      return static_cast<int64_t>(g);
  return {};
}

void put_quantised_lane(const UnpackedRow& row, const PanelFormat& f, int64_t n_inputs, int64_t lane,
                        std::byte* panel) {
  const size_t number = number_bytes(f), codes_at = kLanes * number * (f.addend ? 2 : 1);
  for (int64_t g = 0; g < n_inputs / f.group; g++) {
    std::byte* group = panel + static_cast<size_t>(g) * f.group_bytes;
    put_number(group, f.half_scales, lane, row.scale[static_cast<size_t>(g)]);
    if (f.addend)
      put_number(group + kLanes * number, f.half_scales, lane, row.addend[static_cast<size_t>(g)]);
    const int8_t* q = row.q.data() + g * f.group;
    auto* codes = reinterpret_cast<uint8_t*>(group + codes_at);
    for (int i = 0; i < f.group; i++) {
      const auto [byte, shift] = code_place(f, i, lane);
      codes[byte] |= static_cast<uint8_t>((q[i] - f.zero) << shift);  // the panel was zero
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
    case DType::q4_1: return quantised_format(dtype, true, true);
    case DType::q5_0:
    case DType::q5_1:
    case DType::q8_0: return quantised_format(dtype, false, true);
    case DType::q2_k:
    case DType::q3_k:
    case DType::q4_k: return quantised_format(dtype, true, false);
    case DType::q5_k:
    case DType::q6_k: return quantised_format(dtype, false, false);
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
  UnpackedRow row;
  if (is_quantised(weight.dtype)) {
    row.q.resize(static_cast<size_t>(n_inputs));
    row.scale.resize(static_cast<size_t>(n_inputs / f.group));
    row.addend.resize(f.addend ? row.scale.size() : 0);
  }
  for (int64_t panel = first; panel < last; panel++) {
    std::byte* to = out + static_cast<size_t>(panel) * plan.panel_bytes();
    std::memset(to, 0, plan.panel_bytes());
    for (int64_t lane = 0; lane < std::min(kLanes, plan.n_outputs - panel * kLanes); lane++) {
      const int64_t index = panel * kLanes + lane;
      const std::span<const std::byte> bytes = weight.row(index);
      if (is_quantised(weight.dtype)) {
        unpack_row(weight.dtype, bytes, row.q, row.scale, row.addend);
        if (auto g = bad_group(row, f.addend)) return BadWeight{index, *g * f.group};
        put_quantised_lane(row, f, n_inputs, lane, to);
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
  const int64_t lane = row % kLanes;
  const std::byte* panel = panels.data + static_cast<size_t>(row / kLanes) * panels.panel_bytes();
  const std::byte* group = panel + static_cast<size_t>(column / f.group) * f.group_bytes;
  if (f.codes == Codes::f32) return get_number(group, false, lane);
  if (f.codes == Codes::f16) return get_number(group, true, lane);
  if (f.codes == Codes::bf16) {
    uint16_t h;
    std::memcpy(&h, group + 2 * lane, 2);
    return bf16_to_float(h);
  }
  const PanelCode code = panel_code(panels, row, column);
  const float product = code.scale * static_cast<float>(code.q);
  return f.addend ? product + code.addend : product;
}

PanelCode panel_code(const Panels& panels, int64_t row, int64_t column) {
  const PanelFormat& f = panels.format;
  const int64_t lane = row % kLanes;
  const std::byte* panel = panels.data + static_cast<size_t>(row / kLanes) * panels.panel_bytes();
  const std::byte* group = panel + static_cast<size_t>(column / f.group) * f.group_bytes;
  const size_t number = number_bytes(f);
  const auto* codes = reinterpret_cast<const uint8_t*>(group + kLanes * number * (f.addend ? 2 : 1));
  const auto [byte, shift] = code_place(f, column % f.group, lane);
  const int code = f.codes == Codes::q8 ? codes[byte] : codes[byte] >> shift & 15;
  return {code + f.zero, get_number(group, f.half_scales, lane),
          f.addend ? get_number(group + kLanes * number, f.half_scales, lane) : 0.0f};
}

}  // namespace lapidary::kernels
