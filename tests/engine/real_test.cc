// Real weights: SmolLM2-135M-Instruct (Q4_1) and Gemma-3-270M (Q4_K_M) from the model cache. All names start
// with Real, so that a slow build can leave them out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/harness.h"
#include "engine/real_models.h"
#include "engine/sampler.h"
#include "formats/mapped_file.h"
#include "support/compare.h"
#include "support/probability.h"

namespace lapidary::test {
namespace {

constexpr double kTolerance = 2e-4;  // of max(1, |expected|), as for the golden models

Tokens tokens_in(const boost::json::value& array) {
  Tokens out;
  for (const auto& id : array.as_array()) out.push_back(id.to_number<int32_t>());
  return out;
}

std::string name_of_real(const testing::TestParamInfo<RealModel>& info) {
  return test_name(info.param.name);
}

class Real : public testing::TestWithParam<RealModel> {
 protected:
  Real()
      : checkpoint(open_checkpoint(cached_model(GetParam().name))),
        golden(data_path(std::string("gguf/real/") + GetParam().golden + ".safetensors")),
        document(read_json(data_path(std::string("gguf/real/") + GetParam().golden + ".json"))),
        vocab(static_cast<size_t>(checkpoint.spec.vocab_size)) {}

  // A short context: the pools and the work stay small.
  std::unique_ptr<Engine> engine(EngineOptions options) const {
    if (options.context == 0) options.context = 256;
    return std::make_unique<Engine>(checkpoint.spec, *checkpoint.tensors, options);
  }
  const boost::json::object& prompts() const { return document.at("prompts").as_object(); }
  Tokens text_tokens() const { return tokens_in(document.at("text").at("ids")); }

  Checkpoint checkpoint;
  Golden golden;
  boost::json::value document;
  size_t vocab;
};

// The twenty best of every position: the stored values are rounded to five digits, and the ids are right
// where two neighbours lie further apart than the tolerance.
void expect_top20(std::span<const float> logits, const boost::json::array& stored, const std::string& label) {
  std::vector<float> expected, actual;
  std::vector<int32_t> ids;
  for (const auto& pair : stored) {
    ids.push_back(pair.at(0).to_number<int32_t>());
    expected.push_back(pair.at(1).to_number<float>());
    actual.push_back(logits[static_cast<size_t>(ids.back())]);
  }
  expect_close(actual, expected, kTolerance, label + ", top 20");
  const float least = expected.back();
  const float margin = static_cast<float>(2.0 * kTolerance) * std::max(1.0f, std::abs(least));
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] <= least + margin) continue;
    EXPECT_NE(std::find(ids.begin(), ids.end(), static_cast<int32_t>(id)), ids.end())
        << label << ": token " << id << " is among the best with " << logits[id];
  }
}

TEST_P(Real, PromptsAtEveryPosition) {
  const auto e = engine({.arithmetic = Arithmetic::f32});
  for (const auto& [key, prompt] : prompts()) {
    const std::string name(key);
    const Tokens ids = tokens_in(prompt.at("ids"));
    const std::vector<float> logits = run_alone(*e, ids);
    const boost::json::array& top = prompt.at("top20_each_position").as_array();
    ASSERT_EQ(top.size(), ids.size());
    for (size_t t = 0; t < ids.size(); ++t)
      expect_top20(row_of(logits, t, vocab), top[t].as_array(), fmt::format("{}, position {}", name, t));
    expect_close(row_of(logits, ids.size() - 1, vocab), golden.floats(name + ".last_logits"), kTolerance,
                 name + ".last_logits [V]");
  }
}

