// Refusals, limits and the books: what the engine turns down, what it holds on to, what the probe sees.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/allocation_count.h"
#include "engine/harness.h"
#include "engine/sampler.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

const std::string kModel = "gemma4-e2b-tiny";  // windows, borrowers, per-layer embeddings, scalars

class Limits : public testing::Test {
 protected:
  Limits() : checkpoint(open_golden_model(kModel)), tokens(tokens_of(golden_case(kModel))) {}
  Engine make(EngineOptions options) const {
    if (options.threads == 0) options.threads = 1;
    return Engine(checkpoint.spec, *checkpoint.tensors, options);
  }
  size_t vocab() const { return static_cast<size_t>(checkpoint.spec.vocab_size); }

  Checkpoint checkpoint;
  Tokens tokens;
};

const auto ignore = [](size_t, int64_t, std::span<const float>) {};

// All of `parts` must be in the message.
void expect_refused(FunctionRef<void()> action, ErrorCode code, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) expect_error(action, code, part);
}

// ---- requests ----

TEST_F(Limits, BadFeedsAreNamedAndChangeNothing) {
  Engine engine = make({.chunk = 8, .max_sequences = 3, .context = 64});
  Engine calm = make({.chunk = 8, .max_sequences = 3, .context = 64});
  const int32_t a = engine.open(), b = engine.open(), closed = engine.open();
  engine.close(closed);
  const std::span<const int32_t> first = std::span(tokens).first(20), rest = std::span(tokens).subspan(20);
  feed_all(engine, a, first);
  feed_all(engine, b, first.first(3));
  const EngineStats before = engine.stats();

  const Tokens too_great = {1, 2, 320}, negative = {1, -1}, fine = {1, 2}, too_many(45, 1);
  const auto refused = [&](const std::vector<Feed>& feeds, ErrorCode code,
                           const std::vector<std::string>& parts) {
    int reported = 0;
    const auto count = [&](size_t, int64_t, std::span<const float>) { ++reported; };
    expect_refused([&] { engine.forward(feeds, count); }, code, parts);
    EXPECT_EQ(reported, 0);
  };
  refused({{a, too_great}}, ErrorCode::usage, {"320", "319", fmt::format("sequence {}", a), "2"});
  refused({{a, negative}}, ErrorCode::usage, {"-1", fmt::format("sequence {}", a)});
  refused({{a, fine}, {b, too_great}}, ErrorCode::usage,
          {"320", fmt::format("sequence {}", b)});  // a must not be fed either
  refused({{a, fine}, {closed, fine}}, ErrorCode::usage, {fmt::format("sequence {}", closed)});
  refused({{a, fine}, {77, fine}}, ErrorCode::usage, {"sequence 77"});
  refused({{-1, fine}}, ErrorCode::usage, {"sequence -1"});
  refused({{b, fine}, {a, {}}}, ErrorCode::usage, {fmt::format("sequence {}", a)});
  refused({{a, fine}, {a, fine}}, ErrorCode::usage, {fmt::format("sequence {}", a), "two feeds"});
  refused({{b, fine}, {a, too_many}}, ErrorCode::limit, {fmt::format("sequence {}", a), "45", "20", "64"});

  EXPECT_EQ(engine.length(a), 20);
  EXPECT_EQ(engine.length(b), 3);
  EXPECT_EQ(engine.stats().rows, before.rows);
  EXPECT_EQ(engine.stats().kv_bytes_in_use, before.kv_bytes_in_use);
  const int32_t undisturbed = calm.open();
  feed_all(calm, undisturbed, first);
  expect_same_bits(feed_all(engine, a, rest), feed_all(calm, undisturbed, rest), "after the refusals");
}

