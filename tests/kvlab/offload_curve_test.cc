// Tiers, the curve of computing against loading, and what is said of a speed-up.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "kvlab/offload/curve.h"
#include "kvlab/offload_lab.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

Bytes some_bytes(size_t n) {
  Bytes bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i * i >> 3);
  return bytes;
}

TEST(OffloadTiers, GiveBackWhatTheyGot) {
  for (const size_t n : {0u, 1u, 300u, 100000u}) {
    const Bytes bytes = some_bytes(n);
    RamTier ram;
    ram.store(bytes);
    EXPECT_EQ(ram.load(), bytes);
    EXPECT_FALSE(ram.cool());
    for (const int level : {1, 3, 19}) {
      ZstdTier zstd(std::make_unique<RamTier>(), level, n);
      zstd.store(bytes);
      EXPECT_EQ(zstd.load(), bytes);
      EXPECT_EQ(zstd.stored_bytes(), static_cast<int64_t>(zstd_compressed(bytes, level).size()));
    }
  }
}

TEST(OffloadTiers, AZstdFrameHoldsWhatItSaysAndNotMoreThanAsked) {
  const Bytes bytes = some_bytes(5000), frame = zstd_compressed(bytes, 3);
  EXPECT_EQ(zstd_decompressed(frame, 5000, "f"), bytes);
  EXPECT_TRUE(throws_error([&] { zstd_decompressed(frame, 4999, "f"); }, ErrorCode::limit,
                           "f: zstd frame: expected at most 4999 bytes of content, got 5000"));
  EXPECT_TRUE(throws_error([&] { zstd_decompressed({}, 10, "f"); }, ErrorCode::data, "f: zstd magic"));
  Bytes skippable(16);  // magic 0x184D2A50, then its size
  const uint32_t head[] = {0x184D2A50, 8};
  std::memcpy(skippable.data(), head, sizeof head);
  EXPECT_TRUE(throws_error([&] { zstd_decompressed(skippable, 10, "f"); }, ErrorCode::data, "zstd magic"));
  for (size_t i = 0; i < frame.size(); ++i) {  // each byte, one bit
    Bytes damaged = frame;
    damaged[i] ^= static_cast<std::byte>(1 << (i % 8));
    try {
      EXPECT_EQ(zstd_decompressed(damaged, 1 << 20, "f"), bytes)
          << "byte " << i << " mattered and was not seen";
    } catch (const Error&) {
    }
  }
}

TEST(OffloadCurve, EveryLengthIsMeasuredAndExact) {
  Lab lab("gemma4-e2b-tiny");
  RamTier ram;
  ZstdTier zstd(std::make_unique<RamTier>(), 1, lab.most());
  Tier* tiers[] = {&ram, &zstd};
  const std::vector<CurvePoint> curve =
      measure_curve(lab.setting, {{1, 8, 33, 100}, 5, 2, 7}, tiers, kSilent);
  ASSERT_EQ(curve.size(), 4u);
  for (const CurvePoint& point : curve) {
    EXPECT_EQ(
        point.state_bytes,
        176 + 15 * 64 + 4 * point.length + static_cast<int64_t>(kRawAttachment.size()) +
            expected_kv_bytes(lab.checkpoint.spec, DType::f16, point.length, 0) + 16 * [&] {
              int64_t pages = 0;
              for (int64_t i = 0; i < lab.checkpoint.spec.n_layers(); ++i) {
                const LayerSpec& layer = lab.checkpoint.spec.layers[static_cast<size_t>(i)];
                if (!layer.owns_kv(i)) continue;
                const int64_t w = layer.attention->window;
                const int64_t first = w > 0 ? std::max<int64_t>(0, point.length - w + 1) / 32 : 0;
                pages += (point.length + 31) / 32 - first;
              }
              return pages;
            }());
    ASSERT_EQ(point.reload.size(), 2u);
    EXPECT_GT(point.recompute, 0);
    EXPECT_GT(point.suffix, 0);
    for (const CurvePoint::Reload& way : point.reload) {
      EXPECT_TRUE(way.same_logits);
      EXPECT_GT(way.seconds, 0);
    }
  }
  EXPECT_LT(curve[0].recompute, curve[3].recompute)
      << "the times of a length include those of the shorter ones";
}

