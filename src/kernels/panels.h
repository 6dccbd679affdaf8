// Panels: weights repacked so that the 16 lanes of a vector are 16 outputs and K (the inputs) runs in order.
// A panel holds 16 rows of a weight [N, K]; the last one is padded with zero rows. In memory, panel after
// panel:
//   f32, f16, bf16   [K][16] numbers
//   q8, q4           per group of 16 or 32 inputs: 16 scales, 16 addends when there are any (both f16 or
//   f32), then the codes, bytes 0 to 255 or nibbles 0 to 15, in words of four neighbouring inputs:
//                    q8 [group/4][16][4] bytes; q4 [group/8][16][4] bytes, whose low nibbles are the first
//                    half of the group and whose high nibbles are the second
// A word is what one lane of an integer dot product takes at once.
// The value of a code is round(scale * (code + zero)) + addend, which is bit for bit what decode_row
// (base/blocks.h) answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/tensor.h"

namespace lapidary::kernels {

constexpr int64_t kLanes = 16;

enum class Codes : uint8_t { f32, f16, bf16, q8, q4 };

struct PanelFormat {
  Codes codes = Codes::f32;
  bool half_scales = false;  // scales and addends are f16, else f32
  bool addend = false;
  int group = 1;            // inputs that share a scale
  int zero = 0;             // added to a code: -128 for q8, the format's least integer for q4
  size_t group_bytes = 64;  // bytes of one group of one panel
  bool quantised() const { return codes == Codes::q8 || codes == Codes::q4; }
};

PanelFormat panel_format(DType dtype);

struct Panels {  // a view: whoever packed owns the memory
  PanelFormat format;
  int64_t n_outputs = 0, n_inputs = 0;  // N, K
  const std::byte* data = nullptr;
  int64_t n_panels() const { return (n_outputs + kLanes - 1) / kLanes; }
  size_t panel_bytes() const { return static_cast<size_t>(n_inputs / format.group) * format.group_bytes; }
  size_t bytes() const { return static_cast<size_t>(n_panels()) * panel_bytes(); }
};

// A panels' shape without memory yet. `weight` is [N, K], any float or block format.
Panels plan_panels(const TensorView& weight);

struct BadWeight {
  int64_t row, column;
};  // not a finite number
// Packs panels [first, last) of `weight` to where plan.data will point; returns the first weight that is not
// finite, if any.
std::optional<BadWeight> pack_panels(const TensorView& weight, const Panels& plan, int64_t first,
                                     int64_t last, std::byte* out);

// One weight, decoded plainly: the meaning of the layout, used by the scalar kernels and by tests.
float panel_weight(const Panels& panels, int64_t row, int64_t column);

// The parts of a quantised weight: value = scale * q + addend. REQUIRES: panels.format.quantised().
struct PanelCode {
  int q;  // code + zero
  float scale, addend;
};
PanelCode panel_code(const Panels& panels, int64_t row, int64_t column);

}  // namespace lapidary::kernels