TEST_F(Limits, TheContextMayBeFilledToTheLastPosition) {
  Engine engine = make({.context = 48});
  EXPECT_EQ(engine.context(), 48);
  const int32_t sequence = engine.open();
  feed_all(engine, sequence, tokens);
  EXPECT_EQ(engine.length(sequence), 48);
  const Feed one{sequence, std::span(tokens).first(1)};
  expect_error([&] { engine.forward({&one, 1}, ignore); }, ErrorCode::limit, "48");
}

TEST_F(Limits, SequencesRunOutAndComeBack) {
  Engine engine = make({.max_sequences = 2});
  const int32_t a = engine.open(), b = engine.open();
  EXPECT_NE(a, b);
  expect_error([&] { engine.open(); }, ErrorCode::limit, "2");
  const std::vector<float> expected = feed_all(engine, b, tokens);
  feed_all(engine, a, std::span(tokens).first(9));
  engine.close(a);
  const int32_t again = engine.open();
  EXPECT_EQ(engine.length(again), 0);
  expect_same_bits(feed_all(engine, again, tokens), expected, "a reused sequence remembers nothing");
}

TEST_F(Limits, ClosedSequencesAreUnknown) {
  Engine engine = make({});
  const int32_t a = engine.open();
  engine.close(a);
  for (const int32_t unknown : {a, -1, 8, std::numeric_limits<int32_t>::max()}) {
    const std::string name = fmt::format("sequence {}", unknown);
    expect_error([&] { engine.close(unknown); }, ErrorCode::usage, name);
    expect_error([&] { engine.length(unknown); }, ErrorCode::usage, name);
  }
}

TEST_F(Limits, OptionsAreChecked) {
  const auto refused = [&](const EngineOptions& options, ErrorCode code,
                           const std::vector<std::string>& parts) {
    expect_refused([&] { make(options); }, code, parts);
  };
  refused({.chunk = 0}, ErrorCode::usage, {"chunk", "got 0"});
  refused({.max_sequences = 0}, ErrorCode::usage, {"max_sequences", "got 0"});
  refused({.context = -5}, ErrorCode::usage, {"context", "got -5"});
  refused({.context = checkpoint.spec.max_position + 1}, ErrorCode::usage,
          {"context", fmt::format("got {}", checkpoint.spec.max_position + 1),
           fmt::format("{}", checkpoint.spec.max_position)});
  refused({.threads = -1}, ErrorCode::usage, {"threads", "got -1"});
  refused({.kv_dtype = DType::q8_0}, ErrorCode::unsupported, {"q8_0", "f32, f16, bf16 or q8"});
}

TEST_F(Limits, ACallbackThatThrowsLeavesTheStepUndone) {
  Engine engine = make({});
  const int32_t sequence = engine.open();
  const std::span<const int32_t> first = std::span(tokens).first(10), rest = std::span(tokens).subspan(10);
  feed_all(engine, sequence, first);
  const Feed feed{sequence, rest};
  const auto stop = [](size_t, int64_t, std::span<const float>) { fail(ErrorCode::limit, "enough"); };
  expect_error([&] { engine.forward({&feed, 1}, stop); }, ErrorCode::limit, "enough");
  EXPECT_EQ(engine.length(sequence), 10);
  Engine calm = make({});
  const std::vector<float> expected = run_alone(calm, tokens);
  expect_same_bits(feed_all(engine, sequence, rest), std::span(expected).subspan(10 * vocab()), "fed again");
}

// ---- weights ----

TEST_F(Limits, WeightsThatAreNoNumbersAreNamed) {
  using K = TensorKind;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInfinity = std::numeric_limits<float>::infinity();
  struct Case {
    Slot slot;
    float value;
    const char* name;
  };
  for (const Case& c :
       {Case{{K::gate, 1}, kNan, "layers.1.gate"}, Case{{K::layer_scalar, 3}, kNan, "layers.3.layer_scalar"},
        Case{{K::query_norm, 14}, -kInfinity, "layers.14.query_norm"},
        Case{{K::ple_output, 2}, kInfinity, "layers.2.ple_output"},
        Case{{K::token_embedding}, kNan, "token_embedding"},
        Case{{K::output_norm}, kInfinity, "output_norm"}}) {
    PatchedTensors tensors(*checkpoint.tensors);
    tensors.change(c.slot, [&](std::vector<float>& values) { values[values.size() / 2] = c.value; });
    expect_error([&] { Engine(checkpoint.spec, tensors, one_thread()); }, ErrorCode::data, c.name);
  }
}

