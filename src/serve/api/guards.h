// Watches over what a model writes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/sampler.h"
#include "text/tokenizer.h"

namespace lapidary::serve {

// Has a text begun to repeat itself for good? It has when its last max(kLeast, kTimes * p) tokens are one
// cycle of p tokens over and over, for some p up to kLongest: a word, a line or a short paragraph eight times
// in a row, and never less than 96 tokens of it.
class LoopGuard {
 public:
  static constexpr int64_t kLongest = 64, kTimes = 8, kLeast = 96;
  // The period, as soon as there is one.
  std::optional<int64_t> push(TokenId id);

 private:
  std::array<TokenId, kLongest> ring_{};      // the last tokens, by position modulo its size
  std::array<int64_t, kLongest + 1> same_{};  // by period: how many tokens in a row equalled the one before
  int64_t length_ = 0;
};

// Forbids the tokens, whatever bias the request has for them. REQUIRES: ids are sorted.
void forbid(SamplingParams& sampling, const std::vector<TokenId>& ids);

}  // namespace lapidary::serve
