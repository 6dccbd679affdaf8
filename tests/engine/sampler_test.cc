#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "engine/allocation_count.h"

namespace lapidary {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int32_t sample_once(const SamplingParams& params, const std::vector<float>& logits, uint64_t step = 0) {
  Sampler sampler(params, static_cast<int64_t>(logits.size()));
  return sampler.sample(logits, step);
}

// How often each token comes in `draws` draws.
std::vector<int> histogram(const SamplingParams& params, const std::vector<float>& logits, int draws) {
  Sampler sampler(params, static_cast<int64_t>(logits.size()));
  std::vector<int> counts(logits.size());
  for (int i = 0; i < draws; ++i)
    ++counts[static_cast<size_t>(sampler.sample(logits, static_cast<uint64_t>(i)))];
  return counts;
}

// The tokens that can be drawn at all: 4000 draws miss a token of probability 1/400 with a chance of 5e-5.
std::vector<int> support(const SamplingParams& params, const std::vector<float>& logits) {
  std::vector<int> tokens;
  const std::vector<int> counts = histogram(params, logits, 4000);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) tokens.push_back(static_cast<int>(i));
  }
  return tokens;
}

// Logits whose softmax at temperature 1 is proportional to `weights`.
std::vector<float> logs(std::vector<float> weights) {
  for (float& w : weights) w = std::log(w);
  return weights;
}

void expect_distribution(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  const int draws = std::accumulate(counts.begin(), counts.end(), 0);
  double chi_square = 0.0;
  int degrees = -1;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * draws;
    if (expected == 0.0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " has no chance";
    } else {
      chi_square += std::pow(counts[i] - expected, 2) / expected;
      ++degrees;
    }
  }
  EXPECT_LT(chi_square, degrees + 5.0 * std::sqrt(2.0 * degrees) + 5.0);
}

// What the header says, written down with a full sort and running sums.
int32_t sorted_reference(const SamplingParams& p, const std::vector<float>& logits, uint64_t step) {
  struct Token {
    float score;
    int32_t id;
    double weight;
  };
  std::vector<Token> tokens;
  for (size_t i = 0; i < logits.size(); ++i) tokens.push_back({logits[i], static_cast<int32_t>(i), 0.0});
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const Token& a, const Token& b) { return a.score > b.score; });
  for (Token& t : tokens) {
    t.weight = std::exp((static_cast<double>(t.score) - static_cast<double>(tokens[0].score)) /
                        static_cast<double>(p.temperature));
  }
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < tokens.size())
    tokens.resize(static_cast<size_t>(p.top_k));
  const auto mass = [&] {
    return std::accumulate(tokens.begin(), tokens.end(), 0.0,
                           [](double s, const Token& t) { return s + t.weight; });
  };
  const auto reaching = [&](double target) {
    double sum = 0.0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if ((sum += tokens[i].weight) >= target) return i + 1;
    }
    return tokens.size();
  };
  if (p.top_p < 1.0f) tokens.resize(reaching(static_cast<double>(p.top_p) * mass()));
  std::erase_if(tokens, [&](const Token& t) { return t.weight < static_cast<double>(p.min_p); });
  return tokens[reaching(uniform_double(p.seed, p.stream, step) * mass()) - 1].id;
}

TEST(Greedy, TakesTheBestAndTheLowerIdOfEquals) {
  EXPECT_EQ(sample_once({}, {1.0f, 3.0f, 2.0f}), 1);
  EXPECT_EQ(sample_once({}, {1.0f, 3.0f, 3.0f, 3.0f}), 1);
  EXPECT_EQ(sample_once({}, {-0.0f, 0.0f}), 0);
  EXPECT_EQ(sample_once({}, {-kInfinity, -5.0f, -kInfinity}), 1);
  std::vector<float> many(1000, -1.0f);
  for (const size_t best : {size_t{0}, size_t{15}, size_t{16}, size_t{991}, size_t{992}, size_t{999}}) {
    std::vector<float> logits = many;
    logits[best] = 4.0f;
    EXPECT_EQ(sample_once({}, logits), static_cast<int32_t>(best));
    logits[999] = 4.0f;
    EXPECT_EQ(sample_once({}, logits), static_cast<int32_t>(best));
  }
}

