// Panels: weights repacked so that the 16 lanes of a vector are 16 outputs and K (the inputs) runs in order.
// A panel holds 16 rows of a weight [N, K]; the last one is padded with zero rows. In memory, panel after
// panel:
//   f32, f16, bf16   [K][16] numbers
//   q4, q5, q6, q8   spans of inputs. A span is one group, with f16 scales; or, in formats with super-scales,
//                    the groups of 256 inputs, behind 16 f16 d and, with addends, 16 f16 m.
// A group of 16 or 32 inputs is 16 scales (f16, or with super-scales int8 c: the scale is d * c), as many
// addends when there are any (f16; or uint8 b: the addend is -(m * b)), then the codes in words of four
// neighbouring inputs:
//   q8               [group/4][16][4] bytes, 0 to 255
//   q4, q5, q6       the lower four bits [group/8][16][4] bytes, whose low nibbles are the first half of the
//                    group and whose high nibbles are the second
//   q5, q6           and then the fifth bits [16][4] bytes: bit i of a byte belongs to word i of the group;
//                    or the upper two bits [group/16][16][4]: pair i of a byte of plane p to word 4p + i
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

enum class Codes : uint8_t { f32, f16, bf16, q4, q5, q6, q8 };

struct PanelFormat {
  Codes codes = Codes::f32;
  bool super_scales = false;
  bool addend = false;
  int group = 1;            // inputs that share a scale
  int zero = 0;             // added to a code: the format's least integer
  int span = 1;             // groups of a span
  size_t header_bytes = 0;  // of a span
  size_t group_bytes = 64;  // bytes of one group of one panel
  bool quantised() const { return codes >= Codes::q4; }
  size_t span_bytes() const { return header_bytes + static_cast<size_t>(span) * group_bytes; }
  int64_t span_inputs() const { return int64_t{span} * group; }
};

PanelFormat panel_format(DType dtype);

struct Panels {  // a view: whoever packed owns the memory
  PanelFormat format;
  int64_t n_outputs = 0, n_inputs = 0;  // N, K
  const std::byte* data = nullptr;
  int64_t n_panels() const { return (n_outputs + kLanes - 1) / kLanes; }
  size_t panel_bytes() const {
    return static_cast<size_t>(n_inputs / format.span_inputs()) * format.span_bytes();
  }
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