// Finite weights, but products beyond the range of float32: the layer is named, and the step leaves no trace.
TEST_F(Limits, ActivationsThatOverflowAreNamedWithTheirLayer) {
  PatchedTensors tensors(*checkpoint.tensors);
  for (const TensorKind kind : {TensorKind::up, TensorKind::down, TensorKind::gate})
    tensors.fill({kind, 5}, 3e38F);
  Engine engine(checkpoint.spec, tensors, one_thread());
  const int32_t sequence = engine.open();
  const Feed feed{sequence, tokens};
  expect_refused(
      [&] {
        engine.forward({&feed, 1}, ignore);
      },
      ErrorCode::data, {"layer 5: the hidden state of sequence 0, position 0 is not finite"});
  EXPECT_EQ(engine.length(sequence), 0);
}

// A key beyond float16 is no infinity in the cache: layer, position and number are named, whichever row it
// is.
TEST_F(Limits, KeysAndValuesBeyondTheirTypeAreNamed) {
  PatchedTensors tensors(*checkpoint.tensors);
  tensors.change({TensorKind::key_norm, 3}, [&](std::vector<float>& values) {
    for (float& x : values) x *= 3e6F;
  });
  for (const KvTypes& kv : {KvTypes(DType::f16), KvTypes(DType::f16, DType::f32)}) {
    Engine engine(checkpoint.spec, tensors, {.threads = 2, .kv_dtype = kv});
    const int32_t sequence = engine.open();
    const Feed feed{sequence, tokens};
    expect_refused(
        [&] {
          engine.forward({&feed, 1}, ignore);
        },
        ErrorCode::data,
        {"layer 3: the key of sequence 0, position 0, KV head 0 holds ", "up to 65504", "of f16"});
    EXPECT_EQ(engine.length(sequence), 0);
  }
  for (const KvTypes& kv : {KvTypes(DType::f32), KvTypes(DType::bf16), KvTypes(DType::i8)}) {
    Engine engine(checkpoint.spec, tensors, {.threads = 2, .kv_dtype = kv});
    run_alone(engine, tokens);  // their range is that of float32
  }
}

// A table read by row is not read whole at load; the row tells when it is met.
TEST_F(Limits, ABadRowOfAGatheredTableIsNamedWhenItIsFed) {
  PatchedTensors tensors(*checkpoint.tensors);
  const int64_t width = checkpoint.spec.n_layers() * checkpoint.spec.ple_dim;
  tensors.change({TensorKind::ple_embedding}, [&](std::vector<float>& values) {
    values[static_cast<size_t>(7 * width + 3)] = std::numeric_limits<float>::quiet_NaN();
  });
  Engine engine(checkpoint.spec, tensors, one_thread()), sound = make({});
  Tokens clean = tokens;
  std::replace(clean.begin(), clean.end(), 7, 8);
  const int32_t sequence = engine.open(), other = sound.open();
  feed_all(engine, sequence, std::span(clean).first(10));
  feed_all(sound, other, std::span(clean).first(10));
  const Tokens bad = {5, 7, 6};
  const Feed feed{sequence, bad};
  expect_refused([&] { engine.forward({&feed, 1}, ignore); }, ErrorCode::data, {"ple_embedding", "row 7"});
  EXPECT_EQ(engine.length(sequence), 10);
  const std::span<const int32_t> rest = std::span(clean).subspan(10);
  expect_same_bits(feed_all(engine, sequence, rest), feed_all(sound, other, rest), "after the bad row");
}

