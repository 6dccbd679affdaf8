// The roofline's bytes and bits on real models: what is said of them in numbers.
#include <gtest/gtest.h>

#include "engine/real_models.h"
#include "formats/checkpoint.h"
#include "kvlab/roofline/roofline.h"

namespace lapidary::test {
namespace {

using namespace kvlab;

RooflineReport measure(const Checkpoint& checkpoint, std::vector<int64_t> lengths) {
  RooflinePlan plan;
  plan.lengths = std::move(lengths);
  plan.steps = 3;
  plan.warm_up = 1;
  plan.part_steps = 1;
  plan.threads = {2};
  plan.probe_megabytes = 1;
  plan.expand_gqa = plan.concat_append = true;
  EngineOptions options;
  options.kv_dtype = DType::f16;
  return measure_roofline(checkpoint.spec, *checkpoint.tensors, options, plan,
                          [](std::string_view, int64_t, int64_t) {});
}

TEST(RealRoofline, SmolLmReads23040BytesAPosition) {
  const RooflineReport report = measure(open_checkpoint(cached_model(kSmol.name)), {64, 130});
  for (const Check& check : report.checks) EXPECT_TRUE(check.passed) << check.name << ": " << check.detail;
  const RooflineRun& run = report.runs[0];
  EXPECT_EQ(run.lengths[0].kv_bytes_total, (62 + 63 + 64) * 23'040);
  EXPECT_EQ(run.lengths[1].kv_bytes_total, (128 + 129 + 130) * 23'040);
  EXPECT_EQ(report.bf16_weight_bytes, 269'030'016);
  EXPECT_EQ(run.verdict.crossover_bf16, 11'677);
  ASSERT_EQ(run.ablations.size(), 2u);
  EXPECT_EQ(run.ablations[0].expected_passes, 7);
  EXPECT_EQ(run.ablations[1].expected_passes, 3);
  EXPECT_EQ(run.ablations[0].lengths[0].engine_kv_bytes_total, (62 + 63 + 64) * 69'120);
  for (const AblationRun& ablation : run.ablations) EXPECT_TRUE(ablation.logits_equal) << ablation.name;
}

// 3 global layers and 15 with a window of 512, one KV head of 256 each: past the window 3,072 bytes a token
// more.
TEST(RealRoofline, GemmaReadsLittleMorePastItsWindow) {
  const RooflineReport report = measure(open_checkpoint(cached_model(kGemma.name)), {64, 540});
  for (const Check& check : report.checks) EXPECT_TRUE(check.passed) << check.name << ": " << check.detail;
  const RooflineRun& run = report.runs[0];
  EXPECT_EQ(run.lengths[0].kv_bytes_total, (62 + 63 + 64) * 18'432);
  EXPECT_EQ(run.lengths[1].kv_bytes_total, (538 + 539 + 540) * 3'072 + 3 * 512 * 15'360);
  for (const AblationRun& ablation : run.ablations) EXPECT_TRUE(ablation.logits_equal) << ablation.name;
}

}  // namespace
}  // namespace lapidary::test
