// What logits say of tokens, in double: the plain formulas that tests hold the program's own against.
#pragma once

#include <cstdint>
#include <span>

namespace lapidary::test {

double log_sum_exp(std::span<const float> logits);
double log_probability(std::span<const float> logits, int32_t token);  // natural

// KL(expected || got) in nats, the mean of the rows of two [n, V] matrices.
double mean_kl(std::span<const float> expected, std::span<const float> got, int64_t vocab);

}  // namespace lapidary::test