class WithoutOne : public TensorSource {
 public:
  WithoutOne(const TensorSource& base, Slot missing) : base_(base), missing_(missing) {}
  TensorData read(const Slot& slot) const override {
    ensure(slot != missing_, ErrorCode::data, "{}: expected a tensor, got none", slot_name(slot));
    return base_.read(slot);
  }

 private:
  const TensorSource& base_;
  Slot missing_;
};

TEST_F(Limits, EveryMissingTensorIsNamed) {
  std::vector<Slot> slots;
  for_each_tensor(checkpoint.spec, [&](const TensorInfo& info) { slots.push_back(info.slot); });
  ASSERT_GT(slots.size(), 200u);
  for (const Slot& slot : slots) {
    const WithoutOne tensors(*checkpoint.tensors, slot);
    expect_error([&] { Engine(checkpoint.spec, tensors, one_thread()); }, ErrorCode::data, slot_name(slot));
  }
}

TEST_F(Limits, EveryMisshapedTensorIsNamed) {
  std::vector<TensorInfo> infos;
  for_each_tensor(checkpoint.spec, [&](const TensorInfo& info) { infos.push_back(info); });
  for (const TensorInfo& info : infos) {
    PatchedTensors tensors(*checkpoint.tensors);
    Shape wrong = info.shape;
    ++wrong[0];
    tensors.set(info.slot, wrong, std::vector<float>(static_cast<size_t>(element_count(wrong, "test"))));
    expect_refused([&] { Engine(checkpoint.spec, tensors, one_thread()); }, ErrorCode::data,
                   {slot_name(info.slot), shape_text(info.shape), shape_text(wrong)});
  }
}

TEST_F(Limits, AQuantisedNormAndAnIntegerWeightAreRefused) {
  const std::vector<std::byte> bytes(4096);
  const auto replaced = [&](Slot slot, DType dtype, const Shape& shape, size_t size) {
    MemoryTensors tensors;
    for_each_tensor(checkpoint.spec, [&](const TensorInfo& info) {
      tensors.write(info.slot, checkpoint.tensors->read(info.slot).view);
    });
    tensors.write(slot, {dtype, shape, std::span(bytes).first(size)});
    return tensors;
  };
  const MemoryTensors quantised = replaced({TensorKind::ffn_norm, 2}, DType::q8_0, {64}, 68);
  expect_refused([&] { Engine(checkpoint.spec, quantised, one_thread()); }, ErrorCode::data,
                 {"layers.2.ffn_norm", "q8_0"});
  const MemoryTensors integers = replaced({TensorKind::ple_gate, 2}, DType::i8, {16, 64}, 1024);
  expect_refused([&] { Engine(checkpoint.spec, integers, one_thread()); }, ErrorCode::data,
                 {"layers.2.ple_gate", "i8"});
}

TEST_F(Limits, AContradictorySpecIsRefused) {
  ModelSpec spec = checkpoint.spec;
  spec.layers[2].attention->n_kv_heads = 4;  // of 6 heads
  expect_error([&] { Engine(spec, *checkpoint.tensors, one_thread()); }, ErrorCode::data, "layers[2]");
}

TEST_F(Limits, LoadingReportsItsProgress) {
  int64_t last = 0, calls = 0, whole = 0;
  auto progress = [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    last = done;
    whole = total;
    ++calls;
  };
  FunctionRef<void(int64_t, int64_t)> on_load(progress);
  Engine engine = make({.on_load = &on_load});
  EXPECT_GT(calls, 10);
  EXPECT_EQ(last, whole);
}

// ---- KV pages ----

