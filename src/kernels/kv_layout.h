// How keys and values lie in memory, and the pieces in which attention takes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/kv_types.h"

namespace lapidary::kernels {

// Positions of one KV page: the constant block, anchored at absolute positions.
constexpr int64_t kBlock = 32;
// Blocks of one part. Part i holds positions [512 i, 512 (i + 1)). Softmax and weighted sum of a query start
// anew in each part, and the parts are merged in order: it belongs to the arithmetic.
constexpr int64_t kPartBlocks = 16, kPartPositions = kPartBlocks * kBlock;

// One kv head in one page: keys [head_dim][kBlock], so that lanes are positions; scales of the keys [kBlock]
// where they are int8; values [kBlock][padded_dim], so that lanes are dimensions; scales of the values
// [kBlock] where they are int8. Plain data: what the kernels of every ISA read.
struct KvLayout {
  KvTypes types;
  int64_t head_dim = 0, padded_dim = 0;  // padded to kLanes
  size_t key_scales_at = 0, values_at = 0, value_scales_at = 0, head_bytes = 0;
};
KvLayout kv_layout(const KvTypes& types, int64_t head_dim);

struct Seen {  // positions [lo, hi) that a query sees, counted from the part's first; none when lo >= hi
  int lo = 0, hi = 0;
};

// One part of a context, and the queries (already scaled) that look at it.
struct AttentionPart {
  KvLayout layout;
  // [kPartBlocks] the kv head in each page. Those that no query sees are not read.
  const std::byte* const* blocks = nullptr;
  const float* q = nullptr;  // [n_queries][ldq]
  int64_t ldq = 0, n_queries = 0;
  const Seen* seen = nullptr;  // [n_queries]
};

// What queries have got from a part, or from all parts so far: the greatest score, the sum of exp(score -
// max), and the values weighted by it. sum == 0: nothing seen.
struct AttentionState {
  float* max = nullptr;     // [n_queries]
  float* sum = nullptr;     // [n_queries]
  float* values = nullptr;  // [n_queries][padded_dim]
};

// One key or value, decoded plainly: the meaning of the layout.
float kv_key(const KvLayout& layout, const std::byte* head, int64_t position, int64_t d);
float kv_value(const KvLayout& layout, const std::byte* head, int64_t position, int64_t d);

}  // namespace lapidary::kernels