TEST(Greedy, IgnoresSeedStepAndFilters) {
  const std::vector<float> logits = {0.0f, 0.1f, 0.05f};
  for (uint64_t step = 0; step < 50; ++step) {
    EXPECT_EQ(sample_once({.top_k = 2, .top_p = 0.9f, .min_p = 0.5f, .seed = step}, logits, step), 1);
  }
}

TEST(Penalties, RepetitionDividesPositiveAndMultipliesNegative) {
  SamplingParams params{.repetition_penalty = 2.0f};
  Sampler sampler(params, 3);
  sampler.observe(0);
  EXPECT_EQ(sampler.sample(std::vector<float>{4.0f, 1.9f, -9.0f}, 0), 0);  // 4 / 2 = 2 > 1.9
  EXPECT_EQ(sampler.sample(std::vector<float>{4.0f, 2.1f, -9.0f}, 0), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-1.0f, -1.9f, -9.0f}, 0), 1);  // -1 * 2 = -2 < -1.9
  EXPECT_EQ(sampler.sample(std::vector<float>{-1.0f, -2.1f, -9.0f}, 0), 0);
  sampler.observe(0);  // once or twice is the same
  EXPECT_EQ(sampler.sample(std::vector<float>{4.0f, 1.9f, -9.0f}, 0), 0);
}

TEST(Penalties, FrequencyCountsAndPresenceDoesNot) {
  SamplingParams frequency{.frequency_penalty = 0.5f}, presence{.presence_penalty = 0.5f};
  Sampler counting(frequency, 2), once(presence, 2);
  for (int i = 0; i < 3; ++i) {
    counting.observe(0);
    once.observe(0);
  }
  const std::vector<float> apart_by_14 = {1.4f, 0.0f}, apart_by_16 = {1.6f, 0.0f}, apart_by_04 = {0.4f, 0.0f},
                           apart_by_06 = {0.6f, 0.0f};
  EXPECT_EQ(counting.sample(apart_by_14, 0), 1);  // 3 * 0.5 = 1.5
  EXPECT_EQ(counting.sample(apart_by_16, 0), 0);
  EXPECT_EQ(once.sample(apart_by_04, 0), 1);  // 0.5 once
  EXPECT_EQ(once.sample(apart_by_06, 0), 0);
}

TEST(Penalties, RepetitionComesBeforeTheSubtractedOnesAndBiasLast) {
  SamplingParams params{.repetition_penalty = 2.0f, .presence_penalty = 1.0f, .logit_bias = {{0, 3.0f}}};
  Sampler sampler(params, 2);
  sampler.observe(0);
  // 4 / 2 - 1 + 3 = 4. Any other order gives 4.5 ((4 - 1) / 2 + 3), 2.5 ((4 + 3) / 2 - 1) or 3 ((4 + 3 - 1) /
  // 2).
  EXPECT_EQ(sampler.sample(std::vector<float>{4.0f, 3.99f}, 0), 0);
  EXPECT_EQ(sampler.sample(std::vector<float>{4.0f, 4.01f}, 0), 1);
}

TEST(Bias, AddsAndForbids) {
  EXPECT_EQ(sample_once({.logit_bias = {{2, 1.5f}}}, {1.0f, 2.0f, 1.0f}), 2);
  EXPECT_EQ(sample_once({.logit_bias = {{2, 0.5f}}}, {1.0f, 2.0f, 1.0f}), 1);
  EXPECT_EQ(support({.temperature = 1.0f, .logit_bias = {{1, -kInfinity}}}, {0.0f, 50.0f, 0.0f}),
            (std::vector<int>{0, 2}));
}