TEST_F(Limits, ClosingFreesThePages) {
  Engine engine = make({.max_sequences = 3});
  EXPECT_EQ(engine.stats().kv_bytes_in_use, 0);
  const int32_t a = engine.open(), b = engine.open();
  feed_all(engine, a, tokens);
  const int64_t of_one = engine.stats().kv_bytes_in_use;
  EXPECT_GT(of_one, 0);
  feed_all(engine, b, tokens);
  EXPECT_EQ(engine.stats().kv_bytes_in_use, 2 * of_one);
  engine.close(a);
  EXPECT_EQ(engine.stats().kv_bytes_in_use, of_one);
  engine.close(b);
  EXPECT_EQ(engine.stats().kv_bytes_in_use, 0);
  for (int i = 0; i < 200; ++i)
    run_alone(engine, std::span(tokens).first(3));  // pages come back, or this would run out of them
  EXPECT_EQ(engine.stats().kv_bytes_in_use, 0);
}

TEST_F(Limits, HalfTheBytesForHalfTheBits) {
  const auto bytes = [&](const KvTypes& types) {
    Engine engine = make({.kv_dtype = types});
    feed_all(engine, engine.open(), tokens);
    return engine.stats().kv_bytes_in_use;
  };
  EXPECT_EQ(bytes(DType::f32), 2 * bytes(DType::bf16));
  EXPECT_EQ(bytes(DType::f16), bytes(DType::bf16));
  EXPECT_LT(bytes({DType::f16, DType::i8}), bytes(DType::f16));
  EXPECT_LT(bytes(DType::i8), bytes({DType::f16, DType::i8}));
  EXPECT_GT(4 * bytes(DType::i8), bytes(DType::f32)) << "codes have scales";
}

// A model all of whose layers have a window lives in a ring: what left the window is given back.
TEST_F(Limits, WhatLeftTheWindowIsGivenBack) {
  const Checkpoint llama = open_golden_model("llama-tiny");
  const Tokens prompt = tokens_of(golden_case("llama-tiny"));
  ModelSpec windowed = llama.spec;
  for (LayerSpec& layer : windowed.layers) layer.attention->window = 40;
  const auto use_over_time = [&](const ModelSpec& spec) {
    Engine engine(spec, *llama.tensors, {.chunk = 16});
    const int32_t sequence = engine.open();
    std::vector<int64_t> bytes;
    for (int i = 0; i < 10; ++i) {
      feed_all(engine, sequence, prompt);
      bytes.push_back(engine.stats().kv_bytes_in_use);
    }
    EXPECT_LE(bytes.back(), engine.stats().kv_bytes_reserved);
    engine.close(sequence);
    EXPECT_EQ(engine.stats().kv_bytes_in_use, 0);
    return bytes;
  };
  const std::vector<int64_t> ring = use_over_time(windowed), whole = use_over_time(llama.spec);
  const int64_t page = whole[0] / 2;  // 48 positions are two pages of 32
  EXPECT_EQ(whole[9], 15 * page);     // 480 positions
  for (const int64_t bytes : ring)
    EXPECT_LE(bytes, 3 * page) << "a window of 40 touches at most three pages of 32";
}

TEST_F(Limits, OnlyGlobalOwnersGrowPastTheWindow) {
  Engine engine = make({});
  const int32_t sequence = engine.open();
  std::vector<int64_t> bytes;
  for (int i = 0; i < 8; ++i) {
    const Tokens block(32, 5);
    feed_all(engine, sequence, block);
    bytes.push_back(engine.stats().kv_bytes_in_use);
  }
  // Two global owners, one KV head of 32: K and V of 32 positions in f32.
  for (size_t i = 3; i < bytes.size(); ++i)
    EXPECT_EQ(bytes[i] - bytes[i - 1], 2 * 2 * 32 * 32 * 4) << "block " << i;
}

TEST_F(Limits, StatsCountStepsAndRows) {
  Engine engine = make({.chunk = 16});
  feed_all(engine, engine.open(), tokens);
  EXPECT_EQ(engine.stats().rows, 48);
  EXPECT_EQ(engine.stats().steps, 3);
  EXPECT_GT(engine.stats().weight_bytes, 0);
  EXPECT_GT(engine.stats().workspace_bytes, 0);
  EXPECT_GE(engine.stats().load_seconds, 0.0);
}

