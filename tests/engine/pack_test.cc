// A packed model computes what the model that it was packed from computes: every golden model, bit for bit.
#include "engine/pack.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>

#include "engine/harness.h"
#include "engine/packed.h"
#include "engine/plain_weights.h"
#include "kernels/panel_layout.h"
#include "support/compare.h"
#include "support/temp_dir.h"

namespace lapidary::test {
namespace {

std::vector<std::string> all_models() {
  std::vector<std::string> names = golden_models();
  names.insert(names.end(), gguf_models().begin(), gguf_models().end());
  return names;
}

bool is_gguf(const std::string& name) {
  return std::find(gguf_models().begin(), gguf_models().end(), name) != gguf_models().end();
}

class PackedModel : public testing::TestWithParam<std::string> {
 protected:
  PackedModel()
      : source(is_gguf(GetParam()) ? open_golden_gguf(GetParam()) : open_golden_model(GetParam())),
        tokens(tokens_of(is_gguf(GetParam()) ? golden_case_of_gguf(GetParam()) : golden_case(GetParam()))) {
    pack_to(dir.path() / "m.lapidary", source);
    packed = open_checkpoint(dir.path() / "m.lapidary");
  }
  TempDir dir;
  Checkpoint source, packed;
  Tokens tokens;
};

TEST_P(PackedModel, ComputesTheSameBits) {
  EXPECT_EQ(packed.spec, source.spec);
  for (const Arithmetic arithmetic : {Arithmetic::f32, Arithmetic::a16}) {
    const EngineOptions options{.threads = 1, .arithmetic = arithmetic};
    const std::vector<float> expected = run_model(source.spec, *source.tensors, tokens, options);
    EngineOptions copying{.threads = 2, .arithmetic = arithmetic, .copy_packed = true};
    expect_same_bits(run_model(packed.spec, *packed.tensors, tokens, options), expected, "mapped");
    expect_same_bits(run_model(packed.spec, *packed.tensors, tokens, copying), expected, "copied");
  }
}

TEST_P(PackedModel, NothingIsPackedOrCopiedWhenItIsOpened) {
  const Engine engine(packed.spec, *packed.tensors, one_thread()),
      from_source(source.spec, *source.tensors, one_thread());
  int64_t vector_bytes = 0;
  for_each_tensor(packed.spec, [&](const TensorInfo& info) {
    if (!info.is_matrix() && !info.gathered)
      vector_bytes += 4 * element_count(info.shape, slot_name(info.slot));
  });
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.weight_bytes, from_source.stats().weight_bytes);
  EXPECT_EQ(stats.weight_bytes_in_file, stats.weight_bytes - vector_bytes);
  EXPECT_EQ(from_source.stats().weight_bytes_in_file, 0);
  EXPECT_EQ(stats.mapped_bytes, from_source.stats().mapped_bytes);
}

TEST_P(PackedModel, ReadsBackAsTheNumbersThatWerePacked) {
  const auto plain = with_plain_weights(packed.tensors);
  check_tensors(packed.spec, *plain);
  for_each_tensor(source.spec, [&](const TensorInfo& info) {
    expect_same_bits(to_floats(plain->read(info.slot).view), to_floats(source.tensors->read(info.slot).view),
                     slot_name(info.slot));
  });
  for_each_matrix(source.spec, [&](const TensorInfo& info) {  // a tied head too
    EXPECT_TRUE(plain->packed(info.slot).has_value()) << slot_name(info.slot);
    const bool tied = source.spec.tied_head && info.slot.kind == TensorKind::output_head;
    const Slot stored = tied ? Slot{TensorKind::token_embedding} : info.slot;
    expect_same_bits(to_floats(plain->read(info.slot).view), to_floats(source.tensors->read(stored).view),
                     slot_name(info.slot));
  });
}

INSTANTIATE_TEST_SUITE_P(, PackedModel, testing::ValuesIn(all_models()), name_of_model);

// The same file whoever packs it.
TEST(Packing, DoesNotDependOnTheNumberOfThreads) {
  const TempDir dir;
  const Checkpoint source = open_golden_gguf("gemma4-26b-tiny-Q8_0");
  const Artifact one = pack_to(dir.path() / "one.lapidary", source, 1);
  const Artifact three = pack_to(dir.path() / "three.lapidary", source, 3);
  ASSERT_EQ(one.sections.size(), three.sections.size());
  for (size_t i = 0; i < one.sections.size(); ++i) EXPECT_EQ(one.sections[i].hash, three.sections[i].hash);
}

// A source that says something else of one packed weight.
class Altered : public TensorSource {
 public:
  Altered(const TensorSource& base, Slot slot, std::function<void(PackedTensor&)> alter)
      : base_(base), slot_(slot), alter_(std::move(alter)) {}
  TensorData read(const Slot& slot) const override { return base_.read(slot); }
  std::optional<PackedTensor> packed(const Slot& slot) const override {
    std::optional<PackedTensor> packed = base_.packed(slot);
    if (slot == slot_) alter_(*packed);
    return packed;
  }

