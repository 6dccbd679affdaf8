// One arithmetic: a row's logits are the same bits whatever else is done, on every golden model.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/harness.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

// Pieces of 1 to 9 tokens that differ from sequence to sequence: the batch is ragged at every step.
size_t piece_size(uint64_t sequence, uint64_t step) {
  return 1 + philox(1, sequence, step)[0] % 9;
}

// Feeds all prompts side by side in ragged pieces; logits of all positions of each, [n, V].
std::vector<std::vector<float>> run_together(Engine& engine, const std::vector<Tokens>& prompts) {
  const auto vocab = static_cast<size_t>(engine.spec().vocab_size);
  std::vector<std::vector<float>> logits(prompts.size());
  std::vector<int32_t> sequences;
  std::vector<size_t> fed(prompts.size(), 0);
  for (size_t i = 0; i < prompts.size(); ++i) {
    sequences.push_back(engine.open());
    logits[i].resize(prompts[i].size() * vocab);
  }
  for (uint64_t step = 0;; ++step) {
    std::vector<Feed> feeds;
    std::vector<size_t> owner;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const size_t n = std::min(piece_size(i, step), prompts[i].size() - fed[i]);
      if (n == 0) continue;
      feeds.push_back({sequences[i], std::span(prompts[i]).subspan(fed[i], n), Want::all});
      owner.push_back(i);
    }
    if (feeds.empty()) break;
    engine.forward(feeds, [&](size_t feed, int64_t index, std::span<const float> row) {
      const size_t i = owner[feed], at = (fed[i] + static_cast<size_t>(index)) * vocab;
      std::copy(row.begin(), row.end(), logits[i].begin() + static_cast<std::ptrdiff_t>(at));
    });
    for (size_t f = 0; f < feeds.size(); ++f) fed[owner[f]] += feeds[f].tokens.size();
  }
  for (const int32_t sequence : sequences) engine.close(sequence);
  return logits;
}

// Prompts of 5 to n tokens that share no beginning.
std::vector<Tokens> ragged_prompts(const Tokens& tokens, size_t count) {
  std::vector<Tokens> prompts;
  for (size_t i = 0; i < count; ++i) {
    Tokens prompt(tokens.begin() + static_cast<std::ptrdiff_t>(i * 2),
                  tokens.end() - static_cast<std::ptrdiff_t>((i * 5) % 17));
    prompts.push_back(prompt);
  }
  return prompts;
}

// Models with float weights, and some with quantised ones, in what ships and in float.
std::vector<ModelMode> modes_of_bits() {
  std::vector<std::string> models = golden_models();
  for (const char* quantised :
       {"gemma4-e2b-tiny-Q8_0", "gemma4-26b-tiny-Q8_0", "gemma3-tiny-Q5_0", "llama3-tiny-Q4_1"})
    models.emplace_back(quantised);
  return in_modes(models, {kDefaultArithmetic, Arithmetic::f32});
}

class Bits : public testing::TestWithParam<ModelMode> {
 protected:
  Bits() : checkpoint(open_golden(GetParam().model)), tokens(tokens_of(golden_of(GetParam().model))) {
    for (const KvTypes& kv : kKvTypes) reference.push_back(run({.threads = 1, .kv_dtype = kv}));
  }
  Engine make(EngineOptions options) const {
    options.arithmetic = GetParam().arithmetic;
    return Engine(checkpoint.spec, *checkpoint.tensors, options);
  }
  std::vector<float> run(const EngineOptions& options, size_t piece = 0) const {
    Engine engine = make(options);
    return run_alone(engine, tokens, piece);
  }
  static constexpr std::array<KvTypes, 5> kKvTypes{DType::f32, DType::f16, DType::bf16, DType::i8,
                                                   KvTypes(DType::f16, DType::i8)};

  Checkpoint checkpoint;
  Tokens tokens;
  std::vector<std::vector<float>> reference;  // by KV type: one thread, the whole prompt in one step
};