TEST(Filters, TopKKeepsTheBestAndTheLowerIdOfEquals) {
  const std::vector<float> logits = {1.0f, 2.0f, 1.0f, 0.5f, 1.0f};
  EXPECT_EQ(support({.temperature = 1.0f, .top_k = 1}, logits), (std::vector<int>{1}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_k = 2}, logits), (std::vector<int>{0, 1}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_k = 3}, logits), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_k = 4}, logits), (std::vector<int>{0, 1, 2, 4}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_k = 5}, logits), (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_k = 500}, logits), (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(Filters, TopPKeepsTheSmallestSetThatHoldsTheMass) {
  const std::vector<float> logits = logs({0.05f, 0.5f, 0.15f, 0.3f});
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.0f}, logits), (std::vector<int>{1}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.49f}, logits), (std::vector<int>{1}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.51f}, logits), (std::vector<int>{1, 3}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.79f}, logits), (std::vector<int>{1, 3}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.81f}, logits), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.96f}, logits), (std::vector<int>{0, 1, 2, 3}));
  // Four equal tokens hold exactly a quarter each: the mass is reached, not passed, and the lower ids stay.
  const std::vector<float> equal(4, 2.0f);
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.25f}, equal), (std::vector<int>{0}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.5f}, equal), (std::vector<int>{0, 1}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.75f}, equal), (std::vector<int>{0, 1, 2}));
}

TEST(Filters, MinPIsRelativeToTheBest) {
  const std::vector<float> logits = logs({0.05f, 0.5f, 0.15f, 0.3f});  // 0.1, 1, 0.3, 0.6 of the best
  EXPECT_EQ(support({.temperature = 1.0f, .min_p = 0.61f}, logits), (std::vector<int>{1}));
  EXPECT_EQ(support({.temperature = 1.0f, .min_p = 0.59f}, logits), (std::vector<int>{1, 3}));
  EXPECT_EQ(support({.temperature = 1.0f, .min_p = 0.29f}, logits), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(support({.temperature = 1.0f, .min_p = 0.09f}, logits), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(support({.temperature = 1.0f, .min_p = 1.0f}, std::vector<float>{1.0f, 3.0f, 3.0f}),
            (std::vector<int>{1, 2}));
  // Temperature comes first: at 2 the ratios are square roots, 0.55 and 0.77.
  EXPECT_EQ(support({.temperature = 2.0f, .min_p = 0.61f}, logits), (std::vector<int>{1, 3}));
}

TEST(Filters, TopPCountsTheMassThatTopKLeft) {
  // Of 0.4 0.3 0.2 0.1 top-k 2 leaves 4/7 and 3/7: p = 0.55 needs one token, where of the whole it would need
  // two.
  const std::vector<float> logits = logs({0.4f, 0.3f, 0.2f, 0.1f});
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.55f}, logits), (std::vector<int>{0, 1}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_k = 2, .top_p = 0.55f}, logits), (std::vector<int>{0}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_k = 3, .top_p = 0.75f, .min_p = 0.8f}, logits),
            (std::vector<int>{0}));
}

TEST(Draws, FollowTheSoftmax) {
  const std::vector<float> logits = logs({0.05f, 0.5f, 0.15f, 0.3f});
  expect_distribution(histogram({.temperature = 1.0f, .seed = 1}, logits, 40000), {0.05, 0.5, 0.15, 0.3});
  const double s = 0.05 * 0.05 + 0.5 * 0.5 + 0.15 * 0.15 + 0.3 * 0.3;
  expect_distribution(histogram({.temperature = 0.5f, .seed = 2}, logits, 40000),
                      {0.0025 / s, 0.25 / s, 0.0225 / s, 0.09 / s});
  expect_distribution(histogram({.temperature = 1.0f, .top_k = 2, .seed = 3}, logits, 40000),
                      {0, 0.625, 0, 0.375});
  expect_distribution(histogram({.temperature = 1.0f, .top_p = 0.9f, .seed = 4}, logits, 40000),
                      {0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95});
  expect_distribution(histogram({.temperature = 1.0f, .min_p = 0.5f, .seed = 5}, logits, 40000),
                      {0, 0.625, 0, 0.375});
}

