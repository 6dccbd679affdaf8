// The roofline's bytes and bits on the golden models; never its seconds.
#include "kvlab/roofline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/error.h"
#include "kvlab/ablations.h"
#include "spec/footprint.h"
#include "support/golden_models.h"
#include "support/made_models.h"

namespace lapidary::test {
namespace {

using namespace kvlab;

RooflinePlan quick_plan(std::vector<int64_t> lengths) {
  RooflinePlan plan;
  plan.lengths = std::move(lengths);
  plan.steps = 4;
  plan.warm_up = 2;
  plan.part_steps = 2;
  plan.threads = {1};
  plan.probe_megabytes = 1;
  return plan;
}

EngineOptions f16_cache() {
  EngineOptions options;
  options.kv_dtype = DType::f16;
  return options;
}

RooflineReport measure(const Checkpoint& checkpoint, const RooflinePlan& plan,
                       const EngineOptions& options = f16_cache()) {
  return measure_roofline(checkpoint.spec, *checkpoint.tensors, options, plan,
                          [](std::string_view, int64_t, int64_t) {});
}

// What a step reads of a layer's cache, spelled out once more: the query sees the positions before it and
// itself, back to its window; each has its keys and values in two bytes an element.
int64_t layer_bytes(const AttentionSpec& a, int64_t positions) {
  int64_t seen = 0;
  for (int64_t p = 0; p < positions; ++p)
    if (a.window == 0 || positions - p <= a.window) ++seen;
  return seen * a.n_kv_heads * a.head_dim * 2 * 2;
}

class RooflineGolden : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, RooflineGolden,
                         testing::Values("llama-tiny", "llama3-tiny", "gemma3-tiny", "gemma4-e2b-tiny",
                                         "gemma4-e4b-tiny", "gemma4-12b-tiny", "gemma4-31b-tiny",
                                         "gemma4-26b-tiny", "llama-tiny-Q4_0", "gemma4-12b-wide-Q4_K_M"),
                         name_of_model);

// Lengths below, at and past the windows, within a page and past one.
TEST_P(RooflineGolden, CountersEqualTheFormulaToTheByte) {
  const Checkpoint checkpoint = open_golden(GetParam());
  const RooflineReport report = measure(checkpoint, quick_plan({7, 12, 33, 100}));
  EXPECT_TRUE(report.passed());
  ASSERT_EQ(report.runs.size(), 1u);
  ASSERT_EQ(report.runs[0].lengths.size(), 4u);
  for (const LengthResult& r : report.runs[0].lengths) {
    int64_t all = 0;
    for (size_t l = 0; l < checkpoint.spec.layers.size(); ++l) {
      int64_t expected = 0;
      for (int64_t positions = r.length - 3; positions <= r.length; ++positions)
        expected += layer_bytes(*checkpoint.spec.layers[l].attention, positions);
      EXPECT_EQ(r.layer_kv_bytes[l], expected) << "layer " << l << ", length " << r.length;
      all += expected;
    }
    EXPECT_EQ(r.kv_bytes_total, all);
    EXPECT_GT(r.head_bytes_total, 0);
    EXPECT_LT(r.head_bytes_total, r.weight_bytes_total);
    EXPECT_GT(r.attention_seconds, 0);
    EXPECT_GT(r.head_seconds, 0);
  }
  // The weights do not depend on the length, but for the experts that are chosen: as many each time.
  for (const LengthResult& r : report.runs[0].lengths)
    EXPECT_EQ(r.weight_bytes_total, report.runs[0].lengths[0].weight_bytes_total);
}

TEST_P(RooflineGolden, AblationsKeepTheBits) {
  const Checkpoint checkpoint = open_golden(GetParam());
  RooflinePlan plan = quick_plan({12, 70});
  plan.concat_append = true;
  plan.expand_gqa = has_grouped_heads(checkpoint.spec);
  const RooflineReport report = measure(checkpoint, plan);
  for (const Check& check : report.checks) EXPECT_TRUE(check.passed) << check.name << ": " << check.detail;
  const RooflineRun& run = report.runs[0];
  ASSERT_EQ(run.ablations.size(), plan.expand_gqa ? 2u : 1u);
  for (const AblationRun& ablation : run.ablations) {
    EXPECT_TRUE(ablation.logits_equal);
    ASSERT_EQ(ablation.lengths.size(), 2u);
    for (size_t i = 0; i < 2; ++i)
      EXPECT_EQ(ablation.lengths[i].logits, run.lengths[i].logits) << ablation.name;
    EXPECT_GT(ablation.counted_passes, 1);
  }
}

// Bytes that the copies of one step move: whole pages of the cache as it is before the step.
int64_t page_bytes_before(const ModelSpec& spec, int64_t layer, int64_t cached) {
  const AttentionSpec& a = *spec.layers[static_cast<size_t>(layer)].attention;
  constexpr int64_t kPositions = 32;
  int64_t pages = 0;
  for (int64_t block = 0; block * kPositions < cached; ++block)
    if (a.window == 0 || (block + 1) * kPositions > cached + 1 - a.window) ++pages;
  return pages * kPositions * a.n_kv_heads * ((a.head_dim + 15) / 16 * 16 + a.head_dim) * 2;
}

TEST_P(RooflineGolden, AblationsCountTheBytesThatTheyMove) {
  const Checkpoint checkpoint = open_golden(GetParam());
  const ModelSpec& spec = checkpoint.spec;
  RooflinePlan plan = quick_plan({12, 70});
  plan.concat_append = true;
  plan.expand_gqa = has_grouped_heads(spec);
  const RooflineReport report = measure(checkpoint, plan);
  for (const AblationRun& ablation : report.runs[0].ablations) {
    const bool expand = ablation.name == "expand-gqa";
    const ModelSpec run_on = expand ? expanded_spec(spec) : spec;
    for (size_t i = 0; i < ablation.lengths.size(); ++i) {
      const AblationLength& l = ablation.lengths[i];
      int64_t engine = 0, read = 0, written = 0;
      for (int64_t layer = 0; layer < spec.n_layers(); ++layer) {
        const AttentionSpec& a = *spec.layers[static_cast<size_t>(layer)].attention;
        const int64_t group = a.n_heads / a.n_kv_heads;
        for (int64_t positions = l.length - 3; positions <= l.length; ++positions) {
          engine += layer_bytes(*run_on.layers[static_cast<size_t>(layer)].attention, positions);
          if (expand ? group == 1 : !spec.layers[static_cast<size_t>(layer)].owns_kv(layer)) continue;
          const int64_t pages = page_bytes_before(run_on, layer, positions - 1);
          written += pages;
          read += expand ? pages / group : pages;
        }
      }
      EXPECT_EQ(l.engine_kv_bytes_total, engine) << ablation.name << " " << l.length;
      EXPECT_EQ(l.copied_read_total, read) << ablation.name << " " << l.length;
      EXPECT_EQ(l.copied_written_total, written) << ablation.name << " " << l.length;
    }
  }
}

TEST(ExpectedPasses, AreSevenAndThreeForThreeHeadsEach) {
  const ModelSpec llama = open_golden_model("llama-tiny").spec;  // 6 heads, 2 KV heads
  EXPECT_EQ(expected_passes_expand(llama, DType::f16, 100), 7);
  EXPECT_EQ(expected_passes_concat(llama, DType::f16, 100), 3);
  EXPECT_EQ(written_passes_expand(llama, DType::f16, 100), 3);
  EXPECT_EQ(written_passes_concat(llama, DType::f16, 100), 1);
  // Half of the layers borrow: they read, and append nothing.
  ModelSpec borrowing = llama;
  for (size_t i = llama.layers.size() / 2; i < llama.layers.size(); ++i)
    borrowing.layers[i].attention->kv_owner = 0;
  EXPECT_EQ(expected_passes_concat(borrowing, DType::f16, 100), 2);
  EXPECT_EQ(written_passes_concat(borrowing, DType::f16, 100), 0.5);
  EXPECT_EQ(expected_passes_expand(borrowing, DType::f16, 100), 7);
  // A window weighs what is in it.
  ModelSpec sliding = llama;
  sliding.layers.resize(2);
  sliding.layers[1].attention->window = 10;
  sliding.layers[1].attention->n_kv_heads = 6;
  EXPECT_NEAR(expected_passes_expand(sliding, DType::f16, 100),
              (7.0 * 2 * 100 + 1.0 * 6 * 10) / (2 * 100 + 6 * 10), 1e-12);
}

TEST(CopyingProbes, HoldWhatTheCacheHeld) {
  const Checkpoint checkpoint = open_golden_model("gemma4-e2b-tiny");
  const ModelSpec expanded = expanded_spec(checkpoint.spec);
  const ExpandedHeads source(checkpoint.spec, *checkpoint.tensors);
  EngineOptions options = f16_cache();
  options.threads = 1;
  Engine plain(checkpoint.spec, *checkpoint.tensors, options), wide(expanded, source, options);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 45; ++i) tokens.push_back(i * 7 % 300);
  const auto ignore = [](size_t, int64_t, std::span<const float>) {};
  const int32_t one = 5, a = plain.open(), b = wide.open();
  const Feed fill_a{a, tokens, Want::none}, fill_b{b, tokens, Want::none};
  plain.forward({&fill_a, 1}, ignore);
  wide.forward({&fill_b, 1}, ignore);
  const auto pages_of = [](const Engine& engine, int32_t sequence, int64_t layer) {
    std::vector<std::byte> bytes;
    engine.for_each_page(sequence, [&](const KvPageView& page) {
      if (page.layer == layer) bytes.insert(bytes.end(), page.bytes.begin(), page.bytes.end());
    });
    return bytes;
  };
  ConcatProbe concat(plain);
  ExpandProbe expand(wide, checkpoint.spec);
  concat.before_step(a);
  expand.before_step(b);
  std::vector<std::vector<std::byte>> of_plain, of_wide;
  for (int64_t l = 0; l < checkpoint.spec.n_layers(); ++l) {
    const int64_t owner = checkpoint.spec.layers[static_cast<size_t>(l)].attention->kv_owner;
    of_plain.push_back(pages_of(plain, a, l));
    of_wide.push_back(pages_of(wide, b, owner));
  }
  const Feed step_a{a, {&one, 1}, Want::last}, step_b{b, {&one, 1}, Want::last};
  std::vector<float> from_plain, from_wide;
  plain.forward(
      {&step_a, 1}, [&](size_t, int64_t, auto logits) { from_plain.assign(logits.begin(), logits.end()); },
      &concat);
  wide.forward(
      {&step_b, 1}, [&](size_t, int64_t, auto logits) { from_wide.assign(logits.begin(), logits.end()); },
      &expand);
  EXPECT_EQ(from_plain, from_wide);
  for (int64_t l = 0; l < checkpoint.spec.n_layers(); ++l) {
    const auto& layer = checkpoint.spec.layers[static_cast<size_t>(l)];
    // Pages of position 45 were written to after the copy, in a place that was empty: compared is what stood
    // there.
    const std::span<const std::byte> copy = concat.copy_of(l), wide_copy = expand.copy_of(l);
    ASSERT_EQ(copy.size(), layer.owns_kv(l) ? of_plain[static_cast<size_t>(l)].size() : 0u) << "layer " << l;
    ASSERT_EQ(wide_copy.size(), of_wide[static_cast<size_t>(l)].size()) << "layer " << l;
    ASSERT_FALSE(wide_copy.empty());
    // What the expanded cache held, head by head the same; the position of this step may already be there.
    const auto differing = [](std::span<const std::byte> x, const std::vector<std::byte>& y) {
      size_t n = 0;
      for (size_t i = 0; i < x.size(); ++i) n += x[i] != y[i] ? 1 : 0;
      return n;
    };
    const auto& attention = *layer.attention;
    const auto position = static_cast<size_t>(attention.n_kv_heads * attention.head_dim * 2 * 2);
    EXPECT_LE(differing(copy, of_plain[static_cast<size_t>(l)]), position);
    EXPECT_LE(differing(wide_copy, of_wide[static_cast<size_t>(l)]),
              position * static_cast<size_t>(attention.n_heads / attention.n_kv_heads));
  }
}

