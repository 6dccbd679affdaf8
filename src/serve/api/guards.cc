#include "serve/api/guards.h"

#include <algorithm>
#include <limits>

namespace lapidary::serve {

std::optional<int64_t> LoopGuard::push(TokenId id) {
  std::optional<int64_t> found;
  for (int64_t period = 1; period <= std::min(kLongest, length_); ++period) {
    int64_t& same = same_[static_cast<size_t>(period)];
    same = ring_[static_cast<size_t>((length_ - period) % kLongest)] == id ? same + 1 : 0;
    const int64_t run = same + period;  // the first cycle equals nothing before it
    if (!found && run >= std::max(kLeast, kTimes * period)) found = period;
  }
  ring_[static_cast<size_t>(length_ % kLongest)] = id;
  length_++;
  return found;
}

void forbid(SamplingParams& sampling, const std::vector<TokenId>& ids) {
  std::erase_if(sampling.logit_bias,
                [&ids](const auto& bias) { return std::binary_search(ids.begin(), ids.end(), bias.first); });
  for (const TokenId id : ids) {
    sampling.logit_bias.emplace_back(id, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace lapidary::serve
