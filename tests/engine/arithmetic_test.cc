// The arithmetics on quantised weights: the same bits however the work is cut, and how far from the truth.
#include "engine/arithmetic.h"

#include <gtest/gtest.h>

#include "engine/harness.h"
#include "support/compare.h"
#include "support/probability.h"

namespace lapidary::test {
namespace {

// Every type of quantised weights in every arithmetic; a float file as it ships.
std::vector<ModelMode> all_modes() {
  return in_modes(gguf_models(), {Arithmetic::f32, Arithmetic::a16, Arithmetic::a8});
}

class Modes : public testing::TestWithParam<ModelMode> {
 protected:
  Modes() : checkpoint(open_golden_gguf(GetParam().model)), golden(golden_case_of_gguf(GetParam().model)) {}
  std::vector<float> run(EngineOptions options, size_t piece = 0) const {
    options.arithmetic = GetParam().arithmetic;
    Engine engine(checkpoint.spec, *checkpoint.tensors, options);
    return run_alone(engine, tokens_of(golden), piece);
  }
  Checkpoint checkpoint;
  Golden golden;
};

TEST_P(Modes, ChunksThreadsAndPiecesKeepTheBits) {
  const std::vector<float> whole = run({.threads = 1, .chunk = 512});
  expect_same_bits(run({.threads = 2, .chunk = 512}), whole, "two threads");
  expect_same_bits(run({.threads = 1, .chunk = 7}), whole, "chunks of 7");
  expect_same_bits(run({.threads = 2, .chunk = 64}, 1), whole, "one token a call");
}

TEST_P(Modes, ABatchKeepsTheBits) {
  const Tokens tokens = tokens_of(golden);
  const std::vector<float> alone = run({.threads = 1});
  Engine engine(checkpoint.spec, *checkpoint.tensors, {.threads = 2, .arithmetic = GetParam().arithmetic});
  const Tokens others[] = {Tokens(tokens.begin(), tokens.begin() + 5),
                           Tokens(tokens.rbegin(), tokens.rbegin() + 11)};
  const Feed feeds[] = {{engine.open(), others[0], Want::all},
                        {engine.open(), tokens, Want::all},
                        {engine.open(), others[1], Want::last}};
  std::vector<float> got(alone.size());
  engine.forward(feeds, [&](size_t feed, int64_t index, std::span<const float> row) {
    if (feed == 1) std::copy(row.begin(), row.end(), got.begin() + index * checkpoint.spec.vocab_size);
  });
  expect_same_bits(got, alone, "beside others");
}

// docs/numerics.md: mean divergence from the float64 truth of the same weights.
TEST_P(Modes, StayNearTheTruth) {
  const std::vector<float> truth = golden.floats(gguf_type(GetParam().model) + ".logits"),
                           got = run({.threads = 1});
  ASSERT_EQ(got.size(), truth.size());
  const double bound = GetParam().arithmetic == Arithmetic::a8 ? 1.5e-2 : 1e-4;
  EXPECT_LT(mean_kl(truth, got, checkpoint.spec.vocab_size), bound);
}

INSTANTIATE_TEST_SUITE_P(, Modes, testing::ValuesIn(all_modes()), name_of_mode);

TEST(Arithmetic, IsNamedInTheModeAndRefusedWhenUnknown) {
  const Checkpoint checkpoint = open_golden_gguf("llama-tiny-Q8_0");
  const auto mode_of = [&](const Checkpoint& model, const EngineOptions& options) {
    const Engine engine(model.spec, *model.tensors, options);
    EXPECT_EQ(engine.numeric_mode().find(arithmetic_name(engine.arithmetic())) != std::string::npos, true);
    return engine.numeric_mode();
  };
  EXPECT_EQ(mode_of(checkpoint, {.threads = 1}).find("exact, a16, f32 accumulation"), 0u) << "what ships";
  EXPECT_EQ(mode_of(checkpoint, in_float()).find("exact, f32 accumulation"), 0u);
  EXPECT_EQ(mode_of(checkpoint, {.threads = 1, .arithmetic = Arithmetic::a8}).find("exact, a8, "), 0u);
  EXPECT_EQ(mode_of(open_golden_gguf("llama-tiny-F32"), {.threads = 1}).find("exact, f32 accumulation"), 0u)
      << "no weight is quantised: nothing but float is done";
  expect_error([] { arithmetic_from_name("a4"); }, ErrorCode::usage, "expected f32, a16 or a8, got \"a4\"");
}

TEST(Arithmetic, ActivationsThatOverflowAreNamedWithTheirLayerInEveryMode) {
  const Checkpoint checkpoint = open_golden_gguf("llama-tiny-Q8_0");
  PatchedTensors tensors(*checkpoint.tensors);
  tensors.fill({TensorKind::ffn_norm, 1}, 3e38F);
  const Tokens tokens = tokens_of(golden_case_of_gguf("llama-tiny-Q8_0"));
  for (const Arithmetic arithmetic : {Arithmetic::f32, Arithmetic::a16, Arithmetic::a8}) {
    Engine engine(checkpoint.spec, tensors, {.threads = 1, .arithmetic = arithmetic});
    const Feed feed{engine.open(), tokens};
    expect_error(
        [&] {
          engine.forward({&feed, 1}, [](size_t, int64_t, std::span<const float>) {});
        },
        ErrorCode::data, "layer 1: the hidden state of sequence 0, position 0 is not finite",
        arithmetic_name(arithmetic));
  }
}

TEST(Arithmetic, FloatWeightsDoNotCare) {
  const Checkpoint checkpoint = open_golden_model("gemma4-26b-tiny");
  const Tokens tokens = tokens_of(golden_case("gemma4-26b-tiny"));
  expect_same_bits(
      run_model(checkpoint.spec, *checkpoint.tensors, tokens, {.threads = 1, .arithmetic = Arithmetic::a8}),
      run_model(checkpoint.spec, *checkpoint.tensors, tokens), "bf16 weights");
}

TEST(Arithmetic, TheModesAreThreeDifferentThings) {
  const Checkpoint checkpoint = open_golden_gguf("gemma4-e2b-wide-Q4_0");
  const Tokens tokens = tokens_of(golden_case_of_gguf("gemma4-e2b-wide-Q4_0"));
  const auto run = [&](Arithmetic arithmetic) {
    return run_model(checkpoint.spec, *checkpoint.tensors, tokens, {.threads = 1, .arithmetic = arithmetic});
  };
  const std::vector<float> f32 = run(Arithmetic::f32), a16 = run(Arithmetic::a16), a8 = run(Arithmetic::a8);
  const double near = worst_difference(a16, f32), far = worst_difference(a8, f32);
  EXPECT_GT(near, 0);
  EXPECT_GT(far, 20 * near) << "seven more bits";
}

}  // namespace
}  // namespace lapidary::test