 private:
  const TensorSource& base_;
  Slot slot_;
  std::function<void(PackedTensor&)> alter_;
};

TEST(Packing, AnotherLayoutIsRefusedByName) {
  const TempDir dir;
  pack_to(dir.path() / "m.lapidary", open_golden_gguf("llama-tiny-Q8_0"));
  const Checkpoint packed = open_checkpoint(dir.path() / "m.lapidary");
  const auto refused = [&](ErrorCode code, const std::string& part,
                           std::function<void(PackedTensor&)> alter) {
    const Altered altered(*packed.tensors, {TensorKind::key, 1}, std::move(alter));
    expect_error([&] { Engine(packed.spec, altered, one_thread()); }, code, part);
  };
  const std::string ours = kernels::panel_layout(DType::q8_0);
  refused(
      ErrorCode::unsupported,
      "tensor layers.1.key: it was packed in the layout q8_0-0123456789abcdef, this program reads " + ours,
      [](PackedTensor& t) { t.layout = "q8_0-0123456789abcdef"; });
  refused(ErrorCode::unsupported, "in the layout " + ours + ", this program reads q4_0-",
          [](PackedTensor& t) { t.dtype = DType::q4_0; });
  refused(ErrorCode::data, "tensor layers.1.key: expected ",
          [](PackedTensor& t) { t.bytes = t.bytes.first(t.bytes.size() - 1); });
  refused(ErrorCode::data, "tensor layers.1.key: expected shape ", [](PackedTensor& t) { t.shape[0] += 16; });
}

TEST(Packing, WhatIsNoNumberIsRefusedWithItsPlace) {
  const Checkpoint source = open_golden_model("gemma4-26b-tiny");
  const auto refused = [&](const Slot& slot, size_t element, const std::string& part) {
    PatchedTensors patched(*source.tensors);
    patched.change(slot, [&](std::vector<float>& values) {
      values.at(element) = std::numeric_limits<float>::quiet_NaN();
    });
    Checkpoint broken = source;
    broken.tensors = std::shared_ptr<const TensorSource>(&patched, [](const TensorSource*) {});
    const TempDir dir;
    expect_error([&] { pack_to(dir.path() / "m.lapidary", broken); }, ErrorCode::data, part);
    EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "nothing is left behind";
  };
  const int64_t columns = source.spec.d_model;
  refused({TensorKind::query, 0}, static_cast<size_t>(2 * columns + 3),
          "tensor layers.0.query: weight at row 2, column 3 is not a finite number");
  refused({TensorKind::output_norm}, 1, "tensor output_norm: element 1 is nan, expected a finite number");
  refused({TensorKind::token_embedding}, 5, "tensor token_embedding: weight at row 0, column 5");
}

TEST(PanelLayout, EveryWeightFormatHasItsOwnName) {
  std::set<std::string> names;
  const std::vector<DType> dtypes = {DType::f32,  DType::f16,  DType::bf16, DType::q8_0, DType::q4_0,
                                     DType::q4_1, DType::q5_0, DType::q5_1, DType::q2_k, DType::q3_k,
                                     DType::q4_k, DType::q5_k, DType::q6_k};
  for (const DType dtype : dtypes) {
    const std::string name = kernels::panel_layout(dtype);
    EXPECT_TRUE(name.starts_with(std::string(dtype_name(dtype)) + "-")) << name;
    EXPECT_EQ(name.size(), dtype_name(dtype).size() + 17);
    EXPECT_EQ(name, kernels::panel_layout(dtype));
    names.insert(name.substr(name.find('-')));
  }
  EXPECT_EQ(names.size(), dtypes.size());
  expect_error([] { kernels::panel_layout(DType::i32); }, ErrorCode::unsupported, "i32");
}

}  // namespace
}  // namespace lapidary::test