// ---- allocation ----

class DecodeAllocation : public testing::TestWithParam<std::string> {};

TEST_P(DecodeAllocation, NoneBetweenSteps) {
  const Checkpoint checkpoint = open_golden(GetParam());
  const Tokens tokens = tokens_of(golden_of(GetParam()));
  constexpr size_t kSequences = 4;
  for (const KvTypes& kv :
       {KvTypes(DType::f32), KvTypes(DType::f16), KvTypes(DType::bf16), KvTypes(DType::i8)}) {
    Engine engine(checkpoint.spec, *checkpoint.tensors,
                  {.threads = 2, .max_sequences = kSequences, .kv_dtype = kv});
    std::vector<Feed> feeds;
    std::vector<Sampler> samplers;
    Tokens next(kSequences);
    for (size_t i = 0; i < kSequences; ++i) {
      feeds.push_back({engine.open(), std::span(tokens).first(3 + 5 * i)});
      samplers.emplace_back(
          SamplingParams{.temperature = 1.0f, .top_p = 0.9f, .presence_penalty = 0.1f, .seed = i},
          checkpoint.spec.vocab_size);
    }
    int64_t before = 0;
    for (uint64_t step = 0; step < 120; ++step) {  // several pages, and past every window
      if (step == 1) before = allocation_count();
      engine.forward(feeds, [&](size_t feed, int64_t, std::span<const float> logits) {
        next[feed] = samplers[feed].sample(logits, step);
        samplers[feed].observe(next[feed]);
      });
      for (size_t i = 0; i < kSequences; ++i) feeds[i].tokens = std::span(next).subspan(i, 1);
    }
    EXPECT_EQ(allocation_count() - before, 0) << "kv " << kv_types_name(kv);
  }
}

std::vector<std::string> models_that_decode() {
  std::vector<std::string> models = golden_models();
  models.insert(models.end(), {"gemma4-e2b-tiny-Q8_0", "gemma4-26b-tiny-Q8_0"});  // integers of activations
  return models;
}
INSTANTIATE_TEST_SUITE_P(, DecodeAllocation, testing::ValuesIn(models_that_decode()), name_of_model);

// ---- probe ----

class ProbeTest : public testing::TestWithParam<std::string> {};

TEST_P(ProbeTest, SeesProbabilitiesOfAllVisiblePositions) {
  const Checkpoint checkpoint = open_golden_model(GetParam());
  const Tokens tokens = tokens_of(golden_case(GetParam()));
  Recorder seen(true);
  Engine engine(checkpoint.spec, *checkpoint.tensors, {.threads = 1, .chunk = 7});
  run_alone(engine, tokens, 0, &seen);
  size_t expected = 0;
  for (const LayerSpec& layer : checkpoint.spec.layers)
    expected += static_cast<size_t>(layer.attention->n_heads) * tokens.size();
  ASSERT_EQ(seen.scores().size(), expected);
  for (const Recorder::Scores& s : seen.scores()) {
    const int64_t window = checkpoint.spec.layers[static_cast<size_t>(s.layer)].attention->window;
    const int64_t first = window > 0 ? std::max<int64_t>(0, s.position - window + 1) : 0;
    ASSERT_EQ(s.first, first) << "layer " << s.layer << " position " << s.position;
    ASSERT_EQ(static_cast<int64_t>(s.p.size()), s.position + 1 - first);
    double sum = 0.0;
    for (const float p : s.p) {
      ASSERT_TRUE(p >= 0.0f && p <= 1.0f);
      sum += static_cast<double>(p);
    }
    ASSERT_NEAR(sum, 1.0, 1e-5);
  }
}

