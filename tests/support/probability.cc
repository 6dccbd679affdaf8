#include "support/probability.h"

#include <algorithm>
#include <cmath>

namespace lapidary::test {

double log_sum_exp(std::span<const float> logits) {
  const double top = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float z : logits) sum += std::exp(static_cast<double>(z) - top);
  return top + std::log(sum);
}

double log_probability(std::span<const float> logits, int32_t token) {
  return static_cast<double>(logits[static_cast<size_t>(token)]) - log_sum_exp(logits);
}

double mean_kl(std::span<const float> expected, std::span<const float> got, int64_t vocab) {
  const auto width = static_cast<size_t>(vocab);
  double total = 0;
  for (size_t start = 0; start < expected.size(); start += width) {
    const std::span<const float> p = expected.subspan(start, width), q = got.subspan(start, width);
    const double p_sum = log_sum_exp(p), q_sum = log_sum_exp(q);
    for (size_t i = 0; i < width; ++i) {
      const double log_p = static_cast<double>(p[i]) - p_sum;
      total += std::exp(log_p) * (log_p - (static_cast<double>(q[i]) - q_sum));
    }
  }
  return total / static_cast<double>(expected.size() / width);
}

}  // namespace lapidary::test
