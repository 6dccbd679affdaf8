// What the suites of the prefix cache share: a golden model, texts, and what an engine that keeps nothing
// says of them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/harness.h"
#include "serve/cache/prefix_cache.h"
#include "support/compare.h"

namespace lapidary::test {

using serve::PrefixCache;
using serve::PrefixCacheOptions;
using serve::Reuse;

// With windows of several kinds, borrowers, and one without any window.
inline const std::vector<std::string>& cache_models() {
  static const std::vector<std::string> names = {"gemma3-tiny", "gemma4-e2b-tiny", "gemma4-31b-tiny",
                                                 "llama-tiny"};
  return names;
}

class CacheSuite : public testing::TestWithParam<std::string> {
 protected:
  explicit CacheSuite(const std::string& model = GetParam())
      : checkpoint(open_golden(model)), reference_(make({.max_sequences = 1})) {}

  std::unique_ptr<Engine> make(EngineOptions options = {}) const {
    options.threads = 1;
    if (options.chunk == EngineOptions{}.chunk) options.chunk = 64;
    if (options.context == 0) options.context = 512;
    return std::make_unique<Engine>(checkpoint.spec, *checkpoint.tensors, options);
  }
  // n tokens that depend on the seed from the first one on.
  Tokens text(int seed, size_t n) const {
    Tokens tokens(n);
    for (size_t i = 0; i < n; i++)
      tokens[i] = static_cast<int32_t>((i * i * 7 + i * 3 + static_cast<size_t>(seed) * 11 + 5) %
                                       static_cast<size_t>(checkpoint.spec.vocab_size));
    return tokens;
  }
  bool has_window() const {
    for (const LayerSpec& layer : checkpoint.spec.layers)
      if (layer.attention && layer.attention->window > 0) return true;
    return false;
  }
  // Of the last token, computed alone from the beginning.
  std::vector<float> fresh(std::span<const int32_t> tokens) const {
    const int32_t sequence = reference_->open();
    std::vector<float> logits = feed_last(*reference_, sequence, tokens);
    reference_->close(sequence);
    return logits;
  }

  Checkpoint checkpoint;

 private:
  std::unique_ptr<Engine> reference_;
};

inline Tokens operator+(const Tokens& a, const Tokens& b) {
  Tokens all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}
inline Tokens first(const Tokens& tokens, size_t n) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n)};
}

// An engine with a cache, and the way the scheduler uses the two.
struct Served {
  std::unique_ptr<Engine> engine;
  PrefixCache cache;

  explicit Served(std::unique_ptr<Engine> e, const PrefixCacheOptions& options = {.max_entries = 6})
      : engine(std::move(e)), cache(*engine, options) {}

  struct Turn {
    PrefixCache::Begin begin;
    std::vector<float> logits;  // of the prompt's last token
    int64_t marks = 0;
  };
  // Computes a prompt with its marks; the sequence stays open.
  Turn prompt(const Tokens& tokens, bool reuse = true) {
    Turn turn{cache.begin(tokens, reuse), {}, 0};
    const int32_t sequence = turn.begin.sequence;
    int64_t at = turn.begin.cached;
    EXPECT_EQ(engine->length(sequence), at);
    while (at < std::ssize(tokens)) {
      const int64_t next = cache.next_mark(tokens, at);
      EXPECT_GT(next, at);
      EXPECT_LE(next, std::ssize(tokens));
      const std::span<const int32_t> part(tokens.data() + at, static_cast<size_t>(next - at));
      if (!cache.make_room(engine->kv_bytes_to_feed(sequence, std::ssize(part)))) {
        ADD_FAILURE() << "no room";
        break;
      }
      turn.logits = feed_last(*engine, sequence, part);
      cache.mark(sequence);
      turn.marks++;
      at = next;
    }
    return turn;
  }
  // A prompt and its answer, given back.
  Turn talk(const Tokens& tokens, const Tokens& answer = {}) {
    Turn turn = prompt(tokens);
    if (!answer.empty()) feed_last(*engine, turn.begin.sequence, answer);
    cache.give(turn.begin.sequence);
    return turn;
  }
};

}  // namespace lapidary::test