TEST(ExpandedHeads, RepeatsRowsOfKeysAndValuesAlone) {
  const Checkpoint checkpoint = open_golden_model("llama-tiny");
  const ExpandedHeads source(checkpoint.spec, *checkpoint.tensors);
  const AttentionSpec& a = *checkpoint.spec.layers[1].attention;
  for_each_tensor(expanded_spec(checkpoint.spec), [&](const TensorInfo& info) {
    const TensorData data = source.read(info.slot), base = checkpoint.tensors->read(info.slot);
    EXPECT_EQ(data.view.shape, info.shape) << slot_name(info.slot);
    if (info.slot.kind != TensorKind::key && info.slot.kind != TensorKind::value) {
      EXPECT_EQ(to_floats(data.view), to_floats(base.view));
      return;
    }
    for (int64_t row = 0; row < info.shape[0]; ++row) {
      const int64_t head = row / a.head_dim,
                    from = head / (a.n_heads / a.n_kv_heads) * a.head_dim + row % a.head_dim;
      EXPECT_TRUE(std::ranges::equal(data.view.row(row), base.view.row(from)))
          << slot_name(info.slot) << " " << row;
    }
  });
}

TEST(Roofline, ThreadsShareTheirFilledCaches) {
  const Checkpoint checkpoint = open_golden_model("gemma4-e2b-tiny");
  RooflinePlan plan = quick_plan({12, 70});
  plan.threads = {2, 1};
  plan.expand_gqa = plan.concat_append = true;
  const RooflineReport report = measure(checkpoint, plan);
  EXPECT_TRUE(report.passed());
  ASSERT_EQ(report.runs.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(report.runs[0].lengths[i].logits, report.runs[1].lengths[i].logits);
    EXPECT_EQ(report.runs[0].lengths[i].kv_bytes_total, report.runs[1].lengths[i].kv_bytes_total);
  }
  EXPECT_EQ(report.runs[1].ablations.size(), 2u);
  ASSERT_TRUE(report.runs[0].drift);
  EXPECT_EQ(report.runs[0].drift->length, 12);
}