TEST(Draws, FollowTheSoftmaxOfManyTokens) {
  std::vector<float> logits(300);
  std::vector<double> probabilities(300);
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = normal(3, 0, i);
    total += probabilities[i] = std::exp(static_cast<double>(logits[i]));
  }
  for (double& p : probabilities) p /= total;
  expect_distribution(histogram({.temperature = 1.0f, .seed = 6}, logits, 60000), probabilities);
}

// Selection without sorting must choose what sorting would: all filters, small and large vocabularies, ties.
TEST(Draws, EqualThoseOfAFullSort) {
  const std::vector<SamplingParams> all = {
      {.temperature = 1.0f},
      {.temperature = 0.7f, .top_k = 1},
      {.temperature = 0.7f, .top_k = 40},
      {.temperature = 1.5f, .top_k = 900},
      {.temperature = 1.0f, .top_p = 0.9f},
      {.temperature = 3.0f, .top_p = 0.999f},
      {.temperature = 1.0f, .min_p = 0.05f},
      {.temperature = 1.3f, .top_k = 64, .top_p = 0.95f, .min_p = 0.02f},
      {.temperature = 0.01f, .top_p = 0.5f},
      {.temperature = 100.0f, .top_p = 0.97f},
  };
  for (const size_t vocab : {size_t{1}, size_t{2}, size_t{37}, size_t{1000}, size_t{5003}}) {
    for (const float spread : {0.0f, 0.5f, 4.0f}) {
      std::vector<float> logits(vocab);
      for (size_t i = 0; i < vocab; ++i)
        logits[i] = std::round(spread * 8.0f * normal(vocab, 1, i)) / 8.0f;  // many ties
      for (SamplingParams params : all) {
        params.seed = vocab;
        Sampler sampler(params, static_cast<int64_t>(vocab));
        for (uint64_t step = 0; step < 40; ++step) {
          ASSERT_EQ(sampler.sample(logits, step), sorted_reference(params, logits, step))
              << "V " << vocab << " spread " << spread << " temperature " << params.temperature << " top_k "
              << params.top_k << " top_p " << params.top_p << " min_p " << params.min_p << " step " << step;
        }
      }
    }
  }
}

TEST(Draws, SurviveExtremeLogits) {
  const std::vector<float> huge = {3e38f, -3e38f, 3e38f};
  EXPECT_EQ(support({.temperature = 1.0f}, huge), (std::vector<int>{0, 2}));
  EXPECT_EQ(support({.temperature = 1e-30f}, {1.0f, 1.0001f, 0.0f}), (std::vector<int>{1}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_k = 3}, {-kInfinity, 2.0f, -kInfinity, 1.0f}),
            (std::vector<int>{1, 3}));
  EXPECT_EQ(support({.temperature = 1.0f, .top_p = 0.99f}, {-kInfinity, 2.0f, -kInfinity, 1.9f}),
            (std::vector<int>{1, 3}));
  EXPECT_EQ(support({.temperature = 1.0f, .min_p = 0.0001f}, {-kInfinity, 2.0f, -1e30f, 1.9f}),
            (std::vector<int>{1, 3}));
}

