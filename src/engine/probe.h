// Probe: how others watch the engine. Nothing is computed or copied for it when it is absent: one branch per
// layer.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lapidary {

struct RowId {           // one row of a forward step
  int32_t sequence = 0;  // as returned by Engine::open
  int64_t position = 0;
};

// What the operations of a layer make, in the order in which they run. A layer reports what it has.
enum class Op {
  attention_input,  // [D] after the norm
  key,
  value,             // [K*Hd] as projected; owners. With k_eq_v there is no value
  query,             // [H*Hd] as projected
  turned_query,      // [H*Hd] after norm, RoPE and scale
  attended,          // [H*Hd] what the heads got
  attention_output,  // [D] projected, before its norm
  ffn_input,         // [D] after the norm
  gated,             // [F] act(gate) * up
  ffn_output,        // [D] projected, experts included, before its norm
  ple_output,        // [D] projected, before its norm
};
std::string_view op_name(Op op);

// One operation's result for the rows of a step, row r at values + r * stride.
struct OpRows {
  int64_t layer = 0;
  Op op{};
  std::span<const RowId> rows;
  const float* values = nullptr;
  int64_t width = 0, stride = 0;
  std::span<const float> row(size_t r) const {
    return {values + static_cast<int64_t>(r) * stride, static_cast<size_t>(width)};
  }
};

class Probe {
 public:
  virtual ~Probe() = default;
  // Stream after a whole layer, [rows.size(), D] row-major. Rows whose output nobody wants may stop at the
  // last layer that stores KV.
  virtual void on_hidden(int64_t layer, std::span<const RowId> rows, std::span<const float> hidden) = 0;
  // Input of the head, [rows.size(), D].
  virtual void on_final_norm(std::span<const RowId> rows, std::span<const float> values) = 0;
  // K (after norm and RoPE) and V (after its norm) of one row of an owner, as stored: rounded to the cache's
  // type. [K * Hd] each.
  virtual void on_kv(int64_t layer, RowId row, std::span<const float> k, std::span<const float> v) = 0;
  // Attention probabilities of one row and head over positions [first, first + p.size()). Only when
  // wants_scores().
  virtual void on_scores(int64_t layer, RowId row, int64_t head, int64_t first, std::span<const float> p) = 0;
  virtual bool wants_scores() const = 0;
  // Every operation of every layer. Only when wants_ops().
  virtual void on_op(const OpRows&) {}
  virtual bool wants_ops() const { return false; }
};

}  // namespace lapidary