CurvePoint point_of(int64_t length, double recompute, double reload) {
  CurvePoint point{
      .length = length, .state_bytes = 1000 * length, .recompute = recompute, .suffix = 0.5, .fork = 0.001};
  point.reload.push_back({.way = "ram", .seconds = reload, .same_logits = true});
  return point;
}

TEST(OffloadCurve, BreakEvenIsWhereLoadingBeginsToWin) {
  const auto verdict = [](std::vector<CurvePoint> curve) { return break_even(curve).front(); };
  const BreakEven always = verdict({point_of(10, 2, 1), point_of(20, 4, 1)});
  EXPECT_EQ(always.verdict, BreakEven::Verdict::always);
  EXPECT_EQ(always.length, 10);
  const BreakEven never = verdict({point_of(10, 1, 2), point_of(20, 1, 1)});
  EXPECT_EQ(never.verdict, BreakEven::Verdict::never);
  EXPECT_FALSE(never.length);
  const BreakEven crosses = verdict({point_of(10, 1, 2), point_of(20, 4, 1)});  // -1 at 10, +3 at 20
  EXPECT_EQ(crosses.verdict, BreakEven::Verdict::crosses);
  EXPECT_DOUBLE_EQ(*crosses.length, 12.5);
  const BreakEven once = verdict({point_of(10, 3, 2), point_of(20, 1, 2), point_of(30, 3, 2)});
  EXPECT_DOUBLE_EQ(*once.length, 25) << "a win that a longer length takes back is none";
  EXPECT_TRUE(break_even({}).empty());
}

TEST(OffloadClaim, HasSixFactsInTheRunsOwnNumbers) {
  OffloadReport report;
  report.prompt_tokens = 50;
  report.suffix_tokens = 16;
  report.state.bytes = 1000;
  report.state.types = DType::f16;
  report.uninterrupted_seconds_per_token = 0.1;
  report.restored_seconds_per_token = 0.1;
  report.curve = {point_of(100, 10, 1)};
  report.tiers.push_back({.way = "zstd", .stored_bytes = 900});
  report.checks.push_back({"c", "ram", true, ""});
  const std::vector<ClaimFact> facts = claim_facts(report);
  ASSERT_EQ(facts.size(), 6u);
  std::map<std::string, double> numbers;
  for (size_t i = 0; i < facts.size(); ++i) {
    EXPECT_EQ(facts[i].letter, static_cast<char>('a' + i));
    EXPECT_FALSE(facts[i].lines.empty());
    for (const auto& [name, value] : facts[i].numbers) numbers[name] = value;
  }
  EXPECT_DOUBLE_EQ(numbers.at("speed_up, ram"), 10);
  EXPECT_DOUBLE_EQ(numbers.at("speed_up_against_engine, ram"), 0.001);
  EXPECT_DOUBLE_EQ(numbers.at("speed_up_at_50_percent, ram"), 10 / 5.5);
  EXPECT_DOUBLE_EQ(numbers.at("speed_up_of_1000_tokens, ram"), (10 + 0.5 + 99.9) / (1 + 0.5 + 99.9));
  EXPECT_DOUBLE_EQ(numbers.at("ttft_speed_up, ram"), 10.5 / 1.5);
  EXPECT_DOUBLE_EQ(numbers.at("ttft_speed_up_at_100_tokens, ram"), 20.0 / 11);
  EXPECT_DOUBLE_EQ(numbers.at("gb_per_s, ram"), 100000 / 1e9);
  EXPECT_DOUBLE_EQ(numbers.at("least_gb_per_s_that_pays"), 10000 / 1e9);
  EXPECT_DOUBLE_EQ(numbers.at("stored_share, zstd"), 0.9);
  EXPECT_EQ(numbers.at("checks_failed"), 0);
  report.checks.push_back({"d", "ram", false, ""});
  EXPECT_NE(claim_facts(report).back().lines.front().find("NOT exact"), std::string::npos);
}

}  // namespace
}  // namespace lapidary::test