TEST(Seed, SameSeedSameTokensWhateverElseIsDone) {
  std::vector<float> logits(500);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = normal(9, 0, i);
  const SamplingParams params{.temperature = 1.0f, .top_p = 0.98f, .seed = 42};
  Sampler in_order(params, 500), interleaved(params, 500),
      other({.temperature = 0.5f, .top_k = 7, .seed = 42}, 500);
  std::vector<int32_t> tokens;
  for (uint64_t step = 0; step < 64; ++step) tokens.push_back(in_order.sample(logits, step));
  for (uint64_t step = 64; step-- > 0;) {  // backwards, between draws of others
    other.sample(logits, step);
    EXPECT_EQ(interleaved.sample(logits, step), tokens[step]);
    interleaved.observe(3);  // no penalty is on: history does not matter
  }
  int equal_other_seed = 0, equal_other_stream = 0;
  for (uint64_t step = 0; step < 64; ++step) {
    equal_other_seed +=
        sample_once({.temperature = 1.0f, .top_p = 0.98f, .seed = 43}, logits, step) == tokens[step];
    equal_other_stream += sample_once({.temperature = 1.0f, .top_p = 0.98f, .seed = 42, .stream = 1}, logits,
                                      step) == tokens[step];
  }
  EXPECT_LT(equal_other_seed, 16);
  EXPECT_LT(equal_other_stream, 16);
}

TEST(Allocation, NoneBetweenSamples) {
  constexpr size_t kVocab = 20000;
  std::vector<float> logits(kVocab), ascending(kVocab);
  for (size_t i = 0; i < kVocab; ++i) {
    logits[i] = normal(5, 0, i);
    ascending[i] = static_cast<float>(i) * 1e-3f;
  }
  const std::vector<SamplingParams> all = {
      {},
      {.temperature = 1.0f},
      {.temperature = 1.0f, .top_k = 50},
      {.temperature = 1.0f, .top_k = 15000, .top_p = 0.9f},
      {.temperature = 10.0f, .top_p = 0.999f},
      {.temperature = 10.0f, .min_p = 0.001f},
      {.temperature = 1.0f, .repetition_penalty = 1.2f, .presence_penalty = 0.1f, .logit_bias = {{4, 1.0f}}}};
  for (const SamplingParams& params : all) {
    Sampler sampler(params, kVocab);
    const int64_t before = allocation_count();
    for (uint64_t step = 0; step < 50; ++step) {
      sampler.observe(sampler.sample(step % 2 == 0 ? logits : ascending, step));
      sampler.observe(static_cast<int32_t>(step));
    }
    EXPECT_EQ(allocation_count() - before, 0)
        << "temperature " << params.temperature << " top_k " << params.top_k;
  }
}

double processor_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// Processor time of this thread, the best of several: a busy machine fails no test.
TEST(Speed, ALargeVocabularyCostsLittle) {
  constexpr size_t kVocab = 262144;
  std::vector<float> logits(kVocab);
  for (size_t i = 0; i < kVocab; ++i) logits[i] = 2.0f * normal(6, 0, i);
  const auto best_of = [&](const SamplingParams& params) {
    Sampler sampler(params, kVocab);
    double best = 1e9;
    for (uint64_t step = 0; step < 15; ++step) {
      const double start = processor_milliseconds();
      sampler.sample(logits, step);
      best = std::min(best, processor_milliseconds() - start);
    }
    return best;
  };
  const double greedy = best_of({}), top_k = best_of({.temperature = 1.0f, .top_k = 64}),
               top_p = best_of({.temperature = 1.0f, .top_p = 0.95f});
  std::printf("262144 tokens: greedy %.3f ms, top-k 64 %.3f ms, top-p 0.95 %.3f ms\n", greedy, top_k, top_p);
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(greedy, 0.5);
  EXPECT_LT(top_k, 2.0);
  EXPECT_LT(top_p, 30.0);
#endif
}

std::string message_of(const std::function<void()>& f, ErrorCode code) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

std::string validate(const SamplingParams& params) {
  return message_of([&] { params.validate(10); }, ErrorCode::usage);
}

