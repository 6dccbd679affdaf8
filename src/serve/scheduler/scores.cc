#include "serve/scheduler/scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace lapidary::serve {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

struct Candidate {
  float logit = 0;
  TokenId id = 0;
};
bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// One pass with a heap whose top is the worst of the best so far: few tokens ever enter it.
std::vector<Candidate> best_tokens(std::span<const float> logits, size_t n) {
  std::vector<Candidate> heap;
  if (n == 0) return heap;
  heap.reserve(n);
  for (size_t i = 0; i < logits.size(); i++) {
    const Candidate c{logits[i], static_cast<TokenId>(i)};
    if (heap.size() < n) {
      heap.push_back(c);
      std::push_heap(heap.begin(), heap.end(), better);
    } else if (c.logit > heap.front().logit) {  // an equal one has the greater id
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.back() = c;
      std::push_heap(heap.begin(), heap.end(), better);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), better);
  return heap;
}

}  // namespace

double log_sum_exp(std::span<const float> logits) {
  float highest = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); i++) {
    ensure(logits[i] <= kLargest, ErrorCode::data,
           "logit of token {}: expected a finite number or -infinity, got {}", i, logits[i]);
    highest = std::max(highest, logits[i]);
  }
  ensure(highest >= -kLargest, ErrorCode::data,
         "logits: expected at least one finite number, got {} times -infinity", logits.size());
  double sum = 0;
  for (const float z : logits) sum += std::exp(static_cast<double>(z) - static_cast<double>(highest));
  return static_cast<double>(highest) + std::log(sum);
}

ScoredToken score_token(std::span<const float> logits, TokenId id, int64_t best) {
  ensure(id >= 0 && static_cast<size_t>(id) < logits.size(), ErrorCode::usage,
         "token {} has no score: the vocabulary has tokens from 0 to {}", id, logits.size() - 1);
  const double whole = log_sum_exp(logits);
  const auto score = [&](TokenId token) {
    return TokenScore{token,
                      static_cast<float>(static_cast<double>(logits[static_cast<size_t>(token)]) - whole)};
  };
  ScoredToken scored{score(id), {}};
  for (const Candidate& c : best_tokens(logits, static_cast<size_t>(best)))
    scored.best.push_back(score(c.id));
  return scored;
}

}  // namespace lapidary::serve
