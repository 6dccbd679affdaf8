// verify over every golden model: it passes where it must, and sees every kind of damage.
#include "verify/verify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "base/rng.h"
#include "support/compare.h"
#include "support/golden_models.h"
#include "support/made_models.h"

namespace lapidary::test {
namespace {

// A short prompt, and one past the windows of all golden models.
std::vector<VerifyPrompt> prompts_for(const ModelSpec& spec) {
  const auto first = static_cast<int32_t>(std::min<int64_t>(2, spec.vocab_size - 1));
  std::vector<VerifyPrompt> prompts{{"short", {first}}, {"long", {first}}};
  for (VerifyPrompt& prompt : prompts) {
    for (uint64_t i = 0; prompt.tokens.size() < (prompt.name == "short" ? 12u : 48u); ++i) {
      prompt.tokens.push_back(
          static_cast<int32_t>(uniform_double(1, 0, i) * static_cast<double>(spec.vocab_size)));
    }
  }
  return prompts;
}

// Of the first step: float throughout.
EngineOptions options() {
  return {.threads = 1, .max_sequences = 1, .context = 128, .arithmetic = Arithmetic::f32};
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
    healthy.results.push_back(verify_prompt(engine, *reference, prompt, 8, strict_tolerances()));
  }
  return healthy;
}

MutationResult damage(const Mutation& mutation, const Checkpoint& checkpoint, const Healthy& healthy) {
  return try_mutation(mutation, checkpoint.spec, *checkpoint.tensors, options(), healthy.prompts,
                      healthy.results, strict_tolerances());
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

// What the second step says of an engine in this mode, prompt by prompt.
std::vector<ShippedResult> ship(const ModelSpec& spec, const TensorSource& source, const Healthy& healthy,
                                EngineOptions mode) {
  mode.threads = mode.max_sequences = 1;
  mode.context = 128;
  Engine engine(spec, source, mode);
  std::vector<ShippedResult> results;
  for (const PromptResult& prompt : healthy.results) {
    results.push_back(verify_shipped(engine, prompt.expected, tolerances_of(mode.kv_dtype, mode.arithmetic)));
  }
  return results;
}

TEST_P(VerifyGguf, PassesInItsWeightTypeAndSeesAFlippedBit) {
  const Checkpoint checkpoint = open_golden_gguf(GetParam());
  Healthy healthy = verify_model(checkpoint);
  for (const PromptResult& result : healthy.results) EXPECT_EQ(result.failure, "");
  for (const Arithmetic arithmetic : {Arithmetic::a16, Arithmetic::a8}) {
    for (const KvTypes& kv :
         {KvTypes(DType::f32), KvTypes(DType::f16), KvTypes(DType::bf16), KvTypes(DType::i8)}) {
      const auto results =
          ship(checkpoint.spec, *checkpoint.tensors, healthy, {.kv_dtype = kv, .arithmetic = arithmetic});
      for (const ShippedResult& result : results) {
        EXPECT_EQ(result.failure, "") << arithmetic_name(arithmetic) << ", kv " << kv_types_name(kv);
        EXPECT_GT(result.logits.scored, 0);
      }
    }
  }
  const MutationResult flipped = damage(mutations().back(), checkpoint, healthy);
  EXPECT_EQ(flipped.name, "one exponent bit of a weight");
  EXPECT_EQ(flipped.outcome, MutationOutcome::caught) << flipped.where;
}

INSTANTIATE_TEST_SUITE_P(, VerifyGguf, testing::ValuesIn(gguf_models()), name_of_model);

// Shapes that no golden has, against libtorch.
class VerifyShapes : public testing::TestWithParam<HostileShape> {};

TEST_P(VerifyShapes, AreRightInEveryArithmetic) {
  for (const DType type : {DType::q8_0, DType::q4_1, DType::q4_k, DType::q6_k}) {
    const MadeModel model = make_model(GetParam().spec, type);
    Engine engine(model.spec, model.tensors, options());
    const auto reference = open_reference(model.spec, model.tensors, {});
    Healthy healthy{prompts_for(model.spec), {}};
    for (const VerifyPrompt& prompt : healthy.prompts)
      healthy.results.push_back(verify_prompt(engine, *reference, prompt, 8, strict_tolerances()));
    for (const PromptResult& result : healthy.results) EXPECT_EQ(result.failure, "") << dtype_name(type);
    for (const Arithmetic arithmetic : {Arithmetic::a16, Arithmetic::a8}) {
      for (const ShippedResult& result : ship(model.spec, model.tensors, healthy, {.arithmetic = arithmetic}))
        EXPECT_EQ(result.failure, "") << dtype_name(type) << " in " << arithmetic_name(arithmetic);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, VerifyShapes, testing::ValuesIn(hostile_shapes()),
                         [](const auto& shape) { return shape.param.name; });

// ---- the second step ----

TEST(VerifyShipped, SeesDamageThatOnlyItsEngineHas) {
  const Checkpoint checkpoint = open_golden_gguf("gemma4-e2b-wide-Q4_K_M");
  const Healthy healthy = verify_model(checkpoint);
  const auto mutant = mutations().back().apply(checkpoint.spec, *checkpoint.tensors);
  ASSERT_TRUE(mutant);
  const auto results = ship(mutant->spec, *mutant->tensors, healthy, {});
  EXPECT_NE(results[0].failure.find("logits: mean KL"), std::string::npos) << results[0].failure;
  EXPECT_GT(results[0].logits.kl_max, results[0].logits.kl_mean);
}

TEST(VerifyShipped, NeedsNoStates) {
  const Checkpoint checkpoint = open_golden_gguf("llama-tiny-Q8_0");
  Healthy healthy = verify_model(checkpoint);
  const auto whole = ship(checkpoint.spec, *checkpoint.tensors, healthy, {});
  for (PromptResult& prompt : healthy.results) prompt.expected.drop_states();
  const auto bare = ship(checkpoint.spec, *checkpoint.tensors, healthy, {});
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(bare[i].logits.kl_mean, whole[i].logits.kl_mean);
}

// Perplexity is of the prompt's own tokens: in float it is the reference's.
TEST(VerifyShipped, ScoresThePromptsTokens) {
  const Checkpoint checkpoint = open_golden_gguf("llama-tiny-Q8_0");
  const Healthy healthy = verify_model(checkpoint);
  for (size_t i = 0; i < healthy.results.size(); ++i) {
    const LogitComparison& z = healthy.results[i].comparison.logits;
    EXPECT_EQ(z.scored, static_cast<int64_t>(healthy.prompts[i].tokens.size()) - 1);
    EXPECT_LT(z.expected_logprob_sum, -1.0);
    EXPECT_NEAR(z.logprob_sum, z.expected_logprob_sum, 1e-3);
  }
}

TEST(VerifyShipped, LostTermsAreSeenWhereThereAreTerms) {
  const Checkpoint checkpoint = open_golden_gguf("gemma4-e2b-wide-Q4_0");
  const Healthy healthy = verify_model(checkpoint);
  EngineOptions shipped = options();
  const auto lose = [&] {
    return try_lost_terms(checkpoint.spec, *checkpoint.tensors, shipped, healthy.results);
  };
  EXPECT_EQ(lose().outcome, MutationOutcome::not_applicable) << "float has no terms";
  shipped.arithmetic = Arithmetic::a16;
  shipped.kv_dtype = DType::bf16;
  const MutationResult result = lose();
  EXPECT_EQ(result.outcome, MutationOutcome::caught);
  EXPECT_NE(result.detail.find("mean KL"), std::string::npos) << result.detail;
  const Checkpoint plain = open_golden_gguf("llama-tiny-F32");
  const MutationResult none =
      try_lost_terms(plain.spec, *plain.tensors, shipped, verify_model(plain).results);
  EXPECT_EQ(none.outcome, MutationOutcome::not_applicable);
  EXPECT_EQ(none.where, "no quantised weights");
}

// ---- the damage ----

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
                     healthy.results, strict_tolerances());
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
  EXPECT_EQ(first_failure(comparison, strict_tolerances()),
            "layer 1, V: 0.5 at position 7 (tolerance 0.0002)");
  comparison.layers[0].hidden.finite = false;
  comparison.layers[0].hidden.row = 2;
  EXPECT_EQ(first_failure(comparison, strict_tolerances()),
            "layer 0, hidden state: NaN or infinite at position 2");
}

TEST(VerifyFailure, ATokenMayDifferOnlyOverATie) {
  Comparison comparison;
  comparison.greedy = {.steps = 4, .equal = 3, .parts_at = 2, .gap = 1e-4, .worst_gap = 1e-4};
  EXPECT_EQ(first_failure(comparison, strict_tolerances()), "");
  comparison.greedy.gap = comparison.greedy.worst_gap = 0.5;
  EXPECT_EQ(first_failure(comparison, strict_tolerances()), "greedy text: parts at step 2 over a gap of 0.5");
}

TEST(VerifyFailure, ANaNIsNamedEvenWhereNothingElseIsJudged) {
  Comparison comparison;
  comparison.layers.resize(2);
  comparison.layers[1].hidden = {0, 0, 5, false};
  EXPECT_EQ(first_failure(comparison, Tolerances{}), "layer 1, hidden state: NaN or infinite at position 5");
}

TEST(VerifyFailure, EveryLossyModeHasItsBound) {
  const auto bound = [](const KvTypes& kv, Arithmetic arithmetic) {
    return tolerances_of(kv, arithmetic).mean_kl;
  };
  EXPECT_EQ(bound(DType::f32, Arithmetic::a16), 1e-4);
  EXPECT_EQ(bound(DType::f32, Arithmetic::a8), 1.5e-2);
  EXPECT_EQ(bound(DType::bf16, Arithmetic::a16), 1e-2 + 1e-4);
  EXPECT_EQ(bound(DType::f16, Arithmetic::f32), 1e-4);
  EXPECT_EQ(bound(KvTypes(DType::f32, DType::i8), Arithmetic::f32), 5e-3);
  EXPECT_EQ(bound(KvTypes(DType::i8, DType::f32), Arithmetic::f32), 5e-2) << "keys have loud dimensions";
  EXPECT_EQ(tolerances_of(DType::bf16, Arithmetic::a16).hidden, 0) << "stated, not judged";
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
