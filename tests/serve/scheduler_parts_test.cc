// Pace and scores by themselves.
#include <gtest/gtest.h>

#include <limits>

#include "base/rng.h"
#include "serve/scheduler/pace.h"
#include "serve/scheduler/scores.h"
#include "serve/scheduler_harness.h"

namespace lapidary::serve::scheduler_test {
namespace {

// A machine that takes `fixed` seconds for a step and `per_row` for each of its prompt rows.
int64_t settle(Pace& pace, double fixed, double per_row, int steps = 60) {
  for (int i = 0; i < steps; i++)
    pace.measured(pace.prompt_rows(), fixed + per_row * static_cast<double>(pace.prompt_rows()));
  return pace.prompt_rows();
}

TEST(SchedulerPace, FindsTheRowsThatFillAStep) {
  Pace pace(0.1, 256);
  EXPECT_EQ(pace.prompt_rows(), Pace::kLeastRows);
  EXPECT_NEAR(static_cast<double>(settle(pace, 0, 0.001)), 100, 2);
  EXPECT_NEAR(static_cast<double>(settle(pace, 0.05, 0.001)), 50, 2);
  EXPECT_EQ(settle(pace, 0, 0.0001), 256);                // never more than a step
  EXPECT_EQ(settle(pace, 0.2, 0.001), Pace::kLeastRows);  // never fewer than move prompts
  EXPECT_EQ(Pace(0.1, 5).prompt_rows(), 5);
}

TEST(SchedulerPace, SlowsDownAtOnceAndSpeedsUpByWhatWasUsed) {
  Pace pace(0.1, 1024);
  EXPECT_EQ(settle(pace, 0, 0.0005), 200);
  pace.measured(10, 0.0001);  // a few fast rows say little
  EXPECT_EQ(pace.prompt_rows(), 200);
  pace.measured(200, 0.2);
  EXPECT_EQ(pace.prompt_rows(), 100);
  pace.measured(100, 0.001);
  EXPECT_EQ(pace.prompt_rows(), 200);
  pace.measured(1000, 0.125);  // a whole step while nobody generated
  EXPECT_EQ(pace.prompt_rows(), 800);
  pace.measured(0, 1);
  EXPECT_EQ(pace.prompt_rows(), 800);
}

TEST(SchedulerScores, AreTheFormula) {
  std::vector<float> logits(500);
  for (size_t i = 0; i < logits.size(); i++) logits[i] = 3.0f * normal(7, 0, i);
  logits[20] = logits[30] = logits[40] = 25.0f;  // a tie: the lower id first
  logits[50] = -std::numeric_limits<float>::infinity();
  for (const TokenId id : {0, 30, 499}) {
    const ScoredToken expected = scored(logits, id, 8);
    expect_same_scores({score_token(logits, id, 8)}, {expected}, "token");
    EXPECT_EQ(expected.best[0].id, 20);
    EXPECT_EQ(expected.best[2].id, 40);
  }
  EXPECT_TRUE(score_token(logits, 3, 0).best.empty());
  EXPECT_EQ(score_token(logits, 3, 1000).best.size(), 500u);
  EXPECT_EQ(score_token(logits, 50, 0).token.logprob, -std::numeric_limits<float>::infinity());
  const float alone[] = {-7.0f};
  EXPECT_EQ(score_token(alone, 0, 1).token.logprob, 0.0f);
}

TEST(SchedulerScores, RefuseWhatHasNone) {
  std::vector<float> logits(9, 1.0f);
  expect_error([&] { score_token(logits, 9, 0); }, ErrorCode::usage, "token 9");
  expect_error([&] { score_token(logits, -1, 0); }, ErrorCode::usage, "token -1");
  logits[4] = std::numeric_limits<float>::quiet_NaN();
  expect_error([&] { score_token(logits, 1, 0); }, ErrorCode::data, "token 4");
  logits.assign(9, -std::numeric_limits<float>::infinity());
  expect_error([&] { score_token(logits, 1, 0); }, ErrorCode::data, "9 times");
}

}  // namespace
}  // namespace lapidary::serve::scheduler_test
