#include "spec/footprint.h"

#include <gtest/gtest.h>

#include "formats/checkpoint.h"
#include "spec/specs.h"
#include "support/compare.h"
#include "support/golden.h"

namespace lapidary::test {
namespace {

ModelSpec config(const std::string& name) {
  return open_checkpoint(data_path("configs/" + name + "/config.json")).spec;
}

// Known by hand: two layers of query 256, key 128, value 128, output 256, FFN 3 * 320, norms 32; embedding
// and head 640 each, norm 16.
TEST(Footprint, CountsASmallModel) {
  const ParameterCount count = count_parameters(llama_like());
  EXPECT_EQ(count.matrices_resident, 2 * (256 + 128 + 128 + 256 + 3 * 320) + 2 * 640);
  EXPECT_EQ(count.resident, count.matrices_resident + 2 * 32 + 16);
  EXPECT_EQ(count.matrices_touched_per_token,
            count.matrices_resident - 640 + 16);  // one row of the embedding
  EXPECT_EQ(count.touched_per_token, count.resident - 640 + 16);
}

TEST(Footprint, CountsATiedHeadOnceAndTopExpertsOnly) {
  const ParameterCount count = count_parameters(expert_like());
  const int64_t experts = 6 * (10 * 16 + 16 * 5), touched = experts / 3;
  EXPECT_EQ(count.matrices_resident - count.matrices_touched_per_token, experts - touched);
  EXPECT_EQ(count.resident - count.touched_per_token,
            experts - touched + 4);  // and four of six expert scales
}

struct Known {
  std::string name;
  int64_t resident, touched, global, sliding, read_global, read_sliding;
};

class RealConfig : public testing::TestWithParam<Known> {};

TEST_P(RealConfig, GivesTheKnownNumbers) {
  const Known& known = GetParam();
  const ModelSpec spec = config(known.name);
  const ParameterCount count = count_parameters(spec);
  EXPECT_EQ(count.matrices_resident, known.resident);
  EXPECT_EQ(count.matrices_touched_per_token, known.touched);
  EXPECT_LT(static_cast<double>(count.resident - count.matrices_resident),
            0.0002 * static_cast<double>(count.resident));
  const KvBytes kv = kv_bytes_per_token(spec, DType::bf16);
  EXPECT_EQ(kv.global, known.global);
  EXPECT_EQ(kv.sliding, known.sliding);
  EXPECT_EQ(kv.read_global, known.read_global);
  EXPECT_EQ(kv.read_sliding, known.read_sliding);
}

INSTANTIATE_TEST_SUITE_P(
    Gemma4, RealConfig,
    testing::Values(Known{"e2b", 4'628'283'392, 2'279'482'112, 6'144, 12'288, 14'336, 28'672},
                    Known{"e4b", 7'462'453'248, 4'643'891'712, 16'384, 40'960, 28'672, 71'680},
                    Known{"12b", 11'906'580'480, 11'906'580'480, 16'384, 327'680, 16'384, 327'680},
                    Known{"26b-a4b", 25'232'441'344, 3'821'830'144, 20'480, 204'800, 20'480, 204'800},
                    Known{"31b", 30'696'013'824, 30'696'013'824, 81'920, 819'200, 81'920, 819'200}),
    [](const auto& param) { return param.param.name == "26b-a4b" ? "A26b" : "E" + param.param.name; });

TEST(Footprint, KvBytesOfOtherFamilies) {
  EXPECT_EQ(kv_bytes_per_token(config("smollm2-135m"), DType::bf16).global, 23'040);
  EXPECT_EQ(kv_bytes_per_token(config("llama-3-70b"), DType::bf16).global, 327'680);
  const KvBytes gemma3 = kv_bytes_per_token(config("gemma3-270m"), DType::bf16);
  EXPECT_EQ(gemma3.global, 3 * 2 * 256 * 2);
  EXPECT_EQ(gemma3.sliding, 15 * 2 * 256 * 2);
}

TEST(Footprint, KvBytesOfEightBitsCountTheirScales) {
  const ModelSpec smollm2 = config("smollm2-135m");  // 30 layers, 3 KV heads of 64
  EXPECT_EQ(kv_bytes_per_token(smollm2, DType::i8).global, 30 * 3 * 2 * (64 + 4));
  EXPECT_EQ(kv_bytes_per_token(smollm2, {DType::i8, DType::f16}).global, 30 * 3 * (64 + 4 + 128));
  EXPECT_EQ(kv_bytes_per_token(smollm2, {DType::f32, DType::i8}).global, 30 * 3 * (256 + 64 + 4));
}

TEST(Footprint, StorageGrowsSlowerPastTheWindow) {
  const ModelSpec spec = config("e2b");
  EXPECT_EQ(kv_bytes_needed(spec, 0, DType::bf16), 0);
  EXPECT_EQ(kv_bytes_needed(spec, 512, DType::bf16), 512 * 18'432);
  EXPECT_EQ(kv_bytes_needed(spec, 513, DType::bf16) - kv_bytes_needed(spec, 512, DType::bf16), 6'144);
  EXPECT_EQ(kv_bytes_needed(spec, 131'072, DType::bf16), 512 * 12'288 + 131'072LL * 6'144);
  EXPECT_EQ(kv_bytes_needed(spec, 100, DType::f32), 100 * 36'864);
  EXPECT_EQ(kv_bytes_needed(config("31b"), 1000, DType::bf16), 1000 * 901'120);
}

TEST(Footprint, RefusesLengthsThatOverflow) {
  expect_error([] { kv_bytes_needed(llama_like(), INT64_MAX / 8, DType::bf16); }, ErrorCode::limit,
               "is beyond 64 bits");
  expect_error([] { kv_bytes_needed(llama_like(), -1, DType::bf16); }, ErrorCode::usage,
               "KV bytes: length: expected 0 or more positions, got -1");
}

}  // namespace
}  // namespace lapidary::test
