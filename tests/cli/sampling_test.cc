// Flags before generation_config.json before greedy.
#include "cli/sampling.h"

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/temp_dir.h"

namespace lapidary::test {
namespace {

class Sampling : public testing::Test {
 protected:
  Checkpoint checkpoint() const {
    Checkpoint checkpoint;
    checkpoint.path = folder_.path();
    checkpoint.spec.vocab_size = 100;
    return checkpoint;
  }
  void config(const char* text) const { folder_.write("generation_config.json", std::string_view(text)); }
  TempDir folder_;
};

TEST_F(Sampling, IsGreedyWhenNobodyAsksOtherwise) {
  EXPECT_EQ(sampling_text(sampling_params({}, checkpoint())), "greedy");
  config(R"({"eos_token_id": 1, "top_k": 64})");
  EXPECT_EQ(sampling_text(sampling_params({}, checkpoint())), "greedy");
}

TEST_F(Sampling, FollowsTheModel) {
  config(R"({"do_sample": true, "temperature": 0.5, "top_k": 64, "top_p": 0.875})");
  SamplingFlags flags;
  flags.seed = 3;
  const SamplingParams params = sampling_params(flags, checkpoint());
  EXPECT_EQ(sampling_text(params), "temperature 0.5, top-k 64, top-p 0.875, seed 3");
}

TEST_F(Sampling, FlagsComeFirst) {
  config(R"({"temperature": 0.5, "top_k": 64, "repetition_penalty": 1.25})");
  SamplingFlags flags;
  flags.temperature = 0.0f;
  EXPECT_EQ(sampling_text(sampling_params(flags, checkpoint())), "greedy, repeat penalty 1.25");
  flags.temperature = 2.0f;
  flags.top_k = 0;
  flags.repeat_penalty = 1.0f;
  flags.seed = 9;
  EXPECT_EQ(sampling_text(sampling_params(flags, checkpoint())), "temperature 2, seed 9");
}

TEST_F(Sampling, DoSampleFalseMeansGreedy) {
  config(R"({"do_sample": false, "temperature": 0.5})");
  EXPECT_EQ(sampling_text(sampling_params({}, checkpoint())), "greedy");
}

TEST_F(Sampling, DrawsASeedOfItsOwnEachTime) {
  SamplingFlags flags;
  flags.temperature = 1.0f;
  const uint64_t one = sampling_params(flags, checkpoint()).seed,
                 two = sampling_params(flags, checkpoint()).seed;
  EXPECT_NE(one, two);
}

TEST_F(Sampling, DamagedConfigIsNamed) {
  config(R"({"temperature": "hot"})");
  expect_error([&] { sampling_params({}, checkpoint()); }, ErrorCode::data,
               "temperature is no number: \"hot\"");
  config("[1]");
  expect_error([&] { sampling_params({}, checkpoint()); }, ErrorCode::data,
               "generation_config.json is no JSON object");
}

TEST_F(Sampling, LogitBiasIsReadAndChecked) {
  SamplingFlags flags;
  flags.logit_bias = {"5=-1.5", "99=100"};
  const SamplingParams params = sampling_params(flags, checkpoint());
  ASSERT_EQ(params.logit_bias.size(), 2u);
  EXPECT_EQ(params.logit_bias[0], (std::pair<int32_t, float>{5, -1.5f}));
  for (const char* bad : {"5", "=1", "5=", "x=1", "5=1x", "5 =1"}) {
    flags.logit_bias = {bad};
    expect_error([&] { sampling_params(flags, checkpoint()); }, ErrorCode::usage,
                 "--logit-bias: expected ID=VALUE");
  }
}

}  // namespace
}  // namespace lapidary::test
