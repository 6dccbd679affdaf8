// Speed of prefill and decode: what `lapidary bench` measures. Tokens are random, a pure function of seed,
// sequence and position, so that two runs compute the same logits and may be compared bit for bit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/hash.h"
#include "engine/engine.h"

namespace lapidary {

struct BenchPlan {
  std::vector<int64_t> prompts, generated;  // tokens of the prefill and of the decode tests; 0 leaves it out
  std::vector<int64_t> depths;              // positions that are in the cache before a test begins
  std::vector<int64_t> batches;             // sequences that decode together
  int64_t repetitions = 3;
  uint64_t seed = 1;
  bool warm_up = true;  // a prefill and two decode steps that are not measured

  int64_t longest() const;         // positions of the longest sequence; 0 when there is no test
  int64_t most_sequences() const;  // in one step
};

enum class BenchKind { prefill, decode };

struct BenchTest {
  BenchKind kind{};
  int64_t tokens = 0;  // of each sequence
  int64_t depth = 0, batch = 1;
  std::string name() const;  // "pp512", "tg64", "tg64 b8", "tg64 d4096"
};

struct BenchRow {
  BenchTest test;
  int threads = 0;
  std::vector<double> seconds;  // one a repetition
  Hash128 logits;               // of the last ones of every sequence

  double median_seconds() const;
  double tokens_per_second() const;  // of all sequences, at the median
  double spread() const;  // half of what lies between the slowest and the fastest, as a share of the median
};

// All tests of the plan on one engine. `on_work` hears how far a test or a filling is. The cache is filled to
// a depth once, and every repetition runs on a fork of that.
// REQUIRES: the engine has twice most_sequences(), and longest() positions.
// Error(internal) when a repetition gives other logits than the one before it.
using OnBenchWork = FunctionRef<void(std::string_view what, int64_t done, int64_t total)>;
std::vector<BenchRow> run_bench(Engine& engine, const BenchPlan& plan, OnBenchWork on_work);

// The token at a position of a sequence.
int32_t bench_token(uint64_t seed, int64_t sequence, int64_t position, int64_t vocab_size);

}  // namespace lapidary