// Rounds go through the same positions again: the same bytes and bits each time.
TEST(Roofline, RoundsAddUp) {
  const Checkpoint checkpoint = open_golden_model("gemma4-e2b-tiny");
  RooflinePlan plan = quick_plan({12, 40});
  plan.expand_gqa = plan.concat_append = true;
  const RooflineReport once = measure(checkpoint, plan);
  plan.rounds = 3;
  plan.steps *= 3;
  const RooflineReport thrice = measure(checkpoint, plan);
  EXPECT_TRUE(thrice.passed());
  for (size_t i = 0; i < 2; ++i) {
    const LengthResult &a = once.runs[0].lengths[i], &b = thrice.runs[0].lengths[i];
    EXPECT_EQ(3 * a.kv_bytes_total, b.kv_bytes_total);
    EXPECT_EQ(a.kv_bytes(), b.kv_bytes());
    EXPECT_EQ(a.weight_bytes(), b.weight_bytes());
    EXPECT_EQ(a.attention_ops, b.attention_ops);
    EXPECT_EQ(a.logits, b.logits);
    for (size_t k = 0; k < 2; ++k) {
      const AblationLength &x = once.runs[0].ablations[k].lengths[i],
                           &y = thrice.runs[0].ablations[k].lengths[i];
      EXPECT_EQ(3 * x.copied_written_total, y.copied_written_total);
      EXPECT_EQ(3 * x.engine_kv_bytes_total, y.engine_kv_bytes_total);
      EXPECT_EQ(x.logits, y.logits);
    }
  }
  plan.rounds = 5;
  EXPECT_THROW(measure(checkpoint, plan), Error);
}

