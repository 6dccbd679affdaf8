// Masks: tokens outside of them are never drawn; what is drawn inside is as if the others did not exist.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "engine/allocation_count.h"
#include "engine/sampler.h"

namespace lapidary {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Mask = std::vector<uint32_t>;

Mask mask_of(const std::vector<bool>& allowed) {
  Mask mask((allowed.size() + 31) / 32);
  for (size_t i = 0; i < allowed.size(); ++i) mask[i / 32] |= uint32_t{allowed[i]} << (i % 32);
  return mask;
}

std::string message(Sampler& sampler, const std::vector<float>& logits, const Mask& mask, ErrorCode code) {
  try {
    sampler.sample(logits, 0, mask);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

const std::vector<SamplingParams>& ways() {
  static const std::vector<SamplingParams> all = {
      {},
      {.temperature = 1.0f},
      {.temperature = 0.7f, .top_k = 5},
      {.temperature = 1.0f, .top_p = 0.9f},
      {.temperature = 5.0f, .min_p = 0.1f},
      {.temperature = 1.3f, .top_k = 64, .top_p = 0.95f, .min_p = 0.02f},
      {.repetition_penalty = 1.3f, .logit_bias = {{2, 3.0f}}},
      {.temperature = 1.0f, .frequency_penalty = 0.5f, .logit_bias = {{0, -kInfinity}}}};
  return all;
}

TEST(Mask, EqualsLogitsOfMinusInfinityInEveryWayOfSampling) {
  for (const size_t vocab : {size_t{3}, size_t{31}, size_t{32}, size_t{33}, size_t{1000}, size_t{4099}}) {
    for (const int density : {2, 10, 100}) {  // one in so many is allowed
      std::vector<float> logits(vocab), forbidden(vocab, -kInfinity);
      std::vector<bool> allowed(vocab);
      for (size_t i = 0; i < vocab; ++i) {
        logits[i] = normal(vocab, 1, i);
        allowed[i] = i + 2 == vocab || uniform_double(3, static_cast<uint64_t>(density), i) * density < 1.0;
        if (allowed[i]) forbidden[i] = logits[i];
      }
      const Mask mask = mask_of(allowed);
      for (SamplingParams params : ways()) {
        params.seed = 5;
        Sampler masked(params, static_cast<int64_t>(vocab)), other(params, static_cast<int64_t>(vocab));
        for (uint64_t step = 0; step < 30; ++step) {
          const int32_t token = masked.sample(logits, step, mask);
          ASSERT_TRUE(allowed[static_cast<size_t>(token)]);
          ASSERT_EQ(token, other.sample(forbidden, step));
          masked.observe(token);
          other.observe(token);
        }
      }
    }
  }
}

TEST(Mask, TheBestTokenIsOutOfReachInGreedyToo) {
  Sampler greedy({}, 4);
  const std::vector<float> logits = {1.0f, 9.0f, 3.0f, 2.0f};
  EXPECT_EQ(greedy.sample(logits, 0, Mask{0b1101}), 2);
  EXPECT_EQ(greedy.sample(logits, 0, Mask{0b1001}), 3);
  EXPECT_EQ(greedy.sample(logits, 0, Mask{0b0001}), 0);
  EXPECT_EQ(greedy.sample(logits, 0), 1) << "a mask is forgotten after its step";
}

TEST(Mask, ChangesNothingWhereItForbidsNothing) {
  std::vector<float> logits(500);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = normal(9, 0, i);
  const Mask all(16, ~uint32_t{0});
  for (const SamplingParams& params : ways()) {
    Sampler masked(params, 500), free(params, 500);
    for (uint64_t step = 0; step < 50; ++step)
      EXPECT_EQ(masked.sample(logits, step, all), free.sample(logits, step));
  }
}

TEST(Mask, EmptyOnesAndWrongSizesAreErrors) {
  for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.temperature = 1.0f}}) {
    Sampler sampler(params, 40);
    const std::vector<float> logits(40, 1.0f);
    EXPECT_EQ(message(sampler, logits, Mask(2), ErrorCode::data),
              "mask: expected at least one of 40 tokens to be allowed, got none");
    // Bits beyond the logits (a padded mask) allow nothing.
    EXPECT_EQ(message(sampler, logits, Mask{0, 0xFFFFFF00u, 7u}, ErrorCode::data),
              "mask: expected at least one of 40 tokens to be allowed, got none");
    EXPECT_EQ(message(sampler, logits, Mask{~0u}, ErrorCode::usage),
              "mask: expected at least 2 words for 40 tokens, got 1");
    EXPECT_EQ(sampler.sample(logits, 0, Mask{0, 0xFFFFFF80u, 7u}), 39);
  }
}

TEST(Mask, TokensThatBothMaskAndBiasForbidLeaveNone) {
  Sampler sampler({.logit_bias = {{1, -kInfinity}}}, 3);
  EXPECT_NE(message(sampler, {1.0f, 2.0f, 3.0f}, Mask{0b010}, ErrorCode::data).find("at least one token"),
            std::string::npos);
}

TEST(Mask, HidesNoFaultOfTheLogits) {
  Sampler sampler({}, 3);
  EXPECT_NE(message(sampler, {1.0f, kNan, 3.0f}, Mask{0b001}, ErrorCode::data).find("logit of token 1"),
            std::string::npos);
  EXPECT_NE(message(sampler, {1.0f, 2.0f, kInfinity}, Mask{0b001}, ErrorCode::data).find("logit of token 2"),
            std::string::npos);
}

TEST(Mask, NoAllocationBetweenSteps) {
  constexpr size_t kVocab = 20000;
  std::vector<float> logits(kVocab);
  for (size_t i = 0; i < kVocab; ++i) logits[i] = normal(5, 0, i);
  Mask mask((kVocab + 31) / 32, 0x55555555u);
  for (const SamplingParams& params : ways()) {
    Sampler sampler(params, kVocab);
    sampler.sample(logits, 0, mask);
    const int64_t before = allocation_count();
    for (uint64_t step = 1; step < 50; ++step) {
      mask[step] ^= 0xFFFFFFFFu;
      sampler.observe(sampler.sample(logits, step, mask));
      sampler.sample(logits, step);
    }
    EXPECT_EQ(allocation_count() - before, 0)
        << "temperature " << params.temperature << " top_k " << params.top_k;
  }
}

}  // namespace
}  // namespace lapidary
