// The fast mode: what it changes, for every weight type, and what it leaves alone.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/harness.h"
#include "support/probability.h"

namespace lapidary::test {
namespace {

EngineOptions fast_mode(Arithmetic arithmetic, int threads = 1) {
  return {.threads = threads, .arithmetic = arithmetic, .mode = NumericMode::fast};
}

class FastModes : public testing::TestWithParam<ModelMode> {
 protected:
  Checkpoint checkpoint_ = open_golden(GetParam().model);
  Tokens tokens_ = tokens_of(golden_of(GetParam().model));
  Arithmetic arithmetic_ = GetParam().arithmetic;
};

// Steps of fewer rows are those of the exact mode, to the bit.
TEST_P(FastModes, FewRowsKeepTheBitsOfTheExactMode) {
  Engine exact(checkpoint_.spec, *checkpoint_.tensors, {.threads = 1, .arithmetic = arithmetic_});
  Engine fast(checkpoint_.spec, *checkpoint_.tensors, fast_mode(arithmetic_));
  const std::vector<float> expected = run_alone(exact, tokens_);
  EXPECT_EQ(run_alone(fast, tokens_, 1), expected) << "single tokens";
  EXPECT_EQ(run_alone(fast, tokens_, static_cast<size_t>(kFastRows) - 1), expected) << "the most rows";
}

// And steps of many rows are not: this is what the mode is there to show.
TEST_P(FastModes, ManyRowsRoundOtherwise) {
  Engine fast(checkpoint_.spec, *checkpoint_.tensors, fast_mode(arithmetic_));
  const std::vector<float> one_by_one = run_alone(fast, tokens_, 1), at_once = run_alone(fast, tokens_);
  EXPECT_NE(at_once, one_by_one);
  EXPECT_LT(mean_kl(one_by_one, at_once, checkpoint_.spec.vocab_size),
            arithmetic_ == Arithmetic::f32 ? 1e-6 : 2e-2)
      << "another rounding, not another model";
}

TEST_P(FastModes, ThreadsChangeNothing) {
  Engine one(checkpoint_.spec, *checkpoint_.tensors, fast_mode(arithmetic_));
  Engine three(checkpoint_.spec, *checkpoint_.tensors, fast_mode(arithmetic_, 3));
  EXPECT_EQ(run_alone(three, tokens_), run_alone(one, tokens_));
}

TEST_P(FastModes, InstructionSetsChangeNothing) {
  Engine best(checkpoint_.spec, *checkpoint_.tensors, fast_mode(arithmetic_));
  const std::vector<float> expected = run_alone(best, tokens_);
  for (const std::string& isa : isas()) {
    const ScopedEnvironment forced("LAPIDARY_ISA", isa);
    Engine engine(checkpoint_.spec, *checkpoint_.tensors, fast_mode(arithmetic_));
    EXPECT_TRUE(run_alone(engine, tokens_) == expected) << engine.numeric_mode();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FastModes,
                         testing::ValuesIn(in_modes({"llama-tiny", "gemma3-tiny", "gemma4-e2b-tiny",
                                                     "gemma4-26b-tiny", "llama-tiny-Q4_0", "llama-tiny-Q5_1",
                                                     "llama3-tiny-Q4_1", "gemma3-tiny-Q8_0",
                                                     "gemma4-e2b-wide-Q4_K_M"},
                                                    {Arithmetic::f32, Arithmetic::a16, Arithmetic::a8})),
                         name_of_mode);

TEST(FastMode, IsNamedAndItsStatesNeverMix) {
  const Checkpoint checkpoint = open_golden_gguf("llama-tiny-Q4_0");
  const auto engine_of = [&](Arithmetic arithmetic, NumericMode mode) {
    return std::make_unique<Engine>(checkpoint.spec, *checkpoint.tensors,
                                    EngineOptions{.threads = 1, .arithmetic = arithmetic, .mode = mode});
  };
  const auto fast = engine_of(Arithmetic::a16, NumericMode::fast);
  EXPECT_EQ(fast->numeric_mode().find("fast, a16/a8, f32 accumulation, kv f32"), 0u) << fast->numeric_mode();
  EXPECT_EQ(engine_of(Arithmetic::a8, NumericMode::fast)->numeric_mode().find("fast, a8, f32"), 0u);
  EXPECT_EQ(engine_of(Arithmetic::f32, NumericMode::fast)->numeric_mode().find("fast, f32"), 0u);
  EXPECT_EQ(fast->mode(), NumericMode::fast);

  const int32_t sequence = fast->open();
  feed_all(*fast, sequence, Tokens{1, 2, 3});
  std::vector<std::byte> state;
  fast->save(sequence, {}, {}, [&](std::span<const std::byte> bytes) {
    state.insert(state.end(), bytes.begin(), bytes.end());
  });
  const auto restore = [&](Engine& engine) {
    engine.restore(engine.open(), state, {}, "fast.state", [](std::span<const std::byte>) {});
  };
  restore(*engine_of(Arithmetic::a16, NumericMode::fast));
  const auto exact = engine_of(Arithmetic::a16, NumericMode::exact);
  try {
    restore(*exact);
    FAIL() << "a state of the fast mode was taken by the exact one";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("arithmetic: expected \"exact, a16, f32 accumulation\", got "
                        "\"fast, a16/a8, f32 accumulation\""),
              std::string::npos)
        << error.what();
  }
}

TEST(FastMode, UnknownNamesAreRefused) {
  EXPECT_EQ(numeric_mode_from_name("fast"), NumericMode::fast);
  EXPECT_THROW(numeric_mode_from_name("quick"), Error);
  EXPECT_THROW(numeric_mode_from_name(""), Error);
}

}  // namespace
}  // namespace lapidary::test
