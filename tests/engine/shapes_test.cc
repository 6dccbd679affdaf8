// Shapes that no published model has, in every type of weights and every arithmetic: right, or refused by
// name.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "engine/harness.h"
#include "support/compare.h"
#include "support/made_models.h"
#include "support/probability.h"

namespace lapidary::test {
namespace {

constexpr DType kQuantised[] = {DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1,
                                DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k};

Tokens random_tokens(const ModelSpec& spec, size_t count) {
  Tokens tokens;
  for (uint64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(uniform_double(3, 0, i) * static_cast<double>(spec.vocab_size)));
  return tokens;
}

class Shapes : public testing::TestWithParam<HostileShape> {};

// In float a quantised weight is its decoded value, so the bits are those of the decoded file. The integer
// modes stand near them, and keep their own bits for one row and for many, on one thread and on two.
TEST_P(Shapes, AreRightInEveryTypeAndArithmetic) {
  const ModelSpec& spec = GetParam().spec;
  const Tokens tokens = random_tokens(spec, 11);
  for (const DType type : kQuantised) {
    const MadeModel model = make_model(spec, type), plain = decoded(model);
    const std::vector<float> truth = run_model(plain.spec, plain.tensors, tokens, in_float());
    for (const Arithmetic arithmetic : {Arithmetic::f32, Arithmetic::a16, Arithmetic::a8}) {
      const auto run = [&](EngineOptions options, size_t piece) {
        options.arithmetic = arithmetic;
        Engine engine(model.spec, model.tensors, options);
        return run_alone(engine, tokens, piece);
      };
      const std::string label = fmt::format("{} in {}", dtype_name(type), arithmetic_name(arithmetic));
      const std::vector<float> got = run(one_thread(), 0);
      if (arithmetic == Arithmetic::f32) {
        expect_same_bits(got, truth, label);
      } else {
        const double bound = arithmetic == Arithmetic::a16 ? 1e-4 : 1.5e-2;
        EXPECT_LT(mean_kl(truth, got, spec.vocab_size), bound) << label;
      }
      expect_same_bits(run({.threads = 2, .chunk = 3}, 1), got, label + ", one token a call, two threads");
      expect_same_bits(run({.threads = 2, .chunk = 4}, 0), got, label + ", chunks of four, two threads");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Shapes, testing::ValuesIn(hostile_shapes()),
                         [](const auto& shape) { return shape.param.name; });

TEST(ShapesRefused, RowsThatAreNoWholeBlocksAndTensorsThatAreCutShort) {
  const HostileShape& shape = hostile_shapes().front();
  const MadeModel model = make_model(shape.spec, DType::q8_0);
  const std::vector<std::byte> bytes(1 << 16);
  const auto refused = [&](const Slot& slot, DType type, const Shape& size, size_t n_bytes,
                           const std::string& message) {
    PatchedTensors tensors(model.tensors);
    tensors.set(slot, {type, size, std::span(bytes).first(n_bytes)});
    for (const Arithmetic arithmetic : {Arithmetic::f32, Arithmetic::a16, Arithmetic::a8}) {
      expect_error([&] { Engine(shape.spec, tensors, {.threads = 1, .arithmetic = arithmetic}); },
                   ErrorCode::data, message);
    }
  };
  refused({TensorKind::attention_output, 1}, DType::q8_0, {96, 70}, 96 * 3 * 34,
          "layers.1.attention_output: row length: expected a multiple of 32 for q8_0, got 70");
  refused({TensorKind::down, 0}, DType::q4_k, {96, 160}, 96 * 144,
          "layers.0.down: row length: expected a multiple of 256 for q4_k, got 160");
  refused({TensorKind::query, 0}, DType::q8_0, {96, 96}, 96 * 3 * 34 - 1,
          "layers.0.query: expected 9792 bytes of q8_0, got 9791");
  refused({TensorKind::token_embedding}, DType::q8_0, {37, 96}, 0,
          "token_embedding: expected 3774 bytes of q8_0, got 0");
}

}  // namespace
}  // namespace lapidary::test
