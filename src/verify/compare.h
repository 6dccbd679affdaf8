// Two traces held against each other: how far apart, where first, and what it does to the answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "spec/model_spec.h"
#include "verify/trace.h"

namespace lapidary {

// Of |got - expected| / max(1, |expected|, rms of the expected row), over all elements of a matrix. The row's
// rms, because the norm that reads a row divides by it: an element near zero in a row of hundreds has no
// scale of its own.
struct Difference {
  double max = 0, rms = 0;
  int64_t row = -1;                    // of the greatest, or of the first value that is not finite
  bool finite = true;                  // neither side holds a NaN or an infinity
  void join(const Difference& other);  // the worse of both
};
Difference difference(std::span<const float> got, std::span<const float> expected, int64_t width);

struct Tolerances {
  double hidden = 0, kv = 0, logits = 0;  // of Difference::max; 0: reported, not judged
  double mean_kl = 0;                     // nats; 0: reported, not judged
};

struct LayerComparison {
  Difference hidden, k, v;  // k, v of owners
  bool owner = false;
};

struct LogitComparison {
  Difference difference;
  double max_absolute = 0;
  double kl_mean = 0, kl_max = 0;  // KL(expected || got) per row, nats
  int64_t rows = 0, same_first_choice = 0;
  // Natural log-probabilities of the prompt's own tokens, where the logits before them were kept.
  int64_t scored = 0;
  double logprob_sum = 0, expected_logprob_sum = 0;
};

struct GreedyComparison {  // each decoded token against the expected side's first choice, given the same
                           // tokens before
  int64_t steps = 0, equal = 0;
  std::optional<int64_t> parts_at;  // the first step where they differ
  double gap = 0;        // there: expected side's logit of its own choice minus that of the token got
  double worst_gap = 0;  // the greatest such gap of all steps that differ
};

struct Comparison {
  std::vector<LayerComparison> layers;
  Difference final_norm;
  LogitComparison logits;
  GreedyComparison greedy;
};
Comparison compare(const ModelSpec& spec, const Trace& got, const Trace& expected);
// The logits alone: what is left of a trace without its states.
LogitComparison compare_logits(const ModelSpec& spec, const Trace& got, const Trace& expected);

// The first place, in the order of computation, that leaves the tolerances: "layer 3, K: 0.0123 at position 7
// (tolerance 0.0002)". Empty: none does.
std::string first_failure(const Comparison& comparison, const Tolerances& tolerances);
// The same of logits alone.
std::string first_failure(const LogitComparison& logits, const Tolerances& tolerances);

}  // namespace lapidary