// Keys change a little once the plain model has been loaded: what the expanded one computes must not pass.
class ChangingTensors : public TensorSource {
 public:
  explicit ChangingTensors(const TensorSource& base) : base_(base), patched_(base) {
    patched_.change({TensorKind::key, 0}, [](std::vector<float>& values) { values[0] += 1; });
  }
  TensorData read(const Slot& slot) const override {
    if (slot == Slot{TensorKind::key, 0} && reads_++ > 0) return patched_.read(slot);
    return base_.read(slot);
  }

 private:
  const TensorSource& base_;
  PatchedTensors patched_;
  mutable int reads_ = 0;
};

TEST(Roofline, FailsWhenAnAblationChangesTheBits) {
  const Checkpoint checkpoint = open_golden_model("llama-tiny");
  const ChangingTensors source(*checkpoint.tensors);
  RooflinePlan plan = quick_plan({12, 40});
  plan.expand_gqa = true;
  const RooflineReport report =
      measure_roofline(checkpoint.spec, source, f16_cache(), plan, [](std::string_view, int64_t, int64_t) {});
  EXPECT_FALSE(report.passed());
  EXPECT_FALSE(report.runs[0].ablations[0].logits_equal);
  EXPECT_NE(report.checks[1].detail.find("expand-gqa: length 12, step 1"), std::string::npos);
  const boost::json::object out = roofline_json(report, {});
  EXPECT_FALSE(out.at("passed").as_bool());
}

