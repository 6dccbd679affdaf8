// Sampling: a pure function of (logits, parameters, history, mask, seed, stream, step). Same seed, same text
// under any batch.
//
// What happens to the logits, in this order (each step sees what the steps before left):
//   1. repetition penalty on tokens seen, then frequency and presence penalties, then logit bias (float);
//      tokens outside of the mask, if there is one, are forbidden;
//   2. temperature 0 stops here: the token with the greatest score;
//   3. weight = exp((score - best score) / temperature), in double; below exp(-64) of the best it is 0;
//   4. top-k keeps the k best; 5. top-p keeps the smallest set of best tokens that holds at least p of the
//   mass left by top-k (always at least one); 6. min-p drops tokens of less than min_p times the weight of
//   the best;
//   7. the draw: the first token, from the best down, at which the running mass of what is kept reaches u
//   times the whole.
// "Best" means greater score; ties go to the lower id everywhere. A logit of -infinity forbids its token.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace lapidary {

struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  int64_t top_k = 0;         // 0: off
  float top_p = 1.0f;        // nucleus; 1: off
  float min_p = 0.0f;        // relative to the best; 0: off
  float repetition_penalty =
      1.0f;  // divides positive and multiplies negative logits of seen tokens (CTRL paper)
  float frequency_penalty = 0.0f;                     // times the count, subtracted (OpenAI)
  float presence_penalty = 0.0f;                      // once, subtracted (OpenAI)
  std::vector<std::pair<int32_t, float>> logit_bias;  // added; -infinity forbids the token
  uint64_t seed = 0;
  uint64_t stream = 0;                      // tells apart the answers of one request: same seed, other draws
  void validate(int64_t vocab_size) const;  // Error(usage) naming the field, the range and what was got
};

// Keeps its buffers between calls, so that decoding allocates nothing. Not thread-safe; one per sequence.
class Sampler {
 public:
  Sampler(const SamplingParams& params, int64_t vocab_size);  // throws as SamplingParams::validate
  void observe(int32_t token);  // a token of the prompt or the answer; penalties look at these
  // step: number of the draw within its sequence. Ties go to the lower id.
  // mask: the tokens that may be drawn, one bit each, 32 to a word from the lowest up; empty: all. It may
  // cover more tokens than there are logits, not fewer.
  // Error(data) naming the token when a logit is NaN or +infinity (masked or not), and when no token is
  // allowed; Error(usage) on a wrong size.
  int32_t sample(std::span<const float> logits, uint64_t step, std::span<const uint32_t> mask = {});

 private:
  struct Candidate {
    float score = 0;
    int32_t id = 0;
    double weight = 0;  // relative to the best token's, which is 1
  };
  static bool better(const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.id < b.id;
  }
  bool counts_tokens() const;
  std::span<const float> adjust(std::span<const float> logits, std::span<const uint32_t> mask);
  void forbid_outside(std::span<const uint32_t> mask);
  double exponent(float score, float best) const;
  double weight(float score, float best) const;
  double total_weight(std::span<const float> scores, float best) const;
  void collect_best(std::span<const float> scores, int64_t k);
  void collect_above(std::span<const float> scores, float best, double least_weight);
  size_t prefix_with_mass(double mass);
  size_t halve_until_mass(size_t begin, size_t end, double before, double mass);
  int32_t draw(std::span<const float> scores, float best, double u);

  SamplingParams params_;
  int64_t vocab_size_;
  double inverse_temperature_ = 0;
  std::vector<int32_t> counts_;  // by token, when penalties need them
  std::vector<int32_t> seen_;    // tokens with a count, in order of first sight
  std::vector<float> scores_;    // adjusted logits; from the first step on that adjusts them
  std::vector<Candidate> candidates_;
};

}  // namespace lapidary
