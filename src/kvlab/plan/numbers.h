// Whole numbers of the planner: sums and products that say so when they leave 64 bits, and searches over
// lengths.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/function_ref.h"

namespace lapidary::kvlab {

// The longest length that the planner looks at.
inline constexpr int64_t kMostLength = int64_t{1} << 40;

inline int64_t times(int64_t a, int64_t b) {
  int64_t out = 0;
  ensure(!__builtin_mul_overflow(a, b, &out), ErrorCode::limit, "bytes: {} times {} is beyond 64 bits", a, b);
  return out;
}

inline int64_t plus(int64_t a, int64_t b) {
  int64_t out = 0;
  ensure(!__builtin_add_overflow(a, b, &out), ErrorCode::limit, "bytes: {} plus {} is beyond 64 bits", a, b);
  return out;
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// What `bytes` says of a length; the greatest number where that is beyond 64 bits.
using BytesAt = FunctionRef<int64_t(int64_t length)>;
int64_t bytes_or_most(BytesAt bytes, int64_t length);

// REQUIRES: `bytes` never falls from one length to the next.
// The least length in [1, kMostLength] whose bytes are `target` or more.
std::optional<int64_t> least_length(BytesAt bytes, int64_t target);
// The greatest length in [0, most] whose bytes are `budget` or fewer; 0 when there is none.
int64_t greatest_length(BytesAt bytes, int64_t budget, int64_t most);

}  // namespace lapidary::kvlab