TEST_P(Real, GreedyUntilTheGapIsTooSmall) {
  const auto e = engine({.arithmetic = Arithmetic::f32});
  for (const auto& [key, prompt] : prompts()) {
    const Tokens ids = tokens_in(prompt.at("ids")), expected = tokens_in(prompt.at("greedy"));
    const boost::json::array& gaps = prompt.at("greedy_gap").as_array();
    Sampler greedy({}, checkpoint.spec.vocab_size);
    const int32_t sequence = e->open();
    std::vector<float> logits = feed_last(*e, sequence, ids);
    size_t compared = 0;
    for (size_t step = 0; step < expected.size(); ++step, ++compared) {
      // Both of the two best may be off, each by the tolerance.
      const double scale =
          std::max(1.0, std::abs(static_cast<double>(logits[static_cast<size_t>(best_of(logits))])));
      if (gaps[step].to_number<double>() < 2.0 * kTolerance * scale) break;
      const int32_t token = greedy.sample(logits, step);
      ASSERT_EQ(token, expected[step]) << std::string(key) << ", step " << step;
      logits = feed_last(*e, sequence, {&token, 1});
    }
    EXPECT_GE(compared, 8u) << std::string(key) << ": too few steps were clear enough to compare";
    e->close(sequence);
  }
}

// docs/numerics.md: float stands at its own error from the truth; the default mode may cost half a
// thousandth.
TEST_P(Real, PerplexityOfAText) {
  const Tokens ids = text_tokens();
  const TensorView& stored = golden.view("text.logprobs");
  ASSERT_EQ(stored.dtype, DType::f64);
  ASSERT_EQ(stored.shape, (Shape{static_cast<int64_t>(ids.size()) - 1}));
  std::vector<double> expected(ids.size() - 1);
  std::memcpy(expected.data(), stored.bytes.data(), stored.bytes.size());
  const double truth = document.at("text").at("perplexity").to_number<double>();

  for (const Arithmetic arithmetic : {Arithmetic::f32, kDefaultArithmetic}) {
    const auto e = engine({.chunk = 128,
                           .max_sequences = 1,
                           .context = static_cast<int64_t>(ids.size()),
                           .arithmetic = arithmetic});
    double sum = 0.0, worst = 0.0;
    const Feed feed{e->open(), ids, Want::all};
    e->forward({&feed, 1}, [&](size_t, int64_t index, std::span<const float> logits) {
      const auto t = static_cast<size_t>(index);
      if (t + 1 == ids.size()) return;
      const double logprob = log_probability(logits, ids[t + 1]);
      sum += logprob;
      worst = std::max(worst, std::abs(logprob - expected[t]) / std::max(1.0, std::abs(expected[t])));
    });
    const double perplexity = std::exp(-sum / static_cast<double>(ids.size() - 1));
    const std::string name(arithmetic_name(arithmetic));
    std::printf("%s in %s: perplexity %.6f, truth %.6f, worst log-probability off by %.2g\n", GetParam().name,
                name.c_str(), perplexity, truth, worst);
    if (arithmetic == Arithmetic::f32) {
      EXPECT_NEAR(perplexity, truth, 1e-4 * truth);
      EXPECT_LE(worst, 5e-4);
    } else {
      EXPECT_NEAR(perplexity, truth, 5e-4 * truth) << name;
    }
  }
}

// ---- bits ----

// A hash of the bits of each row: the whole logits of a large vocabulary would be much to keep.
uint64_t hash_of(std::span<const float> row) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const float x : row) hash = (hash ^ std::bit_cast<uint32_t>(x)) * 0x100000001b3;
  return hash;
}

// Hashes of all positions, the tokens fed in pieces of at most `piece`.
std::vector<uint64_t> hashes(Engine& engine, std::span<const int32_t> tokens, size_t piece) {
  std::vector<uint64_t> out;
  const int32_t sequence = engine.open();
  for (size_t start = 0; start < tokens.size(); start += piece) {
    const Feed feed{sequence, tokens.subspan(start, std::min(piece, tokens.size() - start)), Want::all};
    engine.forward({&feed, 1},
                   [&](size_t, int64_t, std::span<const float> row) { out.push_back(hash_of(row)); });
  }
  engine.close(sequence);
  return out;
}

constexpr size_t kBitTokens = 80;  // more than two pages and more than one chunk of 64

// What ships, and float.
constexpr Arithmetic kArithmetics[] = {kDefaultArithmetic, Arithmetic::f32};

