// The line through points, and the roofline's analysis of made-up measurements, whose answer is known.
#include "kvlab/fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"
#include "kvlab/roofline.h"
#include "support/golden_models.h"

namespace lapidary::test {
namespace {

using namespace kvlab;

TEST(FitLine, FindsALineThroughPointsOnIt) {
  const std::vector<double> x{1, 2, 4, 8}, y{5, 7, 11, 19};
  const Line line = fit_line(x, y);
  EXPECT_NEAR(line.intercept, 3, 1e-12);
  EXPECT_NEAR(line.slope, 2, 1e-12);
  EXPECT_NEAR(line.r2, 1, 1e-12);
  for (const double residual : line.residuals) EXPECT_NEAR(residual, 0, 1e-12);
}

TEST(FitLine, IsTheLeastSquaresOne) {
  const std::vector<double> x{0, 1, 2, 3}, y{0, 1, 1, 2};  // by hand: slope 0.6, intercept 0.1
  const Line line = fit_line(x, y);
  EXPECT_NEAR(line.slope, 0.6, 1e-12);
  EXPECT_NEAR(line.intercept, 0.1, 1e-12);
  EXPECT_NEAR(line.r2, 0.9, 1e-12);
  EXPECT_NEAR(line.residuals[1], 0.3, 1e-12);
  EXPECT_NEAR(line.slope_error, std::sqrt(0.2 / 2 / 5), 1e-12);
}

TEST(FitLine, KeepsSmallDifferencesOfLargeNumbers) {
  std::vector<double> x, y;
  for (int i = 0; i < 6; ++i) {
    x.push_back(4e12 + 1e3 * i);
    y.push_back(7 + 1e-12 * (x.back() - 4e12));
  }
  EXPECT_NEAR(fit_line(x, y).slope, 1e-12, 1e-16);
}

TEST(FitLine, SaysThatConstantTimesHaveNoSlope) {
  const std::vector<double> x{1, 2, 3}, y{4, 4, 4};
  const Line line = fit_line(x, y);
  EXPECT_EQ(line.slope, 0);
  EXPECT_EQ(line.intercept, 4);
  EXPECT_EQ(line.r2, 1);
}

TEST(FitLine, RefusesWhatHasNoLine) {
  const std::vector<double> one{1}, two{1, 2}, same{3, 3}, odd{1, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THROW(fit_line(one, one), Error);
  EXPECT_THROW(fit_line(two, one), Error);
  EXPECT_THROW(fit_line(same, two), Error);
  EXPECT_THROW(fit_line(two, odd), Error);
}

TEST(Quantile, IsLinearBetweenNeighbours) {
  const std::vector<double> values{4, 1, 3, 2};
  EXPECT_EQ(quantile(values, 0), 1);
  EXPECT_EQ(quantile(values, 0.5), 2.5);
  EXPECT_EQ(quantile(values, 1), 4);
  EXPECT_NEAR(quantile(values, 0.1), 1.3, 1e-12);
}

TEST(RateAt, IsInterpolatedInTheLogarithmOfTheSize) {
  const std::vector<ReadPoint> sweep{{1 << 10, 90, 100}, {1 << 12, 40, 50}, {1 << 14, 9, 10}};
  EXPECT_EQ(rate_at(sweep, 1), 100);
  EXPECT_EQ(rate_at(sweep, 1 << 10), 100);
  EXPECT_NEAR(rate_at(sweep, 1 << 11), 75, 1e-9);
  EXPECT_NEAR(rate_at(sweep, 1 << 12), 50, 1e-9);
  EXPECT_NEAR(rate_at(sweep, 1 << 13), 30, 1e-9);
  EXPECT_EQ(rate_at(sweep, 1e12), 10);
}

TEST(CachedUpTo, IsTheLargestSizeReadFasterThanMemory) {
  ReadMeasure measure;
  measure.huge = {1 << 20, 9, 10};
  measure.sweep = {{1 << 12, 0, 90}, {1 << 14, 0, 15}, {1 << 16, 0, 14}, measure.huge};
  EXPECT_EQ(measure.cached_up_to(), 1 << 14);
  measure.sweep = {measure.huge};
  EXPECT_EQ(measure.cached_up_to(), 0);
}

TEST(CacheLevels, AreWhatTheSystemSays) {
  int level = 0;
  for (const CacheLevel& cache : cache_levels()) {
    EXPECT_GE(cache.level, level);
    EXPECT_GT(cache.bytes, 0);
    EXPECT_GE(cache.instances, 1);
    EXPECT_NE(cache.type, "Instruction");
    level = cache.level;
  }
  EXPECT_EQ(last_level_bytes({{1, "Data", 10, 4}, {2, "Unified", 100, 2}}), 200);
  EXPECT_EQ(last_level_bytes({}), 0);
  EXPECT_GT(available_memory_bytes(), 1 << 20);
}

TEST(MeasureBandwidth, SweepsUpToTheSizeThatIsAsked) {
  const Bandwidth bandwidth = measure_bandwidth({1, 2}, 2, [](int64_t, int64_t) {});
  EXPECT_EQ(bandwidth.probe_bytes, 2 << 20);
  ASSERT_EQ(bandwidth.measures.size(), 2u);
  for (const ReadMeasure& m : bandwidth.measures) {
    EXPECT_EQ(m.sweep.front().bytes, 128 << 10);
    EXPECT_EQ(m.sweep.back().bytes, 2 << 20);
    EXPECT_EQ(m.huge.bytes, 2 << 20);
    EXPECT_EQ(m.small.bytes, 2 << 20);
    for (const ReadPoint& p : m.sweep) {
      EXPECT_GT(p.median_per_second, 0);
      EXPECT_GE(p.best_per_second, p.median_per_second);
    }
  }
  ReadMeasure better = bandwidth.measures[0];
  measure_again(better);
  EXPECT_GT(better.after, 0);
  EXPECT_EQ(better.huge.best_per_second, std::max(better.before, better.after));
  for (size_t i = 0; i < better.sweep.size(); ++i)
    EXPECT_GE(better.sweep[i].best_per_second, bandwidth.measures[0].sweep[i].best_per_second);
  // Smaller than four times any last cache there is: it must say so.
  EXPECT_FALSE(bandwidth.note.empty());
}

// ---- the analysis

constexpr double kBandwidth = 1e10;

// Measurements that follow the model exactly: overhead + weights / BW + passes * kv / BW, each with a little
// noise.
RooflineReport made_up(const ModelSpec& spec, const std::vector<int64_t>& lengths, double overhead,
                       double passes, double noise) {
  RooflineReport report;
  report.kv_types = DType::f16;
  report.max_position = spec.max_position;
  report.bf16_weight_bytes = 1 << 20;
  report.bandwidth.last_level = 0;
  const ReadPoint memory{1 << 30, kBandwidth * 0.9, kBandwidth};
  report.bandwidth.measures = {{.threads = 1, .huge = memory, .small = memory, .sweep = {memory}}};
  RooflineRun run;
  run.threads = 1;
  for (const int64_t length : lengths) {
    LengthResult r;
    r.length = length;
    r.steps = 10;
    r.layer_kv_bytes = kv_bytes_read(spec, report.kv_types, length);
    for (int64_t& bytes : r.layer_kv_bytes) r.kv_bytes_total += bytes *= r.steps;
    r.weight_bytes_total = 10 * 500'000;
    r.head_bytes_total = 10 * 100'000;
    const double exact = overhead + (r.weight_bytes() + passes * r.kv_bytes()) / kBandwidth;
    const auto wobble = static_cast<double>(normal(3, 0, static_cast<uint64_t>(length)));
    r.seconds.median = exact * (1 + noise * wobble);
    run.lengths.push_back(r);
  }
  report.runs = {run};
  return report;
}

const std::vector<int64_t> kLengths{512, 1024, 2048, 4096, 8192, 16384};

TEST(Analyse, RecoversWhatWasPutIn) {
  const ModelSpec spec = open_golden_model("llama-tiny").spec;
  for (const double passes : {1.0, 3.0, 7.0}) {
    RooflineReport report = made_up(spec, kLengths, 2e-5, passes, 0);
    analyse(spec, report);
    const RooflineFit& fit = *report.runs[0].fit;
    EXPECT_NEAR(*fit.passes(), passes, 1e-6);
    EXPECT_NEAR(*fit.effective_bandwidth(), kBandwidth / passes, 1e3);
    EXPECT_NEAR(fit.weights_seconds, 5e-5, 1e-12);
    EXPECT_NEAR(fit.overhead_seconds(), 2e-5, 1e-9);
    EXPECT_NEAR(fit.line.r2, 1, 1e-9);
    for (const LengthResult& r : report.runs[0].lengths)
      EXPECT_NEAR(r.fitted_seconds, r.seconds.median, 1e-9);
  }
}

TEST(Analyse, RecoversItThroughNoise) {
  const ModelSpec spec = open_golden_model("llama-tiny").spec;
  RooflineReport report = made_up(spec, kLengths, 2e-5, 3, 0.02);
  analyse(spec, report);
  EXPECT_NEAR(*report.runs[0].fit->passes(), 3, 0.2);
  EXPECT_GT(report.runs[0].fit->line.r2, 0.99);
  EXPECT_LT(report.runs[0].fit->line.r2, 1);
}

// The x axis is bytes: where windows are full, more tokens are few more bytes, and the line stays a line.
TEST(Analyse, TakesBytesAndNotTokensForItsAxis) {
  const ModelSpec spec = open_golden_model("gemma3-tiny").spec;
  RooflineReport report = made_up(spec, {2, 4, 8, 16, 64, 512, 4096}, 0, 1, 0);
  analyse(spec, report);
  EXPECT_NEAR(report.runs[0].fit->line.r2, 1, 1e-9);
  EXPECT_NEAR(*report.runs[0].fit->passes(), 1, 1e-6);
}

TEST(Analyse, SaysFromWhereOnBytesExplainTheTime) {
  const ModelSpec spec = open_golden_model("llama-tiny").spec;
  RooflineReport report = made_up(spec, kLengths, 5e-5, 1, 0);
  analyse(spec, report);
  const RooflineRun& run = report.runs[0];
  ASSERT_TRUE(run.verdict.bound_from);
  for (const LengthResult& r : run.lengths)
    EXPECT_EQ(r.explained() >= 0.8, r.length >= *run.verdict.bound_from);
  EXPECT_NE(run.verdict.sentences[0].find("Bandwidth-bound from about"), std::string::npos);

  report = made_up(spec, kLengths, 1, 1, 0);
  analyse(spec, report);
  EXPECT_FALSE(report.runs[0].verdict.bound_from);
  EXPECT_NE(report.runs[0].verdict.sentences[0].find("Not bandwidth-bound within this range"),
            std::string::npos);
}

TEST(Analyse, HasNoPassesWhereTimeDoesNotGrow) {
  const ModelSpec spec = open_golden_model("llama-tiny").spec;
  RooflineReport report = made_up(spec, kLengths, 1e-3, -1, 0);
  analyse(spec, report);
  EXPECT_FALSE(report.runs[0].fit->passes());
  EXPECT_FALSE(report.runs[0].verdict.measured_crossover);

  report = made_up(spec, {512}, 1e-3, 1, 0);
  analyse(spec, report);
  EXPECT_FALSE(report.runs[0].fit);
}

TEST(Analyse, SaysWhenTheMachineWasNotAtRest) {
  const ModelSpec spec = open_golden_model("llama-tiny").spec;
  for (const double again : {1.04, 1.06, 0.9}) {
    RooflineReport report = made_up(spec, kLengths, 1e-5, 1, 0);
    report.runs[0].drift = Drift{.length = 512,
                                 .first_seconds = 1,
                                 .again_seconds = again,
                                 .memory_first = 9e9,
                                 .memory_again = 9.5e9};
    analyse(spec, report);
    const bool said = report.runs[0].verdict.sentences.back().find("not at rest") != std::string::npos;
    EXPECT_EQ(said, again != 1.04) << again;
    EXPECT_EQ(report.runs[0].drift->warning(), said);
  }
}

TEST(Analyse, SaysWhenTheBandwidthMoved) {
  const ModelSpec spec = open_golden_model("llama-tiny").spec;
  for (const double again : {9.5e9, 8.5e9, 10.5e9}) {
    RooflineReport report = made_up(spec, kLengths, 1e-5, 1, 0);
    report.runs[0].drift = Drift{
        .length = 512, .first_seconds = 1, .again_seconds = 1, .memory_first = 1e10, .memory_again = again};
    analyse(spec, report);
    const bool said = report.runs[0].verdict.sentences.back().find("Memory was read") != std::string::npos;
    EXPECT_EQ(said, again == 8.5e9) << again;
  }
}

// A slope that noise could have made is not called one.
TEST(Analyse, TellsASlopeFromNoise) {
  const ModelSpec spec = open_golden_model("llama-tiny").spec;
  RooflineReport report = made_up(spec, {510, 511, 512, 513, 514}, 1e-3, 1, 0.1);
  report.runs[0].lengths.back().seconds.median *= 1.2;  // so that it is not below zero by chance
  analyse(spec, report);
  const RooflineRun& run = report.runs[0];
  ASSERT_GT(run.fit->line.slope, 0);
  EXPECT_FALSE(run.fit->has_slope());
  EXPECT_GT(run.fit->passes_error(), *run.fit->passes() / 2);
  EXPECT_NE(run.verdict.sentences[1].find("within its error"), std::string::npos);
  EXPECT_FALSE(run.verdict.measured_crossover);
}

// 4 operations for each head, dimension and position: a multiply-add for the score and one for the value.
TEST(Analyse, CountsTheArithmeticOfAttention) {
  const ModelSpec spec = open_golden_model("llama-tiny").spec;  // 4 layers, 6 heads of 16
  RooflineReport report = made_up(spec, {512}, 0, 1, 0);
  report.bandwidth.measures[0].float_ops = 1e9;
  analyse(spec, report);
  const LengthResult& r = report.runs[0].lengths[0];
  EXPECT_EQ(r.attention_ops, 4.0 * 4 * 6 * 16 * (503 + 512) / 2);
  EXPECT_NEAR(r.attention_ops_seconds, r.attention_ops / 1e9, 1e-15);
}

TEST(Analyse, TakesTheBandwidthOfTheSizeWhereACacheHoldsIt) {
  const ModelSpec spec = open_golden_model("llama-tiny").spec;
  RooflineReport report = made_up(spec, kLengths, 0, 1, 0);
  report.bandwidth.last_level = 4 << 20;
  report.bandwidth.measures[0].sweep = {{1 << 10, 0, 5e10}, {4 << 20, 0, 5e10}, {1 << 30, 0, kBandwidth}};
  analyse(spec, report);
  int inside = 0;
  for (const LengthResult& r : report.runs[0].lengths) {
    inside += r.in_last_level ? 1 : 0;
    EXPECT_EQ(r.in_last_level, r.working_set() < (4 << 20));
    EXPECT_EQ(r.from_working_set.bandwidth, r.in_last_level ? 5e10 : kBandwidth);
    EXPECT_EQ(r.from_memory.bandwidth, kBandwidth);
  }
  EXPECT_GT(inside, 0);
  EXPECT_LT(inside, static_cast<int>(kLengths.size()));
}

TEST(Crossover, IsTheFirstStepThatReadsAsManyBytes) {
  ModelSpec spec = open_golden_model("llama-tiny").spec;
  // The shape of SmolLM2-135M: 23,040 bytes a position, and 134,515,008 weights of two bytes.
  spec.layers.resize(1);
  spec.layers[0].attention->n_heads = 9;
  spec.layers[0].attention->n_kv_heads = 3;
  spec.layers[0].attention->head_dim = 64;
  while (spec.layers.size() < 30) {
    spec.layers.push_back(spec.layers[0]);
    spec.layers.back().attention->kv_owner = spec.n_layers() - 1;
  }
  EXPECT_EQ(positions_reading(spec, DType::f16, 2.0 * 134'515'008), 11'677);
  EXPECT_EQ(positions_reading(spec, DType::f16, 23'040), 1);
  EXPECT_EQ(positions_reading(spec, DType::f16, 23'041), 2);
  for (LayerSpec& layer : spec.layers) layer.attention->window = 512;
  EXPECT_EQ(positions_reading(spec, DType::f16, 512.0 * 23'040), 512);
  EXPECT_FALSE(positions_reading(spec, DType::f16, 512.0 * 23'040 + 1));
}

TEST(PossibleLengths, AreSortedAndTheOthersHaveReasons) {
  std::vector<LeftOut> left_out;
  EXPECT_EQ(possible_lengths({4096, 512, 40, 55, 56, 512, 8192}, 55, 4096, left_out),
            (std::vector<int64_t>{56, 512, 4096}));
  ASSERT_EQ(left_out.size(), 3u);
  EXPECT_EQ(left_out[2].length, 8192);
  EXPECT_NE(left_out[2].why.find("4096"), std::string::npos);
}

}  // namespace
}  // namespace lapidary::test
