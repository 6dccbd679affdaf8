// One arithmetic: a row's logits are the same bits whatever else is done, on every golden model.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/harness.h"
#include "kernels/kernels.h"
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

class Bits : public testing::TestWithParam<std::string> {
 protected:
  Bits() : checkpoint(open_golden_model(GetParam())), tokens(tokens_of(golden_case(GetParam()))) {
    for (const DType kv : {DType::f32, DType::bf16}) reference.push_back(run({.threads = 1, .kv_dtype = kv}));
  }
  std::vector<float> run(const EngineOptions& options, size_t piece = 0) const {
    Engine engine(checkpoint.spec, *checkpoint.tensors, options);
    return run_alone(engine, tokens, piece);
  }
  static constexpr std::array kKvTypes{DType::f32, DType::bf16};

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
            fmt::format("chunk {}, {} threads, kv {}", chunk, threads, dtype_name(kKvTypes[kv])));
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
    Engine engine(checkpoint.spec, *checkpoint.tensors, {.threads = 1, .kv_dtype = kKvTypes[kv]});
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
  Engine engine(checkpoint.spec, *checkpoint.tensors, {.threads = 1, .chunk = 5});
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
  for (const DType kv : kKvTypes) {
    std::vector<std::vector<float>> alone;
    Engine single(checkpoint.spec, *checkpoint.tensors, {.threads = 1, .kv_dtype = kv});
    for (const Tokens& prompt : prompts) alone.push_back(run_alone(single, prompt));
    for (const int64_t chunk : {int64_t{64}, int64_t{5}}) {
      Engine engine(checkpoint.spec, *checkpoint.tensors,
                    {.threads = chunk == 64 ? 2 : 1, .chunk = chunk, .kv_dtype = kv});
      for (size_t batch = 1; batch <= prompts.size(); ++batch) {
        const auto together =
            run_together(engine, {prompts.begin(), prompts.begin() + static_cast<std::ptrdiff_t>(batch)});
        for (size_t i = 0; i < batch; ++i)
          expect_same_bits(
              together[i], alone[i],
              fmt::format("sequence {} of {}, chunk {}, kv {}", i, batch, chunk, dtype_name(kv)));
      }
    }
  }
}

TEST_P(Bits, EveryIsaOfThisMachine) {
  int compared = 0;
  for (const auto isa : kernels::kIsas) {
    if (!kernels::isa_available(isa)) continue;
    const ScopedEnvironment forced("LAPIDARY_ISA", std::string(kernels::isa_name(isa)));
    for (size_t kv = 0; kv < kKvTypes.size(); ++kv) {
      Engine engine(checkpoint.spec, *checkpoint.tensors, {.threads = 1, .kv_dtype = kKvTypes[kv]});
      EXPECT_NE(engine.numeric_mode().find(kernels::isa_name(isa)), std::string::npos)
          << engine.numeric_mode();
      expect_same_bits(run_alone(engine, tokens), reference[kv], fmt::format("{}", kernels::isa_name(isa)));
    }
    ++compared;
  }
  EXPECT_GE(compared, 1);
}

TEST_P(Bits, KvTypeMatters) {
  EXPECT_FALSE(is_same_bits(reference[0], reference[1])) << "bf16 must round";
}

INSTANTIATE_TEST_SUITE_P(, Bits, testing::ValuesIn(golden_models()), name_of_model);

}  // namespace
}  // namespace lapidary::test
