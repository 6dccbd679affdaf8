// Whole models on each instruction set, forced as a user may force it: the bits of the one that this CPU
// would choose, in every arithmetic. tests/CMakeLists.txt makes a test of its own of each instruction set, so
// that ctest's summary names those that this CPU lacks (their kernels run emulated in kernels_test where a
// twin for that exists).
#include <gtest/gtest.h>

#include "engine/harness.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

struct IsaCase {
  kernels::Isa isa;
  ModelMode mode;
};

std::vector<IsaCase> on(kernels::Isa isa) {
  std::vector<std::string> models = golden_models();
  models.insert(models.end(), gguf_models().begin(), gguf_models().end());
  std::vector<IsaCase> cases;
  for (const ModelMode& mode : in_modes(models, {Arithmetic::f32, Arithmetic::a16, Arithmetic::a8}))
    cases.push_back({isa, mode});
  return cases;
}

class ForcedIsa : public testing::TestWithParam<IsaCase> {};

TEST_P(ForcedIsa, GivesTheBitsOfTheBest) {
  const auto& [isa, mode] = GetParam();
  const std::string name(kernels::isa_name(isa));
  if (!kernels::isa_available(isa)) GTEST_SKIP() << "this CPU lacks " << name;
  const Checkpoint checkpoint = open_golden(mode.model);
  const Tokens tokens = tokens_of(golden_of(mode.model));
  for (const KvTypes& kv : {KvTypes(DType::f32), KvTypes(DType::i8, DType::f16)}) {
    const EngineOptions options{.threads = 2, .kv_dtype = kv, .arithmetic = mode.arithmetic};
    const std::vector<float> best = run_model(checkpoint.spec, *checkpoint.tensors, tokens, options);
    const ScopedEnvironment forced("LAPIDARY_ISA", name);
    Engine engine(checkpoint.spec, *checkpoint.tensors, options);
    EXPECT_NE(engine.numeric_mode().find(name), std::string::npos) << engine.numeric_mode();
    expect_same_bits(run_alone(engine, tokens), best, engine.numeric_mode());
  }
}

std::string name_of_case(const testing::TestParamInfo<IsaCase>& info) {
  return test_name(info.param.mode.model) + "_" + std::string(arithmetic_name(info.param.mode.arithmetic));
}

INSTANTIATE_TEST_SUITE_P(scalar, ForcedIsa, testing::ValuesIn(on(kernels::Isa::scalar)), name_of_case);
INSTANTIATE_TEST_SUITE_P(avx2, ForcedIsa, testing::ValuesIn(on(kernels::Isa::avx2)), name_of_case);
INSTANTIATE_TEST_SUITE_P(avx2_vnni, ForcedIsa, testing::ValuesIn(on(kernels::Isa::avx2_vnni)), name_of_case);
INSTANTIATE_TEST_SUITE_P(avx512, ForcedIsa, testing::ValuesIn(on(kernels::Isa::avx512)), name_of_case);
INSTANTIATE_TEST_SUITE_P(amx, ForcedIsa, testing::ValuesIn(on(kernels::Isa::amx)), name_of_case);

}  // namespace
}  // namespace lapidary::test
