// Save and restore: what comes back goes on with the same bits, in any engine on the same model, and nothing
// else is let in.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/state_bytes.h"
#include "engine/state_harness.h"

namespace lapidary::test {
namespace {

class Saved : public StateSuite {
 protected:
  Saved() : model(model_hash(checkpoint.spec, *checkpoint.tensors)) {}

  StateBytes saved(const EngineOptions& options, std::span<const int32_t> tokens) const {
    Engine engine = make(options);
    const int32_t sequence = engine.open();
    feed_all(engine, sequence, tokens);
    return state_of(engine, sequence, model, "attached");
  }
  // K and V of owners, from the first page that is kept.
  int64_t expected_bytes(int64_t length, int64_t keep_behind, const KvTypes& kv) const {
    int64_t bytes = 0;
    for (int64_t i = 0; i < checkpoint.spec.n_layers(); ++i) {
      const LayerSpec& layer = checkpoint.spec.layers[static_cast<size_t>(i)];
      if (!layer.owns_kv(i)) continue;
      const AttentionSpec& a = *layer.attention;
      const int64_t first =
          a.window ? std::max<int64_t>(0, length - a.window + 1 - keep_behind) / 32 * 32 : 0;
      const auto row = [&](DType type) {
        const int64_t number = type == DType::f32 ? 4 : type == DType::i8 ? 1 : 2;
        return a.head_dim * number + (type == DType::i8 ? 4 : 0);
      };
      bytes += (length - first) * a.n_kv_heads * (row(kv.keys) + row(kv.values));
    }
    return bytes;
  }
  // Leaves other keys and values in every page that the pools have handed out so far.
  void spoil(Engine& engine) const {
    std::vector<int32_t> sequences;
    for (int i = 0; i < 3; ++i) {
      sequences.push_back(engine.open());
      feed_all(engine, sequences.back(), right);
      feed_all(engine, sequences.back(), base);
    }
    for (const int32_t sequence : sequences) engine.close(sequence);
  }

