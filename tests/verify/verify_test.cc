// verify over every golden model: it passes where it must, and sees every kind of damage.
#include "verify/verify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/rng.h"
#include "support/compare.h"
#include "support/golden_models.h"

namespace lapidary::test {
namespace {

// A short prompt, and one past the windows of all golden models.
std::vector<VerifyPrompt> prompts_for(const ModelSpec& spec) {
  std::vector<VerifyPrompt> prompts{{"short", {2}}, {"long", {2}}};
  for (VerifyPrompt& prompt : prompts) {
    for (uint64_t i = 0; prompt.tokens.size() < (prompt.name == "short" ? 12u : 48u); ++i) {
      prompt.tokens.push_back(
          static_cast<int32_t>(uniform_double(1, 0, i) * static_cast<double>(spec.vocab_size)));
    }
  }
  return prompts;
}

EngineOptions options() {
  return {.threads = 1, .max_sequences = 1, .context = 128};
}

struct Healthy {
  std::vector<VerifyPrompt> prompts;
  std::vector<PromptResult> results;
};

Healthy verify_model(const Checkpoint& checkpoint, ReferenceType type = ReferenceType::f64) {
  Engine engine(checkpoint.spec, *checkpoint.tensors, options());
  const auto reference = open_reference(checkpoint.spec, *checkpoint.tensors, {.type = type});
  Healthy healthy{prompts_for(checkpoint.spec), {}};
  for (const VerifyPrompt& prompt : healthy.prompts) {
    healthy.results.push_back(
        verify_prompt(engine, *reference, prompt, 8, tolerances_of(DType::f32, Arithmetic::f32)));
  }
  return healthy;
}

MutationResult damage(const Mutation& mutation, const Checkpoint& checkpoint, const Healthy& healthy) {
  return try_mutation(mutation, checkpoint.spec, *checkpoint.tensors, options(), healthy.prompts,
                      healthy.results, tolerances_of(DType::f32, Arithmetic::f32));
}

class VerifyGolden : public testing::TestWithParam<std::string> {};

TEST_P(VerifyGolden, PassesAgainstBothReferences) {
  const Checkpoint checkpoint = open_golden_model(GetParam());
  for (const ReferenceType type : {ReferenceType::f64, ReferenceType::f32}) {
    for (const PromptResult& result : verify_model(checkpoint, type).results) {
      EXPECT_EQ(result.failure, "") << reference_type_name(type);
      EXPECT_EQ(result.comparison.greedy.equal, 8);
      EXPECT_GT(result.comparison.logits.difference.max, 0) << "two executors, not one";
    }
  }
}

TEST_P(VerifyGolden, SeesEveryDamage) {
  const Checkpoint checkpoint = open_golden_model(GetParam());
  const Healthy healthy = verify_model(checkpoint);
  int applied = 0;
  for (const Mutation& mutation : mutations()) {
    const MutationResult result = damage(mutation, checkpoint, healthy);
    EXPECT_NE(result.outcome, MutationOutcome::missed) << result.name << ": " << result.where;
    if (result.outcome != MutationOutcome::caught) continue;
    EXPECT_NE(result.detail, "") << result.name;
    ++applied;
  }
  EXPECT_GE(applied, 6);
}

INSTANTIATE_TEST_SUITE_P(, VerifyGolden, testing::ValuesIn(golden_models()), name_of_model);

class VerifyGguf : public testing::TestWithParam<std::string> {};

TEST_P(VerifyGguf, PassesInItsWeightTypeAndSeesAFlippedBit) {
  const Checkpoint checkpoint = open_golden_gguf(GetParam());
  const Healthy healthy = verify_model(checkpoint);
  for (const PromptResult& result : healthy.results) EXPECT_EQ(result.failure, "");
  const MutationResult flipped = damage(mutations().back(), checkpoint, healthy);
  EXPECT_EQ(flipped.name, "one exponent bit of a weight");
  EXPECT_EQ(flipped.outcome, MutationOutcome::caught) << flipped.where;
}

INSTANTIATE_TEST_SUITE_P(, VerifyGguf, testing::ValuesIn(gguf_models()), name_of_model);

TEST(VerifyMutations, EachFitsSomeGoldenModel) {
  std::set<std::string> unseen;
  for (const Mutation& mutation : mutations()) unseen.insert(mutation.name);
  for (const std::string& name : golden_models()) {
    const Checkpoint checkpoint = open_golden_model(name);
    for (const Mutation& mutation : mutations()) {
      if (mutation.apply(checkpoint.spec, *checkpoint.tensors)) unseen.erase(mutation.name);
    }
  }
  EXPECT_EQ(unseen, std::set<std::string>{});
}

TEST(VerifyMutations, OneThatDamagesNothingIsReportedAsMissed) {
  const Checkpoint checkpoint = open_golden_model("llama-tiny");
  const Mutation nothing{
      "nothing",
      [](const ModelSpec& spec, const TensorSource& source) {
        return std::optional<Mutant>({spec, std::make_shared<PatchedTensors>(source), "nowhere"});
      },
      ""};
  const MutationResult result = damage(nothing, checkpoint, verify_model(checkpoint));
  EXPECT_EQ(result.outcome, MutationOutcome::missed);
}

TEST(VerifyMutations, AnEngineThatLacksRoomDidNotCatchAnything) {
  const Checkpoint checkpoint = open_golden_model("llama-tiny");
  const Healthy healthy = verify_model(checkpoint);
  EngineOptions small = options();
  small.context = 4;
  expect_error(
      [&] {
        try_mutation(mutations().back(), checkpoint.spec, *checkpoint.tensors, small, healthy.prompts,
                     healthy.results, tolerances_of(DType::f32, Arithmetic::f32));
      },
      ErrorCode::limit, "");
}

TEST(VerifyMutations, SaysWhatAModelLacks) {
  const Checkpoint checkpoint = open_golden_model("llama-tiny");
  const MutationResult result = damage(mutations().front(), checkpoint, verify_model(checkpoint));
  EXPECT_EQ(result.outcome, MutationOutcome::not_applicable);
  EXPECT_EQ(result.where, "no layer scalar other than 1");
}

TEST(VerifyMutations, AnEngineThatRefusesTheDamageCaughtIt) {
  const Checkpoint checkpoint = open_golden_model("llama-tiny");
  const Mutation nan{"NaN",
                     [](const ModelSpec& spec, const TensorSource& source) {
                       auto patched = std::make_shared<PatchedTensors>(source);
                       patched->fill({TensorKind::output_norm, -1}, std::nanf(""));
                       return std::optional<Mutant>({spec, patched, "the norm"});
                     },
                     ""};
  const MutationResult result = damage(nan, checkpoint, verify_model(checkpoint));
  EXPECT_EQ(result.outcome, MutationOutcome::caught);
  EXPECT_NE(result.detail.find("output_norm"), std::string::npos) << result.detail;
}

// ---- the numbers ----

TEST(VerifyDifference, IsRelativeToTheValueOrTheRow) {
  const std::vector<float> expected{0, 100, 0, 0.5F}, got{0.25F, 101, 0, 0.75F};
  const Difference one_row = difference(got, expected, 4);  // rms of the row is 50
  EXPECT_NEAR(one_row.max, 0.01, 1e-9);
  const Difference two_rows = difference(got, expected, 2);
  EXPECT_NEAR(two_rows.max, 0.25, 1e-9) << "the second row is small: its scale is 1";
  EXPECT_EQ(two_rows.row, 1);
}

TEST(VerifyDifference, NamesTheRowOfANaN) {
  const std::vector<float> expected{0, 0, 0, 0}, got{0, 0, std::nanf(""), 0};
  const Difference d = difference(got, expected, 2);
  EXPECT_FALSE(d.finite);
  EXPECT_EQ(d.row, 1);
}

TEST(VerifyFailure, NamesTheFirstPlaceInTheOrderOfComputation) {
  Comparison comparison;
  comparison.layers.resize(3);
  comparison.layers[1].v = {0.5, 0.1, 7, true};
  comparison.layers[2].hidden = {0.9, 0.1, 3, true};
  EXPECT_EQ(first_failure(comparison, tolerances_of(DType::f32, Arithmetic::f32)),
            "layer 1, V: 0.5 at position 7 (tolerance 0.0002)");
  comparison.layers[0].hidden.finite = false;
  comparison.layers[0].hidden.row = 2;
  EXPECT_EQ(first_failure(comparison, tolerances_of(DType::f32, Arithmetic::f32)),
            "layer 0, hidden state: NaN or infinite at position 2");
}

TEST(VerifyFailure, ATokenMayDifferOnlyOverATie) {
  Comparison comparison;
  comparison.greedy = {.steps = 4, .equal = 3, .parts_at = 2, .gap = 1e-4, .worst_gap = 1e-4};
  EXPECT_EQ(first_failure(comparison, tolerances_of(DType::f32, Arithmetic::f32)), "");
  comparison.greedy.gap = comparison.greedy.worst_gap = 0.5;
  EXPECT_EQ(first_failure(comparison, tolerances_of(DType::f32, Arithmetic::f32)),
            "greedy text: parts at step 2 over a gap of 0.5");
}

TEST(VerifyFailure, ANaNIsNamedEvenWhereNothingElseIsJudged) {
  Comparison comparison;
  comparison.layers.resize(2);
  comparison.layers[1].hidden = {0, 0, 5, false};
  EXPECT_EQ(first_failure(comparison, Tolerances{}), "layer 1, hidden state: NaN or infinite at position 5");
}

TEST(VerifyFailure, LossyKvIsHeldToADivergence) {
  Comparison comparison;
  comparison.logits.difference.max = 0.5;
  comparison.logits.kl_mean = 1e-3;
  EXPECT_EQ(first_failure(comparison, tolerances_of(DType::bf16, Arithmetic::f32)), "");
  comparison.logits.kl_mean = 0.5;
  EXPECT_EQ(first_failure(comparison, tolerances_of(DType::bf16, Arithmetic::f32)),
            "logits: mean KL 0.5 nats (tolerance 0.01)");
}

}  // namespace
}  // namespace lapidary::test
