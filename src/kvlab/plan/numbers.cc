#include "kvlab/plan/numbers.h"

namespace lapidary::kvlab {

int64_t bytes_or_most(BytesAt bytes, int64_t length) {
  try {
    return bytes(length);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::limit) throw;
    return std::numeric_limits<int64_t>::max();
  }
}

std::optional<int64_t> least_length(BytesAt bytes, int64_t target) {
  if (bytes_or_most(bytes, kMostLength) < target) return {};
  return 1 + greatest_length(bytes, target - 1, kMostLength);
}

int64_t greatest_length(BytesAt bytes, int64_t budget, int64_t most) {
  int64_t fits = 0, too_long = most + 1;
  while (too_long - fits > 1) {
    const int64_t middle = fits + (too_long - fits) / 2;
    (bytes_or_most(bytes, middle) <= budget ? fits : too_long) = middle;
  }
  return fits;
}

}  // namespace lapidary::kvlab