  Hash128 model;
};

class SavedOnEveryIsa : public Saved {};

TEST_P(Saved, GoesOnInANewEngine) {
  for_ways([&](EngineOptions options, const std::string& label) {
    const KvTypes kv = options.kv_dtype;
    const StateBytes state = saved({.chunk = 13, .kv_dtype = kv}, base);
    Engine engine = make(options);
    spoil(engine);
    const int32_t sequence = engine.open(), beside = engine.open();
    EXPECT_EQ(restore(engine, sequence, state, model, "state"), "attached");
    EXPECT_EQ(engine.stats().kv_bytes_restored, expected_bytes(144, 0, kv));
    EXPECT_GT(engine.stats().kv_bytes_restored, 0);
    EXPECT_TRUE(
        std::equal(base.begin(), base.end(), engine.tokens(sequence).begin(), engine.tokens(sequence).end()));
    EXPECT_EQ(engine.earliest_restart(sequence), expected_restart(144, 0));
    feed_all(engine, beside, left);
    expect_same_bits(feed_all(engine, sequence, left), fresh(kv, joined(base, left), left.size()), label);
  });
}

// What is saved depends on the tokens and on nothing else, so that a restore can be proved by saving again.
TEST_P(Saved, TheBytesAreTheSameHoweverTheyCameAbout) {
  for (const KvTypes kv : kKvTypes) {
    const StateBytes expected = saved({.chunk = 512, .kv_dtype = kv}, base);
    EXPECT_EQ(saved({.threads = 2, .chunk = 7, .kv_dtype = kv}, base), expected);
    Engine engine = make({.kv_dtype = kv});
    spoil(engine);
    const int32_t a = engine.open();
    restore(engine, a, expected, model, "state");
    EXPECT_EQ(state_of(engine, a, model, "attached"), expected) << "restored";
    const int32_t b = engine.fork(a);
    EXPECT_EQ(state_of(engine, b, model, "attached"), expected) << "branched off";
    feed_all(engine, b, left);
    EXPECT_NE(state_of(engine, b, model, "attached"), expected);
    EXPECT_EQ(state_of(engine, a, model, "attached"), expected) << "its branch went on";
    Tokens other = base;
    other[3]++;
    EXPECT_NE(saved({.kv_dtype = kv}, other), expected);
  }
}

TEST_P(SavedOnEveryIsa, CrossesInstructionSets) {
  const StateBytes expected = saved({}, base);
  for (const std::string& from : isas()) {
    StateBytes state;
    {
      const ScopedEnvironment forced("LAPIDARY_ISA", from);
      state = saved({}, base);
    }
    EXPECT_EQ(state, expected) << from;
    for (const std::string& to : isas()) {
      const ScopedEnvironment forced("LAPIDARY_ISA", to);
      Engine engine = make({});
      const int32_t sequence = engine.open();
      restore(engine, sequence, state, model, "state");
      expect_same_bits(feed_all(engine, sequence, left), fresh(DType::f32, joined(base, left), left.size()),
                       from + " to " + to);
    }
  }
}

TEST_P(Saved, KeepsItsRestartPositions) {
  for (const int64_t kept : {int64_t{0}, int64_t{40}}) {
    const StateBytes state = saved({.keep_behind = kept}, base);
    for (const int64_t keep : {int64_t{0}, int64_t{40}, int64_t{100}}) {
      Engine engine = make({.keep_behind = keep});
      const int32_t sequence = engine.open();
      restore(engine, sequence, state, model, "state");
      const int64_t earliest = engine.earliest_restart(sequence);
      EXPECT_EQ(earliest, expected_restart(144, std::min(kept, keep)));
      EXPECT_EQ(engine.stats().kv_bytes_restored, expected_bytes(144, std::min(kept, keep), DType::f32));
      engine.trim(sequence, earliest);
      const Tokens now = joined(std::span(base).first(static_cast<size_t>(earliest)), left);
      expect_same_bits(feed_all(engine, sequence, left), fresh(DType::f32, now, left.size()),
                       fmt::format("saved with {}, restored with {}", kept, keep));
      if (earliest > 1) {
        restore(engine, sequence, state, model, "state");
        expect_error([&] { engine.trim(sequence, earliest - 1); }, ErrorCode::limit,
                     "no longer holds the window");
      }
    }
  }
}

TEST_P(Saved, AnyLengthMayBeSaved) {
  Engine engine = make({}), other = make({});
  const int32_t sequence = engine.open(), target = other.open();
  for (const size_t length : {0, 1, 31, 32, 33, 40, 64, 71, 72}) {
    engine.trim(sequence, 0);
    if (length > 0) feed_all(engine, sequence, std::span(base).first(length));
    restore(other, target, state_of(engine, sequence, model), model, "state");
    ASSERT_EQ(other.length(target), static_cast<int64_t>(length));
    const Tokens now = joined(std::span(base).first(length), right);
    expect_same_bits(feed_all(other, target, right), fresh(DType::f32, now, right.size()),
                     fmt::format("after {}", length));
  }
}

TEST_P(Saved, AnotherModelIsNamed) {
  const StateBytes state = saved({}, base);
  const auto refused = [&](const ModelSpec& spec, const Hash128& hash, const EngineOptions& options,
                           ErrorCode code, std::string_view part) {
    Engine engine(spec, *checkpoint.tensors, options);
    const int32_t sequence = engine.open();
    const std::span<const int32_t> held = std::span(left).first(30);
    const std::vector<float> before = feed_last(engine, sequence, held);
    const int64_t in_use = engine.stats().kv_bytes_in_use;
    expect_error([&] { restore(engine, sequence, state, hash, "my.state"); }, code, part);
    expect_error([&] { restore(engine, sequence, state, hash, "my.state"); }, code, "my.state: ");
    EXPECT_EQ(engine.stats().kv_bytes_in_use, in_use);
    EXPECT_EQ(engine.stats().kv_bytes_restored, 0);
    engine.trim(sequence, 29);
    expect_same_bits(feed_last(engine, sequence, held.last(1)), before, "the sequence is as it was");
  };
  const auto changed = [&](FunctionRef<void(AttentionSpec&)> change) {
    ModelSpec spec = checkpoint.spec;
    for (LayerSpec& layer : spec.layers) change(*layer.attention);
    return spec;
  };
  const EngineOptions plain = {.threads = 1};
  refused(checkpoint.spec, model, {.threads = 1, .kv_dtype = DType::bf16}, ErrorCode::usage,
          "key dtype: expected bf16, got f32");
  refused(checkpoint.spec, model, {.threads = 1, .kv_dtype = {DType::f32, DType::i8}}, ErrorCode::usage,
          "value dtype: expected q8, got f32");
  refused(checkpoint.spec, model, {.threads = 1, .context = 143}, ErrorCode::limit,
          "length: 144 positions exceed the context of 143");
  Hash128 other = model;
  other.bytes[5] ^= 1;
  refused(checkpoint.spec, other, plain, ErrorCode::usage,
          fmt::format("model hash: expected {}, got {}", hash_text(other), hash_text(model)));
  const ModelSpec turned = changed([](AttentionSpec& a) { a.rope.theta *= 2; });
  refused(turned, model_hash(turned, *checkpoint.tensors), plain, ErrorCode::usage,
          "layer 0: rope theta: expected");
  const ModelSpec widened = changed([](AttentionSpec& a) { a.window += a.window ? 1 : 300; });
  refused(widened, model_hash(widened, *checkpoint.tensors), plain, ErrorCode::usage,
          "layer 0: window: expected");
}

TEST_P(Saved, WhoeverRefusesTheAttachmentRefusesTheState) {
  const StateBytes state = saved({}, base);
  Engine engine = make({});
  const int32_t sequence = engine.open();
  feed_all(engine, sequence, left);
  const StateBytes before = state_of(engine, sequence, model);
  const auto refuse = [](std::span<const std::byte>) { fail(ErrorCode::usage, "not for me"); };
  expect_error([&] { engine.restore(sequence, state, model, "state", refuse); }, ErrorCode::usage,
               "not for me");
  EXPECT_EQ(state_of(engine, sequence, model), before);
  EXPECT_EQ(engine.stats().kv_bytes_restored, 0);
}

INSTANTIATE_TEST_SUITE_P(, Saved, testing::ValuesIn(state_models()), name_of_model);
INSTANTIATE_TEST_SUITE_P(, SavedOnEveryIsa, testing::ValuesIn(small_state_models()), name_of_model);

// ---- model_hash ----

TEST(ModelHash, SeesEveryTensorAndTheSpec) {
  const Checkpoint checkpoint = open_golden_model("gemma4-e2b-tiny");
  const Hash128 hash = model_hash(checkpoint.spec, *checkpoint.tensors);
  EXPECT_EQ(hash, model_hash(checkpoint.spec, *checkpoint.tensors));
  EXPECT_EQ(hash_text(hash).size(), 32u);
  std::vector<Hash128> seen{hash};
  const auto is_new = [&](const Hash128& other, const std::string& what) {
    EXPECT_EQ(std::count(seen.begin(), seen.end(), other), 0) << what;
    seen.push_back(other);
  };
  for_each_tensor(checkpoint.spec, [&](const TensorInfo& info) {
    PatchedTensors tensors(*checkpoint.tensors);
    tensors.change(info.slot, [](std::vector<float>& values) { values.back() += 1.0f; });
    is_new(model_hash(checkpoint.spec, tensors), slot_name(info.slot));
  });
  ModelSpec spec = checkpoint.spec;
  spec.layers[2].attention->rope.theta += 1;
  is_new(model_hash(spec, *checkpoint.tensors), "theta");
  PatchedTensors same_values(*checkpoint.tensors);  // the same numbers, stored as f32
  const TensorData gate = checkpoint.tensors->read({TensorKind::gate, 0});
  same_values.set({TensorKind::gate, 0}, gate.view.shape, to_floats(gate.view));
  if (gate.view.dtype != DType::f32) is_new(model_hash(spec, same_values), "number format");
}

}  // namespace
}  // namespace lapidary::test
