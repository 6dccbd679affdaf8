// Sampling: a pure function of (logits, parameters, history, seed, stream, step). Same seed, same text under any batch.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace lapidary {

struct SamplingParams {
  float temperature = 0.0f;         // 0: greedy
  int64_t top_k = 0;                // 0: off
  float top_p = 1.0f;               // nucleus; 1: off
  float min_p = 0.0f;               // relative to the best; 0: off
  float repetition_penalty = 1.0f;  // divides positive and multiplies negative logits of seen tokens (CTRL paper)
  float frequency_penalty = 0.0f;   // times the count, subtracted (OpenAI)
  float presence_penalty = 0.0f;    // once, subtracted (OpenAI)
  std::vector<std::pair<int32_t, float>> logit_bias;
  uint64_t seed = 0;
  void validate(int64_t vocab_size) const;  // Error(usage) naming the field, the range and what was got
};

// Keeps its buffers between calls, so that decoding allocates nothing.
class Sampler {
 public:
  Sampler(const SamplingParams& params, int64_t vocab_size);
  void observe(int32_t token);  // a token of the prompt or the answer; penalties look at these
  // step: number of the draw within its sequence. Ties go to the lower id.
  int32_t sample(std::span<const float> logits, uint64_t step);

 private:
  SamplingParams params_;
  std::vector<int32_t> counts_;
  std::vector<float> scores_;
  std::vector<int32_t> order_;
};

}  // namespace lapidary