TEST_P(Bits, ChunksAndThreads) {
  for (size_t kv = 0; kv < kKvTypes.size(); ++kv) {
    for (const int threads : {1, 2}) {
      for (const int64_t chunk : {1, 7, 64, 512}) {
        const EngineOptions options{.threads = threads, .chunk = chunk, .kv_dtype = kKvTypes[kv]};
        expect_same_bits(
            run(options), reference[kv],
            fmt::format("chunk {}, {} threads, kv {}", chunk, threads, kv_types_name(kKvTypes[kv])));
      }
    }
  }
}

TEST_P(Bits, OneTokenACallAndPiecesOfSeven) {
  for (size_t kv = 0; kv < kKvTypes.size(); ++kv) {
    for (const size_t piece : {size_t{1}, size_t{7}})
      expect_same_bits(run({.threads = 1, .kv_dtype = kKvTypes[kv]}, piece), reference[kv],
                       fmt::format("calls of {} tokens", piece));
  }
}

TEST_P(Bits, CachedIsUncached) {
  const auto vocab = static_cast<size_t>(checkpoint.spec.vocab_size);
  for (size_t kv = 0; kv < kKvTypes.size(); ++kv) {
    Engine engine = make({.threads = 1, .kv_dtype = kKvTypes[kv]});
    for (size_t n = 1; n <= tokens.size(); ++n) {
      const int32_t sequence = engine.open();  // nothing is cached: all n tokens are computed again
      const std::vector<float> last = feed_last(engine, sequence, std::span(tokens).first(n));
      engine.close(sequence);
      expect_same_bits(last, row_of(reference[kv], n - 1, vocab), fmt::format("prefix of {} tokens", n));
    }
  }
}

// Rows that nobody wants leave early; those that stay must not notice.
TEST_P(Bits, UnwantedRowsChangeNothing) {
  const auto vocab = static_cast<size_t>(checkpoint.spec.vocab_size);
  Engine engine = make({.threads = 1, .chunk = 5});
  for (const size_t silent : {size_t{1}, size_t{6}, size_t{20}}) {
    const int32_t sequence = engine.open();
    int reported = 0;
    const Feed feed{sequence, std::span(tokens).first(silent), Want::none};
    engine.forward({&feed, 1}, [&](size_t, int64_t, std::span<const float>) { ++reported; });
    EXPECT_EQ(reported, 0);
    const std::span<const int32_t> rest = std::span(tokens).subspan(silent);
    expect_same_bits(feed_all(engine, sequence, rest), std::span(reference[0]).subspan(silent * vocab),
                     fmt::format("after {} silent tokens", silent));
    engine.close(sequence);
  }
}

TEST_P(Bits, BatchesOfOneToEight) {
  const std::vector<Tokens> prompts = ragged_prompts(tokens, 8);
  for (const KvTypes& kv : kKvTypes) {
    std::vector<std::vector<float>> alone;
    Engine single = make({.threads = 1, .kv_dtype = kv});
    for (const Tokens& prompt : prompts) alone.push_back(run_alone(single, prompt));
    for (const int64_t chunk : {int64_t{64}, int64_t{5}}) {
      Engine engine = make({.threads = chunk == 64 ? 2 : 1, .chunk = chunk, .kv_dtype = kv});
      for (size_t batch = 1; batch <= prompts.size(); ++batch) {
        const auto together =
            run_together(engine, {prompts.begin(), prompts.begin() + static_cast<std::ptrdiff_t>(batch)});
        for (size_t i = 0; i < batch; ++i)
          expect_same_bits(
              together[i], alone[i],
              fmt::format("sequence {} of {}, chunk {}, kv {}", i, batch, chunk, kv_types_name(kv)));
      }
    }
  }
}

