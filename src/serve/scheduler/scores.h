// Log-probabilities of a row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "serve/job.h"

namespace lapidary::serve {

// logits: [vocab_size], those that have a token. The logarithm of the sum over all of them, in double and in
// one fixed order, so that a score depends on the logits alone. Error(data) naming the token when a logit is
// NaN or +infinity.
double log_sum_exp(std::span<const float> logits);

// Of one token, and of the `best` most probable ones, by logit and then by id: the first of them is what a
// greedy draw without penalties takes. Error(usage) when the row has no such token.
ScoredToken score_token(std::span<const float> logits, TokenId id, int64_t best);

}  // namespace lapidary::serve
