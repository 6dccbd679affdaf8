#include "cli/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "cli/load.h"

namespace lapidary {
namespace {

int64_t greatest(const std::vector<int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

class Bench {
 public:
  Bench(Engine& engine, const BenchPlan& plan, OnBenchWork on_work)
      : engine_(engine), plan_(plan), on_work_(on_work) {}

  std::vector<BenchRow> run() {
    for (const int64_t depth : plan_.depths) {
      fill(depth);
      for (const int64_t tokens : plan_.prompts)
        if (tokens > 0) measure({BenchKind::prefill, tokens, depth, 1});
      for (const int64_t tokens : plan_.generated)
        for (const int64_t batch : plan_.batches)
          if (tokens > 0) measure({BenchKind::decode, tokens, depth, batch});
      for (const int32_t sequence : filled_) engine_.close(sequence);
      filled_.clear();
    }
    return std::move(rows_);
  }

 private:
  // One sequence of `depth` positions for each that a test will run: their contents differ, and so does the
  // memory they read.
  void fill(int64_t depth) {
    constexpr int64_t kPiece = 256;  // tokens from one word of progress to the next
    const int64_t total = depth * plan_.most_sequences();
    for (int64_t s = 0; s < plan_.most_sequences(); ++s) {
      filled_.push_back(engine_.open());
      for (int64_t at = 0; at < depth; at += kPiece) {
        on_work_(fmt::format("filling to {}", depth), s * depth + at, total);
        feed_range(filled_.back(), s, at, std::min(kPiece, depth - at), Want::none);
      }
    }
  }

  void measure(const BenchTest& test) {
    BenchRow row{test, engine_.threads(), {}, {}};
    if (plan_.warm_up) {
      BenchTest warm_up = test;
      if (test.kind == BenchKind::decode) warm_up.tokens = std::min<int64_t>(2, test.tokens);
      repeat(warm_up);
    }
    for (int64_t r = 0; r < plan_.repetitions; ++r) {
      on_work_(test.name(), r, plan_.repetitions);
      row.seconds.push_back(repeat(test));
      const Hash128 logits = hash_of_logits();
      ensure(r == 0 || logits == row.logits, ErrorCode::internal,
             "{}: repetition {} gave the logits {}, the one before it {}", test.name(), r + 1,
             hash_text(logits), hash_text(row.logits));
      row.logits = logits;
    }
    rows_.push_back(std::move(row));
  }

  // One repetition on forks of the filled sequences; the answer is its seconds.
  double repeat(const BenchTest& test) {
    std::vector<int32_t> sequences;
    for (int64_t s = 0; s < test.batch; ++s)
      sequences.push_back(engine_.fork(filled_[static_cast<size_t>(s)]));
    logits_.resize(static_cast<size_t>(test.batch));
    const double start = now_seconds();
    if (test.kind == BenchKind::prefill) {
      feed_range(sequences[0], 0, test.depth, test.tokens, Want::last);
    } else {
      for (int64_t step = 0; step < test.tokens; ++step) decode_step(sequences, test.depth + step);
    }
    const double seconds = now_seconds() - start;
    for (const int32_t sequence : sequences) engine_.close(sequence);
    return seconds;
  }

  void feed_range(int32_t sequence, int64_t index, int64_t first, int64_t n, Want want) {
    tokens_.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) tokens_[static_cast<size_t>(i)] = token(index, first + i);
    const Feed feed{sequence, tokens_, want};
    forward({&feed, 1});
  }

  void decode_step(const std::vector<int32_t>& sequences, int64_t position) {
    tokens_.resize(sequences.size());
    feeds_.clear();
    for (size_t s = 0; s < sequences.size(); ++s) {
      tokens_[s] = token(static_cast<int64_t>(s), position);
      feeds_.push_back({sequences[s], std::span(tokens_).subspan(s, 1), Want::last});
    }
    forward(feeds_);
  }

  // The logits are copied, as a sampler's caller would need them; hashing is left for later.
  void forward(std::span<const Feed> feeds) {
    engine_.forward(feeds, [&](size_t feed, int64_t, std::span<const float> logits) {
      logits_[feed].assign(logits.begin(), logits.end());
    });
  }

  Hash128 hash_of_logits() const {
    Hasher hasher;
    for (const std::vector<float>& logits : logits_) hasher.add(std::as_bytes(std::span(logits)));
    return hasher.digest();
  }

  int32_t token(int64_t sequence, int64_t position) const {
    return bench_token(plan_.seed, sequence, position, engine_.spec().vocab_size);
  }

  Engine& engine_;
  const BenchPlan& plan_;
  OnBenchWork on_work_;
  std::vector<int32_t> filled_;  // sequences of the depth at hand
  std::vector<int32_t> tokens_;
  std::vector<Feed> feeds_;
  std::vector<std::vector<float>> logits_;  // [batch][V], the last ones
  std::vector<BenchRow> rows_;
};

}  // namespace

int64_t BenchPlan::longest() const {
  const int64_t tokens = std::max(greatest(prompts), greatest(generated));
  return tokens == 0 ? 0 : greatest(depths) + tokens;
}

int64_t BenchPlan::most_sequences() const {
  return greatest(generated) > 0 ? greatest(batches) : 1;
}

std::string BenchTest::name() const {
  std::string name = fmt::format("{}{}", kind == BenchKind::prefill ? "pp" : "tg", tokens);
  if (batch > 1) name += fmt::format(" b{}", batch);
  if (depth > 0) name += fmt::format(" d{}", depth);
  return name;
}

double BenchRow::median_seconds() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double BenchRow::tokens_per_second() const {
  return static_cast<double>(test.tokens * test.batch) / median_seconds();
}

double BenchRow::spread() const {
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  return (*most - *least) / 2 / median_seconds();
}

std::vector<BenchRow> run_bench(Engine& engine, const BenchPlan& plan, OnBenchWork on_work) {
  return Bench(engine, plan, on_work).run();
}

int32_t bench_token(uint64_t seed, int64_t sequence, int64_t position, int64_t vocab_size) {
  const auto bits = philox(seed, static_cast<uint64_t>(sequence), static_cast<uint64_t>(position));
  return static_cast<int32_t>(bits[0] % static_cast<uint64_t>(vocab_size));
}

}  // namespace lapidary