TEST_P(Bits, KvTypeMatters) {
  for (size_t a = 0; a < kKvTypes.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      EXPECT_FALSE(is_same_bits(reference[a], reference[b]))
          << kv_types_name(kKvTypes[a]) << " rounds otherwise than " << kv_types_name(kKvTypes[b]);
}

// Contexts of several parts: by one thread or shared out, in prefill or token by token, in a batch or alone.
class LongBits : public testing::TestWithParam<std::string> {
 protected:
  LongBits() : checkpoint(open_golden_model(GetParam())), spec(checkpoint.spec) {
    const Tokens text = tokens_of(golden_case(GetParam()));
    spec.max_position = 1280;
    for (size_t i = 0; i < 1100; ++i) tokens.push_back(text[(i * i + i / 7) % text.size()]);
  }
  // Logits of the last 40 tokens: what comes before is fed in steps of `chunk`, they in calls of `piece`.
  std::vector<float> run(const EngineOptions& options, size_t piece) const {
    Engine engine(spec, *checkpoint.tensors, options);
    const int32_t sequence = engine.open();
    const Feed feed{sequence, std::span(tokens).first(tokens.size() - 40), Want::none};
    engine.forward({&feed, 1}, [](size_t, int64_t, std::span<const float>) {});
    return feed_all(engine, sequence, std::span(tokens).last(40), piece);
  }
  Checkpoint checkpoint;
  ModelSpec spec;
  Tokens tokens;
};

TEST_P(LongBits, PartsAreSharedOutAndMergedAlike) {
  for (const KvTypes& kv : {KvTypes(DType::f32), KvTypes(DType::f16), KvTypes(DType::i8, DType::bf16)}) {
    const std::vector<float> expected = run({.threads = 1, .chunk = 512, .kv_dtype = kv}, 40);
    for (const int threads : {1, 2, 3}) {
      for (const auto& [chunk, piece] : {std::pair<int64_t, size_t>{64, 1}, {512, 3}, {33, 40}})
        expect_same_bits(
            run({.threads = threads, .chunk = chunk, .kv_dtype = kv}, piece), expected,
            fmt::format("{} threads, chunk {}, calls of {}, {}", threads, chunk, piece, kv_types_name(kv)));
    }
  }
}

TEST_P(LongBits, BatchesOfLongAndShortSequences) {
  const EngineOptions options{.threads = 2, .max_sequences = 4, .kv_dtype = DType::f16};
  const std::vector<Tokens> prompts{
      tokens, {tokens.begin(), tokens.begin() + 9}, {tokens.begin() + 3, tokens.begin() + 603}};
  Engine single(spec, *checkpoint.tensors, {.threads = 1, .kv_dtype = DType::f16}),
      engine(spec, *checkpoint.tensors, options);
  std::vector<std::vector<float>> expected, got(prompts.size());
  std::vector<Feed> feeds;
  for (const Tokens& prompt : prompts) {
    const int32_t alone = single.open();
    feed_last(single, alone, prompt);
    expected.push_back(feed_last(single, alone, std::span(prompt).first(1)));
    const int32_t sequence = engine.open();
    feed_last(engine, sequence, prompt);
    feeds.push_back({sequence, std::span(prompt).first(1)});
  }
  engine.forward(feeds, [&](size_t feed, int64_t, std::span<const float> row) {
    got[feed].assign(row.begin(), row.end());
  });
  for (size_t i = 0; i < prompts.size(); ++i)
    expect_same_bits(got[i], expected[i], fmt::format("sequence {}", i));
}

TEST_P(LongBits, EveryIsaOfThisMachine) {
  std::vector<float> expected;
  for (const std::string& isa : isas()) {
    const ScopedEnvironment forced("LAPIDARY_ISA", isa);
    const std::vector<float> got = run({.threads = 2, .chunk = 256, .kv_dtype = {DType::i8, DType::f16}}, 5);
    if (expected.empty()) expected = got;
    expect_same_bits(got, expected, isa);
  }
}

INSTANTIATE_TEST_SUITE_P(, LongBits, testing::Values("gemma4-e2b-tiny", "gemma3-tiny", "llama-tiny"),
                         name_of_model);

INSTANTIATE_TEST_SUITE_P(, Bits, testing::ValuesIn(modes_of_bits()), name_of_mode);

}  // namespace
}  // namespace lapidary::test