TEST_P(Real, BitsForChunksThreadsAndKvTypes) {
  const Tokens all = text_tokens();
  const std::span<const int32_t> tokens = std::span(all).first(kBitTokens);
  for (const Arithmetic arithmetic : kArithmetics) {
    for (const KvTypes& kv : {KvTypes(DType::f32), KvTypes(DType::f16), KvTypes(DType::i8)}) {
      std::vector<uint64_t> reference;
      for (const int threads : {1, 2}) {
        const auto e = engine({.threads = threads, .chunk = 256, .kv_dtype = kv, .arithmetic = arithmetic});
        if (threads == 1) reference = hashes(*e, tokens, tokens.size());
        for (const size_t piece : {size_t{1}, size_t{7}, size_t{64}, tokens.size()}) {
          if (piece == 1 && threads == 1) continue;  // the slowest pair says nothing that the others do not
          EXPECT_EQ(hashes(*e, tokens, piece), reference)
              << "pieces of " << piece << ", " << threads << " threads, " << e->numeric_mode();
        }
      }
    }
  }
}

TEST_P(Real, BitsForUncachedPrefixes) {
  const Tokens all = text_tokens();
  const std::span<const int32_t> tokens = std::span(all).first(kBitTokens);
  for (const Arithmetic arithmetic : kArithmetics) {
    const auto e = engine({.arithmetic = arithmetic});
    const std::vector<uint64_t> reference = hashes(*e, tokens, tokens.size());
    for (const size_t n :
         {size_t{1}, size_t{2}, size_t{31}, size_t{32}, size_t{33}, size_t{65}, kBitTokens}) {
      const int32_t sequence = e->open();
      EXPECT_EQ(hash_of(feed_last(*e, sequence, tokens.first(n))), reference[n - 1])
          << "prefix of " << n << ", " << e->numeric_mode();
      e->close(sequence);
    }
  }
}

TEST_P(Real, BitsForRaggedBatches) {
  const Tokens all = text_tokens();
  constexpr size_t kSequences = 8, kDecoded = 3;
  std::vector<Tokens> prompts;
  for (size_t i = 0; i < kSequences; ++i) {
    const auto start = all.begin() + static_cast<std::ptrdiff_t>(100 * i);
    prompts.emplace_back(start, start + static_cast<std::ptrdiff_t>(4 + 5 * i));
  }
  for (const Arithmetic arithmetic : kArithmetics) {
    const auto e = engine({.chunk = 48, .max_sequences = kSequences, .arithmetic = arithmetic});
    std::vector<std::vector<uint64_t>> alone;
    for (const Tokens& prompt : prompts) alone.push_back(hashes(*e, prompt, prompt.size()));
    for (const size_t batch : {size_t{2}, size_t{5}, size_t{8}}) {
      std::vector<std::vector<uint64_t>> together(batch);
      std::vector<Feed> feeds;
      for (size_t i = 0; i < batch; ++i)
        feeds.push_back({e->open(), std::span(prompts[i]).first(prompts[i].size() - kDecoded), Want::all});
      const auto keep = [&](size_t feed, int64_t, std::span<const float> row) {
        together[feed].push_back(hash_of(row));
      };
      e->forward(feeds, keep);
      for (size_t step = kDecoded; step > 0; --step) {
        for (size_t i = 0; i < batch; ++i)
          feeds[i].tokens = std::span(prompts[i]).subspan(prompts[i].size() - step, 1);
        e->forward(feeds, keep);
      }
      for (size_t i = 0; i < batch; ++i) {
        EXPECT_EQ(together[i], alone[i]) << "sequence " << i << " of " << batch << ", " << e->numeric_mode();
        e->close(feeds[i].sequence);
      }
    }
  }
}

TEST_P(Real, BitsForEveryIsa) {
  const Tokens all = text_tokens();
  const std::span<const int32_t> tokens = std::span(all).first(6);  // scalar kernels are slow
  for (const Arithmetic arithmetic : kArithmetics) {
    std::vector<uint64_t> reference;
    for (const std::string& isa : isas()) {
      const ScopedEnvironment forced("LAPIDARY_ISA", isa);
      const auto e = engine({.arithmetic = arithmetic});
      const std::vector<uint64_t> actual = hashes(*e, tokens, tokens.size());
      if (reference.empty()) reference = actual;
      EXPECT_EQ(actual, reference) << e->numeric_mode() << " against scalar";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Real, testing::Values(kSmol, kGemma), name_of_real);

}  // namespace
}  // namespace lapidary::test