TEST(Validate, NamesFieldRangeAndValue) {
  EXPECT_EQ(validate({.temperature = -0.5f}), "temperature: expected a number from 0 to 100, got -0.5");
  EXPECT_EQ(validate({.temperature = kNan}), "temperature: expected a number from 0 to 100, got nan");
  EXPECT_EQ(validate({.temperature = kInfinity}), "temperature: expected a number from 0 to 100, got inf");
  EXPECT_EQ(validate({.top_k = -1}), "top_k: expected 0 (off) or more, got -1");
  EXPECT_EQ(validate({.top_p = 1.5f}), "top_p: expected a number from 0 to 1, got 1.5");
  EXPECT_EQ(validate({.top_p = kNan}), "top_p: expected a number from 0 to 1, got nan");
  EXPECT_EQ(validate({.min_p = -0.25f}), "min_p: expected a number from 0 to 1, got -0.25");
  EXPECT_EQ(validate({.repetition_penalty = 0.0f}),
            "repetition_penalty: expected a number from 0.01 to 100, got 0");
  EXPECT_EQ(validate({.frequency_penalty = 200.0f}),
            "frequency_penalty: expected a number from -100 to 100, got 200");
  EXPECT_EQ(validate({.presence_penalty = -kInfinity}),
            "presence_penalty: expected a number from -100 to 100, got -inf");
  EXPECT_EQ(validate({.logit_bias = {{10, 1.0f}}}), "logit_bias: expected token ids from 0 to 9, got 10");
  EXPECT_EQ(validate({.logit_bias = {{-1, 1.0f}}}), "logit_bias: expected token ids from 0 to 9, got -1");
  EXPECT_EQ(validate({.logit_bias = {{3, kNan}}}),
            "logit_bias of token 3: expected a finite number or -infinity, got nan");
  EXPECT_EQ(validate({.logit_bias = {{3, kInfinity}}}),
            "logit_bias of token 3: expected a finite number or -infinity, got inf");
  EXPECT_EQ(validate({.logit_bias = {{3, 1.0f}, {2, 1.0f}, {3, 2.0f}}}),
            "logit_bias: expected each token once, got token 3 twice");
  EXPECT_NO_THROW(
      (SamplingParams{.temperature = 2.0f, .top_k = 1000, .top_p = 0.0f, .logit_bias = {{9, -kInfinity}}}
           .validate(10)));
}

TEST(Validate, TheSamplerChecksItsParameters) {
  EXPECT_EQ(message_of([] { Sampler({.top_p = 2.0f}, 10); }, ErrorCode::usage),
            "top_p: expected a number from 0 to 1, got 2");
  EXPECT_NE(message_of([] { Sampler({}, 0); }, ErrorCode::usage).find("got 0"), std::string::npos);
}

TEST(BadInput, IsRefusedWithTheTokenNamed) {
  Sampler sampler({.temperature = 1.0f}, 20);
  std::vector<float> logits(20, 1.0f);
  logits[18] = kNan;
  EXPECT_EQ(message_of([&] { sampler.sample(logits, 0); }, ErrorCode::data),
            "logit of token 18: expected a finite number or -infinity, got nan");
  logits[18] = 1.0f;
  logits[3] = kInfinity;
  EXPECT_EQ(message_of([&] { sampler.sample(logits, 0); }, ErrorCode::data),
            "logit of token 3: expected a finite number or -infinity, got inf");
  std::fill(logits.begin(), logits.end(), -kInfinity);
  EXPECT_EQ(message_of([&] { sampler.sample(logits, 0); }, ErrorCode::data),
            "logits: expected at least one token that is allowed, got 20 times -infinity");
  logits.pop_back();
  EXPECT_EQ(message_of([&] { sampler.sample(logits, 0); }, ErrorCode::usage), "logits: expected 20, got 19");
  EXPECT_EQ(message_of([&] { sampler.observe(20); }, ErrorCode::usage),
            "observed token: expected an id from 0 to 19, got 20");
  EXPECT_EQ(message_of([&] { sampler.observe(-1); }, ErrorCode::usage),
            "observed token: expected an id from 0 to 19, got -1");
  logits.assign(20, 0.0f);
  logits[7] = 60.0f;
  EXPECT_EQ(sampler.sample(logits, 0), 7) << "still usable after refused calls";
}

}  // namespace
}  // namespace lapidary
