// The modes a16 and a8: the same bits however the work is cut, and how far they are from float.
#include "engine/arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/harness.h"
#include "kernels/kernels.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

struct ModeCase {
  std::string model;
  Arithmetic arithmetic;
};

std::vector<ModeCase> mode_cases() {
  std::vector<ModeCase> cases;
  for (const std::string& model : gguf_models()) {
    for (const Arithmetic arithmetic : {Arithmetic::a16, Arithmetic::a8})
      cases.push_back({model, arithmetic});
  }
  return cases;
}

class IntegerModes : public testing::TestWithParam<ModeCase> {
 protected:
  IntegerModes()
      : checkpoint(open_golden_gguf(GetParam().model)), golden(golden_case_of_gguf(GetParam().model)) {}
  std::vector<float> run(EngineOptions options, size_t piece = 0) const {
    options.arithmetic = GetParam().arithmetic;
    Engine engine(checkpoint.spec, *checkpoint.tensors, options);
    return run_alone(engine, tokens_of(golden), piece);
  }
  Checkpoint checkpoint;
  Golden golden;
};

TEST_P(IntegerModes, ChunksThreadsAndPiecesKeepTheBits) {
  const std::vector<float> whole = run({.threads = 1, .chunk = 512});
  expect_same_bits(run({.threads = 2, .chunk = 512}), whole, "two threads");
  expect_same_bits(run({.threads = 1, .chunk = 7}), whole, "chunks of 7");
  expect_same_bits(run({.threads = 2, .chunk = 64}, 1), whole, "one token a call");
}

TEST_P(IntegerModes, ABatchKeepsTheBits) {
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

TEST_P(IntegerModes, EveryIsaKeepsTheBits) {
  const std::vector<float> here = run({.threads = 1});
  for (const char* isa : {"scalar", "avx2"}) {
    if (std::string(isa) == "avx2" && !kernels::isa_available(kernels::Isa::avx2)) continue;
    const ScopedEnvironment forced("LAPIDARY_ISA", isa);
    expect_same_bits(run({.threads = 2}), here, isa);
  }
}

// docs/numerics.md: mean divergence from the float64 truth of the same weights.
TEST_P(IntegerModes, StayNearTheTruth) {
  const std::vector<float> truth = golden.floats(gguf_type(GetParam().model) + ".logits"),
                           got = run({.threads = 1});
  ASSERT_EQ(got.size(), truth.size());
  const auto vocab = static_cast<size_t>(checkpoint.spec.vocab_size);
  const size_t rows = truth.size() / vocab;
  const auto norm = [](std::span<const float> z) {
    double sum = 0;
    for (const float x : z) sum += std::exp(static_cast<double>(x));
    return std::log(sum);
  };
  double divergence = 0;
  for (size_t r = 0; r < rows; ++r) {
    const std::span<const float> p = row_of(truth, r, vocab), q = row_of(got, r, vocab);
    const double np = norm(p), nq = norm(q);
    for (size_t i = 0; i < vocab; ++i) {
      const double log_p = static_cast<double>(p[i]) - np;
      divergence += std::exp(log_p) * (log_p - (static_cast<double>(q[i]) - nq)) / static_cast<double>(rows);
    }
  }
  EXPECT_LT(divergence, GetParam().arithmetic == Arithmetic::a16 ? 1e-4 : 1.5e-2);
}

INSTANTIATE_TEST_SUITE_P(, IntegerModes, testing::ValuesIn(mode_cases()), [](const auto& mode) {
  return test_name(mode.param.model) + "_" + std::string(arithmetic_name(mode.param.arithmetic));
});

TEST(Arithmetic, IsNamedInTheModeAndRefusedWhenUnknown) {
  const Checkpoint checkpoint = open_golden_gguf("llama-tiny-Q8_0");
  const Engine engine(checkpoint.spec, *checkpoint.tensors, {.threads = 1, .arithmetic = Arithmetic::a16});
  EXPECT_NE(engine.numeric_mode().find("a16"), std::string::npos) << engine.numeric_mode();
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