TEST(Roofline, ManyQueryHeadsReadTheirPagesInSeveralTiles) {
  ModelSpec spec = open_golden_model("llama-tiny").spec;
  for (LayerSpec& layer : spec.layers) {
    layer.attention->n_heads = 24;
    layer.attention->n_kv_heads = 1;
  }
  const MadeModel model = make_model(spec, DType::f32);
  const RooflineReport report = measure_roofline(model.spec, model.tensors, f16_cache(), quick_plan({12, 40}),
                                                 [](std::string_view, int64_t, int64_t) {});
  EXPECT_TRUE(report.passed());
  int64_t once = 0;
  for (int64_t positions = 9; positions <= 12; ++positions)
    for (const int64_t bytes : kv_bytes_read(spec, DType::f16, positions)) once += bytes;
  EXPECT_EQ(report.runs[0].lengths[0].kv_bytes_total, 2 * once);
}

TEST(Roofline, KnowsWhatACacheOfOtherTypesTakes) {
  const Checkpoint checkpoint = open_golden_model("gemma4-e4b-tiny");
  for (const KvTypes types : {KvTypes(DType::f32), KvTypes(DType::i8), KvTypes(DType::i8, DType::bf16)}) {
    EngineOptions options;
    options.kv_dtype = types;
    RooflinePlan plan = quick_plan({12, 40});
    plan.expand_gqa = plan.concat_append = true;
    const RooflineReport report = measure(checkpoint, plan, options);
    for (const Check& check : report.checks) EXPECT_TRUE(check.passed) << check.name << ": " << check.detail;
    int64_t expected = 0;
    for (int64_t positions = 9; positions <= 12; ++positions)
      for (const LayerSpec& layer : checkpoint.spec.layers) {
        const AttentionSpec& a = *layer.attention;
        const int64_t seen = a.window > 0 ? std::min(a.window, positions) : positions;
        expected += seen * a.n_kv_heads *
                    static_cast<int64_t>(kv_row_bytes(types.keys, a.head_dim) +
                                         kv_row_bytes(types.values, a.head_dim));
      }
    EXPECT_EQ(report.runs[0].lengths[0].kv_bytes_total, expected) << kv_types_name(types);
  }
}

TEST(Roofline, RefusesWhatItCannotMeasure) {
  const Checkpoint checkpoint = open_golden_model("llama-tiny");
  RooflinePlan plan = quick_plan({});
  EXPECT_THROW(measure(checkpoint, plan), Error);
  ModelSpec spec = checkpoint.spec;
  for (LayerSpec& layer : spec.layers) layer.attention->n_kv_heads = layer.attention->n_heads;
  const MadeModel model = make_model(spec, DType::f32);
  plan = quick_plan({12});
  plan.expand_gqa = true;
  try {
    measure_roofline(model.spec, model.tensors, f16_cache(), plan, [](std::string_view, int64_t, int64_t) {});
    FAIL() << "expected a refusal";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(std::string(error.what()).find("nothing to expand"), std::string::npos);
  }
}

}  // namespace
}  // namespace lapidary::test