TEST_P(ProbeTest, ChangesNothingAndIsTheSameForAnyChunk) {
  const Checkpoint checkpoint = open_golden_model(GetParam());
  const Tokens tokens = tokens_of(golden_case(GetParam()));
  Engine engine(checkpoint.spec, *checkpoint.tensors, one_thread());
  Recorder whole(true), pieces(true);
  const std::vector<float> bare = run_alone(engine, tokens);
  expect_same_bits(run_alone(engine, tokens, 0, &whole), bare, "with a probe");
  expect_same_bits(run_alone(engine, tokens, 5, &pieces), bare, "with a probe, in pieces");
  EXPECT_TRUE(whole.hidden() == pieces.hidden());
  EXPECT_TRUE(whole.final_norm() == pieces.final_norm());
  EXPECT_TRUE(whole.keys() == pieces.keys());
  EXPECT_TRUE(whole.values() == pieces.values());
}

// K and V are reported as stored: rounded to the cache's type.
TEST_P(ProbeTest, KvIsReportedAsStored) {
  const Checkpoint checkpoint = open_golden_model(GetParam());
  const Tokens tokens = tokens_of(golden_case(GetParam()));
  Recorder seen;
  run_model(checkpoint.spec, *checkpoint.tensors, tokens, {.kv_dtype = DType::bf16}, &seen);
  for (const auto* side : {&seen.keys(), &seen.values()}) {
    for (const auto& [layer, rows] : *side) {
      for (const float x : Recorder::joined(rows))
        ASSERT_EQ(std::bit_cast<uint32_t>(x) & 0xffffu, 0u) << "layer " << layer;
    }
  }
  Recorder eight;
  run_model(checkpoint.spec, *checkpoint.tensors, tokens, {.kv_dtype = {DType::f16, DType::i8}}, &eight);
  for (const auto& [layer, rows] : eight.keys())
    for (const float x : Recorder::joined(rows))
      ASSERT_EQ(std::bit_cast<uint32_t>(x) & 0x1fffu, 0u) << "layer " << layer;  // ten bits of mantissa
  for (const auto& [layer, rows] : eight.values()) {
    const auto width =
        static_cast<size_t>(checkpoint.spec.layers[static_cast<size_t>(layer)].attention->head_dim);
    const std::vector<float> values = Recorder::joined(rows);
    for (size_t head = 0; head < values.size(); head += width) {
      float greatest = 0;
      for (size_t i = 0; i < width; ++i) greatest = std::max(greatest, std::fabs(values[head + i]));
      for (size_t i = 0; i < width && greatest > 0; ++i) {
        const float code = values[head + i] / greatest * 127;
        ASSERT_NEAR(code, std::nearbyint(code), 1e-3) << "layer " << layer;
      }
    }
  }
}

TEST_P(ProbeTest, UnwantedRowsStopAtTheLastOwner) {
  const Checkpoint checkpoint = open_golden_model(GetParam());
  const Tokens tokens = tokens_of(golden_case(GetParam()));
  int64_t last_owner = 0;
  for (int64_t i = 0; i < checkpoint.spec.n_layers(); ++i) {
    if (checkpoint.spec.layers[static_cast<size_t>(i)].owns_kv(i)) last_owner = i;
  }
  Engine engine(checkpoint.spec, *checkpoint.tensors, one_thread());
  Recorder seen;
  const int32_t sequence = engine.open();
  const Feed feed{sequence, tokens, Want::last};
  int reported = 0;
  engine.forward(
      {&feed, 1},
      [&](size_t, int64_t index, std::span<const float>) {
        EXPECT_EQ(index, static_cast<int64_t>(tokens.size()) - 1);
        ++reported;
      },
      &seen);
  EXPECT_EQ(reported, 1);
  for (int64_t i = 0; i < checkpoint.spec.n_layers(); ++i) {
    EXPECT_EQ(seen.hidden().at(i).size(), i < last_owner ? tokens.size() : 1u) << "layer " << i;
  }
  EXPECT_EQ(seen.final_norm().size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(, ProbeTest, testing::ValuesIn(golden_models()), name_of_model);

}  // namespace
}  // namespace lapidary::test
