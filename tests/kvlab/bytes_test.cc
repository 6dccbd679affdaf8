// The bytes of a running engine's cache against the formulas, below, at and past every window.
#include "kvlab/bytes/bytes.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <numeric>

#include "engine/real_models.h"
#include "kernels/kv_layout.h"
#include "spec/footprint.h"
#include "support/compare.h"
#include "support/golden_models.h"
#include "support/made_models.h"

namespace lapidary::test {
namespace {

using namespace kvlab;

struct Filling {
  KvTypes types = DType::f16;
  std::vector<int64_t> lengths;
  int64_t keep_behind = 0;
  int threads = 1;
  int64_t chunk = 48;
};

BytesReport measured(const ModelSpec& spec, const TensorSource& source, const Filling& run) {
  BytesOptions options;
  options.types = run.types;
  options.lengths = run.lengths;
  options.keep_behind = run.keep_behind;
  for (int64_t i = 0; i < run.lengths.back(); ++i)
    options.tokens.push_back(static_cast<int32_t>((i * 7 + 3) % spec.vocab_size));
  Engine engine(spec, source,
                {.threads = run.threads,
                 .chunk = run.chunk,
                 .max_sequences = 1,
                 .context = run.lengths.back(),
                 .kv_dtype = run.types,
                 .keep_behind = run.keep_behind});
  return measure_bytes(engine, options, [](int64_t, int64_t) {});
}

BytesReport measured(const std::string& golden, const Filling& run) {
  const Checkpoint checkpoint = open_golden(golden);
  return measured(checkpoint.spec, *checkpoint.tensors, run);
}

void expect_ok(const BytesReport& report, const std::string& label) {
  for (const BytesCheck& check : report.checks) {
    EXPECT_TRUE(check.passed()) << label << ": " << check.name << ": " << check.failure;
    EXPECT_GT(check.comparisons, 0) << check.name;
  }
  EXPECT_TRUE(report.ok()) << label;
}

class GoldenBytes : public testing::TestWithParam<std::string> {};

TEST_P(GoldenBytes, EqualTheFormulasInEveryType) {
  const ModelSpec spec = open_golden(GetParam()).spec;
  for (const KvTypes& types : {KvTypes(DType::f32), KvTypes(DType::f16), KvTypes(DType::bf16),
                               KvTypes(DType::i8), KvTypes(DType::i8, DType::f16)}) {
    const BytesReport report =
        measured(GetParam(), {.types = types, .lengths = {1, 5, 8, 9, 31, 32, 33, 39, 40, 72, 73, 105}});
    expect_ok(report, GetParam() + " " + kv_types_name(types));
    for (const BytesAtLength& at : report.lengths) {
      EXPECT_EQ(at.total.needed_bytes, kv_bytes_needed(spec, at.length, types));
      EXPECT_GE(at.total.allocated_bytes, at.total.stored_bytes);
      EXPECT_GE(at.total.pool_bytes, at.total.allocated_bytes);
      EXPECT_GT(at.weights_read_bytes, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenBytes,
                         testing::Values("gemma4-e2b-tiny", "gemma4-e4b-tiny", "gemma4-12b-tiny",
                                         "gemma4-26b-tiny", "gemma4-31b-tiny", "gemma3-tiny", "llama-tiny",
                                         "gemma4-e2b-tiny-Q8_0"),
                         name_of_model);

// What the formula says of one token past the window, found in the buffers of the models that share K and V:
// fewer bytes are stored than each step reads.
TEST(Bytes, SlopesOfTheBuffersPastTheWindowAreThoseOfThePlan) {
  for (const std::string model : {"gemma4-e2b-tiny", "gemma4-e2b-wide", "gemma4-e4b-tiny"}) {
    const ModelSpec spec = open_golden(model).spec;
    for (const DType type : {DType::bf16, DType::f16}) {
      const KvBytes rates = kv_bytes_per_token(spec, type);
      const BytesReport report = measured(model, {.types = type, .lengths = {64, 96, 160}});
      ASSERT_EQ(report.slopes.size(), 2u);
      for (const BytesSlope& slope : report.slopes) {
        EXPECT_EQ(slope.stored_bytes, (slope.to - slope.from) * rates.global) << model;
        EXPECT_EQ(slope.touched_bytes, (slope.to - slope.from) * rates.read_global) << model;
      }
      EXPECT_GT(rates.read_global, rates.global) << model << ": it has layers that borrow";
    }
  }
}

// Below the window nothing has left: what is stored is what is needed.
TEST(Bytes, BelowTheWindowNeededIsStored) {
  const BytesReport report = measured("gemma4-e2b-wide", {.lengths = {3, 16}});
  for (const BytesAtLength& at : report.lengths) EXPECT_EQ(at.total.stored_bytes, at.total.needed_bytes);
}

TEST(Bytes, PositionsKeptBehindTheWindowAreCounted) {
  for (const int64_t behind : {1, 20, 64}) {
    const BytesReport report = measured("gemma4-e2b-tiny", {.lengths = {16, 80, 112}, .keep_behind = behind});
    expect_ok(report, std::to_string(behind));
    EXPECT_GT(report.lengths[1].total.stored_bytes, report.lengths[1].total.needed_bytes);
  }
}

TEST(Bytes, ChunkAndThreadsChangeNothing) {
  const Filling plain{.lengths = {30, 70}};
  const BytesReport one = measured("gemma4-31b-tiny", plain);
  for (const auto& [chunk, threads] : {std::pair<int64_t, int>{1, 1}, {7, 2}, {256, 2}}) {
    Filling other = plain;
    other.chunk = chunk;
    other.threads = threads;
    const BytesReport again = measured("gemma4-31b-tiny", other);
    expect_ok(again, std::to_string(chunk));
    for (size_t i = 0; i < one.lengths.size(); ++i) {
      EXPECT_EQ(again.lengths[i].total.stored_bytes, one.lengths[i].total.stored_bytes);
      EXPECT_EQ(again.lengths[i].total.touched_bytes, one.lengths[i].total.touched_bytes);
    }
  }
}

// Heads that are no whole vectors are padded in memory; 26 query heads on one KV head read it in three
// passes.
TEST(Bytes, PaddingAndPassesAreSeen) {
  ModelSpec spec;
  spec.vocab_size = 24;
  spec.d_model = 32;
  spec.max_position = 128;
  for (int64_t i = 0; i < 3; ++i) {
    LayerSpec layer;
    AttentionSpec& a = layer.attention.emplace();
    a.n_heads = i == 1 ? 26 : 4;
    a.n_kv_heads = i == 1 ? 1 : 2;
    a.head_dim = i == 1 ? 6 : 10;
    a.window = i == 2 ? 40 : 0;
    a.scale = 0.25;
    a.kv_owner = i;
    layer.ffn = FfnSpec{32, Activation::silu, {}};
    spec.layers.push_back(layer);
  }
  const MadeModel model = make_model(spec, DType::f32);
  for (const KvTypes& types : {KvTypes(DType::f32), KvTypes(DType::i8), KvTypes(DType::f16, DType::i8)}) {
    const BytesReport report =
        measured(model.spec, model.tensors, {.types = types, .lengths = {1, 32, 40, 75}});
    expect_ok(report, kv_types_name(types));
    const BytesAtLength& at = report.lengths[1];  // whole pages: what is more than stored is padding
    EXPECT_GT(at.total.allocated_bytes, at.total.stored_bytes);
    EXPECT_GT(at.layers[1].pool_bytes, at.layers[1].allocated_bytes) << "layer 0 has larger pages";
    EXPECT_EQ(at.layers[1].touched_bytes, 3 * at.layers[1].stored_bytes);
    EXPECT_EQ(at.layers[0].touched_bytes, at.layers[0].stored_bytes);
  }
}

// Every check notices when its number is off by one, and names the layer and the length.
TEST(Bytes, ChecksNoticeAByte) {
  const BytesReport sound = measured("gemma4-e2b-tiny", {.lengths = {40}});
  ASSERT_TRUE(sound.ok());
  const auto failures = [&](auto damage, const std::string& part) {
    BytesReport damaged = sound;
    damage(damaged.lengths[0]);
    int64_t failed = 0;
    for (const BytesCheck& check : check_bytes(damaged)) {
      if (check.passed()) continue;
      failed++;
      EXPECT_NE(check.failure.find(part), std::string::npos) << check.failure;
    }
    damaged.checks = check_bytes(damaged);
    EXPECT_EQ(damaged.ok(), failed == 0);
    return failed;
  };
  const std::string layer = "layer 4 at length 40", all = "all layers at length 40";
  EXPECT_EQ(failures([](BytesAtLength&) {}, ""), 0);
  EXPECT_GE(failures([](BytesAtLength& at) { at.layers[4].stored_bytes++; }, layer), 1);
  EXPECT_GE(failures([](BytesAtLength& at) { at.layers[4].needed_bytes--; }, layer), 1);
  EXPECT_GE(failures([](BytesAtLength& at) { at.layers[4].allocated_bytes++; }, layer), 1);
  EXPECT_GE(failures([](BytesAtLength& at) { at.layers[4].pool_bytes--; }, layer), 1);
  EXPECT_GE(failures([](BytesAtLength& at) { at.layers[4].touched_bytes++; }, layer), 1);
  EXPECT_GE(failures([](BytesAtLength& at) { at.layers[4].written_bytes--; }, layer), 1);
  EXPECT_GE(failures([](BytesAtLength& at) { at.layers[4].first_stored++; }, layer), 1);
  EXPECT_GE(failures([](BytesAtLength& at) { at.saved_bytes--; }, all), 1);
  EXPECT_GE(failures([](BytesAtLength& at) { at.in_use_bytes++; }, all), 1);
}

TEST(Bytes, DefaultLengthsLieOnBothSidesOfEveryWindow) {
  const std::vector<int64_t> sliding = default_bytes_lengths(open_golden("gemma4-e2b-wide").spec, 512);
  EXPECT_EQ(sliding, (std::vector<int64_t>{8, 16, 17, 48, 80}));
  EXPECT_EQ(default_bytes_lengths(open_golden("gemma4-e2b-wide").spec, 20),
            (std::vector<int64_t>{8, 16, 17}));
  EXPECT_EQ(default_bytes_lengths(open_golden("llama-tiny").spec, 512),
            (std::vector<int64_t>{5, 32, 128, 512}));
  EXPECT_EQ(default_bytes_lengths(open_golden("llama-tiny").spec, 3), (std::vector<int64_t>{3}));
}

TEST(Bytes, SaysWhereALengthLies) {
  std::vector<PlanLayer> layers(3);
  EXPECT_EQ(where_of(layers, 7), "no window");
  layers[0].window = 8;
  EXPECT_EQ(where_of(layers, 7), "below the window");
  EXPECT_EQ(where_of(layers, 8), "at the window");
  EXPECT_EQ(where_of(layers, 9), "past the window");
  layers[1].window = 20;
  EXPECT_EQ(where_of(layers, 9), "between the windows");
  EXPECT_EQ(where_of(layers, 20), "at the window");
  EXPECT_EQ(where_of(layers, 21), "past the window");
}

TEST(Bytes, LengthsThatAreNoneAreRefused) {
  const Checkpoint checkpoint = open_golden("llama-tiny");
  Engine engine(checkpoint.spec, *checkpoint.tensors, {.threads = 1, .max_sequences = 1, .context = 64});
  const auto measure = [&](std::vector<int64_t> lengths, size_t tokens = 64) {
    BytesOptions options;
    options.types = DType::f32;
    options.lengths = std::move(lengths);
    options.tokens.assign(tokens, 1);
    measure_bytes(engine, options, [](int64_t, int64_t) {});
  };
  expect_error([&] { measure({}); }, ErrorCode::usage, "expected at least one");
  expect_error([&] { measure({0}); }, ErrorCode::usage, "expected 1 to 64 positions, got 0");
  expect_error([&] { measure({65}); }, ErrorCode::usage, "expected 1 to 64 positions, got 65");
  expect_error([&] { measure({7, 7}); }, ErrorCode::usage, "got 7 after 7");
  expect_error([&] { measure({40}, 39); }, ErrorCode::usage, "40 needs as many tokens, got 39");
  measure({64});  // and the sequence of a refused run is closed
}

TEST(Bytes, JsonAndCsvHaveTheNumbers) {
  const BytesReport report = measured("gemma4-e2b-tiny", {.lengths = {8, 40, 72}});
  const boost::json::object out = bytes_json(report, open_golden("gemma4-e2b-tiny").spec, {});
  EXPECT_EQ(out.at("schema").as_string(), "lapidary.kv.bytes");
  EXPECT_TRUE(out.at("ok").as_bool());
  EXPECT_EQ(out.at("lengths").at(0).at("where").as_string(), "at the window");
  EXPECT_EQ(out.at("model").at("borrowers").as_int64(), 5);
  EXPECT_EQ(out.at("slopes").at(1).at("from").as_int64(), 40);
  int64_t needed = 0, touched = 0;
  for (const auto& layer : out.at("lengths").at(2).at("layers").as_array()) {
    needed += layer.at("needed_bytes").as_int64();
    touched += layer.at("touched_bytes").as_int64();
  }
  EXPECT_EQ(needed, report.lengths[2].total.needed_bytes);
  EXPECT_EQ(touched, out.at("lengths").at(2).at("touched_bytes").as_int64());
  const std::string csv = bytes_csv(report);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 3 * 15);
}

TEST(RealBytes, SmolLm2TakesExactly23040BytesAToken) {
  const Checkpoint checkpoint = open_checkpoint(cached_model(kSmol.name));
  const BytesReport report =
      measured(checkpoint.spec, *checkpoint.tensors, {.lengths = {5, 32, 64}, .threads = 2, .chunk = 64});
  expect_ok(report, "smollm2");
  for (const BytesAtLength& at : report.lengths) {
    EXPECT_EQ(at.total.stored_bytes, 23'040 * at.length);
    EXPECT_EQ(at.total.touched_bytes, 23'040 * at.length);
    EXPECT_EQ(at.total.allocated_bytes, 23'040 * ((at.length + 31) / 32 * 32));
    EXPECT_EQ(at.total.pool_bytes, at.total.allocated_bytes);
  }
}

}  // namespace
}  // namespace lapidary::test
