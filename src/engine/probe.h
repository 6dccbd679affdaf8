// Probe: how others watch the engine. Nothing is computed or copied for it when it is absent: one branch per
// layer.
#pragma once

#include <cstdint>
#include <span>

namespace lapidary {

struct RowId {           // one row of a forward step
  int32_t sequence = 0;  // as returned by Engine::open
  int64_t position = 0;
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
};

}  // namespace lapidary
