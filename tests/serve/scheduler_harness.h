// What the suites of the scheduler share: a small vocabulary with grammars, jobs, sinks that keep what they
// get, and what a job gets alone, computed here without the scheduler.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/harness.h"
#include "serve/scheduler/scheduler.h"
#include "support/compare.h"

namespace lapidary::serve::scheduler_test {

using namespace lapidary::test;

// A token for each byte, then one that ends a turn.
inline constexpr TokenId kEnd = 256;
inline constexpr int64_t kWords = 257;

inline const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer = [] {
    boost::json::object vocab;
    int next = 0, other = 256;
    for (int byte = 0; byte < 256; byte++) {
      const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const int code = plain ? byte : other++;
      std::string spelt(1, static_cast<char>(code));
      if (code >= 0x80)
        spelt = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
      vocab[spelt] = next++;
    }
    const boost::json::value root = {
        {"version", "1.0"},
        {"added_tokens", boost::json::array{boost::json::object{{"id", kEnd},
                                                                {"content", "<end>"},
                                                                {"single_word", false},
                                                                {"lstrip", false},
                                                                {"rstrip", false},
                                                                {"normalized", false},
                                                                {"special", true}}}},
        {"normalizer", nullptr},
        {"pre_tokenizer",
         {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
        {"post_processor", nullptr},
        {"decoder",
         {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", boost::json::array()}}}};
    return Tokenizer::from_json(boost::json::serialize(root));
  }();
  return tokenizer;
}

inline const GrammarEnv& byte_grammars() {
  static const GrammarEnv env(byte_tokenizer(), std::vector<TokenId>{kEnd});
  return env;
}

inline Constraint matching(const char* pattern) {
  return Constraint(byte_grammars(), TurnSyntax::of(byte_tokenizer(), std::vector<TokenId>{kEnd}),
                    byte_grammars().regex(pattern), {});
}

inline std::vector<TokenId> text(int seed, size_t n) {
  std::vector<TokenId> tokens(n);
  for (size_t i = 0; i < n; i++)
    tokens[i] = static_cast<TokenId>((i * i * 7 + i * 3 + static_cast<size_t>(seed) * 29 + 5) % size_t{250});
  return tokens;
}
inline std::vector<TokenId> operator+(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// All that a job got.
struct Result {
  std::vector<TokenId> tokens;
  std::vector<ScoredToken> scores, prompt_scores;
  std::vector<float> embedding;
  JobEnd end;
};

inline void expect_same_scores(const std::vector<ScoredToken>& a, const std::vector<ScoredToken>& b,
                               const std::string& label) {
  const auto flat = [](const std::vector<ScoredToken>& scores) {
    std::pair<std::vector<TokenId>, std::vector<float>> all;
    const auto put = [&](const TokenScore& s) {
      all.first.push_back(s.id);
      all.second.push_back(s.logprob);
    };
    for (const ScoredToken& s : scores) {
      put(s.token);
      for (const TokenScore& best : s.best) put(best);
    }
    return all;
  };
  EXPECT_EQ(flat(a).first, flat(b).first) << label;
  expect_same_bits(flat(a).second, flat(b).second, label);
}

inline void expect_same(const Result& got, const Result& expected, const std::string& label) {
  EXPECT_EQ(end_reason_name(got.end.reason), end_reason_name(expected.end.reason))
      << label << ": " << got.end.error;
  EXPECT_EQ(got.tokens, expected.tokens) << label;
  EXPECT_EQ(got.end.stop_id, expected.end.stop_id) << label;
  EXPECT_EQ(got.end.generated_tokens, std::ssize(expected.tokens)) << label;
  expect_same_scores(got.scores, expected.scores, label + ", scores");
  expect_same_scores(got.prompt_scores, expected.prompt_scores, label + ", prompt scores");
  expect_same_bits(got.embedding, expected.embedding, label + ", embedding");
}

// Keeps what it gets; what it answers and what else happens is for the test to say.
class Keeper : public JobSink {
 public:
  std::function<void()> at_start;
  std::function<Next(size_t n)> at_token;  // n: tokens so far

  void on_start(int64_t) override {
    if (at_start) at_start();
  }
  void on_prompt_scores(std::vector<ScoredToken> scores) override {
    EXPECT_TRUE(result_.prompt_scores.empty());
    result_.prompt_scores = std::move(scores);
  }
  void on_embedding(std::vector<float> embedding) override {
    EXPECT_TRUE(result_.embedding.empty());
    result_.embedding = std::move(embedding);
  }
  Next on_token(TokenId id, const ScoredToken* score) override {
    result_.tokens.push_back(id);
    if (score) result_.scores.push_back(*score);
    return at_token ? at_token(result_.tokens.size()) : Next::go_on;
  }
  void on_end(const JobEnd& end) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(ended_);
    result_.end = end;
    ended_ = true;
    changed_.notify_all();
  }
  const Result& wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_; });
    return result_;
  }
  EndReason reason() { return wait().end.reason; }
  bool ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  Result result_;
  bool ended_ = false;
};

// What one thread waits for and another opens.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

// A score by the formula, in another way than the scheduler's: longer numbers, from the least to the
// greatest.
inline ScoredToken scored(std::span<const float> logits, TokenId id, int64_t best) {
  std::vector<float> terms(logits.begin(), logits.end());
  std::sort(terms.begin(), terms.end());
  const auto highest = static_cast<long double>(terms.back());
  long double sum = 0;
  for (const float z : terms) sum += std::exp(static_cast<long double>(z) - highest);
  const auto score = [&](TokenId t) {
    const auto z = static_cast<long double>(logits[static_cast<size_t>(t)]);
    return TokenScore{t, static_cast<float>(z - highest - std::log(sum))};
  };
  std::vector<TokenId> order(logits.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = static_cast<TokenId>(i);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  ScoredToken s{score(id), {}};
  for (int64_t i = 0; i < best; i++) s.best.push_back(score(order[static_cast<size_t>(i)]));
  return s;
}

// A job by hand on an engine that does nothing else: without pieces, cache or neighbours.
inline Result alone(Engine& engine, Job job) {
  Result result;
  const int32_t sequence = engine.open();
  const auto n = static_cast<int64_t>(job.prompt.size());
  Recorder seen;
  std::vector<float> row;
  Feed feed{sequence, job.prompt, Want::all};
  engine.forward(
      {&feed, 1},
      [&](size_t, int64_t index, std::span<const float> logits) {
        logits = logits.first(kWords);
        if (job.prompt_logprobs && index + 1 < n)
          result.prompt_scores.push_back(
              scored(logits, job.prompt[static_cast<size_t>(index + 1)], *job.prompt_logprobs));
        row.assign(logits.begin(), logits.end());
      },
      &seen);
  if (job.pooling != Pooling::none) {
    std::vector<double> sum(static_cast<size_t>(engine.spec().d_model));
    for (const auto& [position, norms] : seen.final_norm())
      for (size_t i = 0; i < sum.size(); i++)
        sum[i] = (job.pooling == Pooling::mean ? sum[i] : 0) + static_cast<double>(norms[i]);
    double squares = 0;
    for (const double x : sum) squares += x * x;
    const double scale = 1 / std::sqrt(squares);
    for (const double x : sum) result.embedding.push_back(static_cast<float>(x * scale));
  }
  Sampler sampler(job.sampling, kWords);
  for (const TokenId id : job.prompt) sampler.observe(id);
  result.end.reason = EndReason::complete;
  while (job.max_tokens > 0) {
    std::span<const uint32_t> mask;
    if (job.constraint) mask = job.constraint->mask();
    const TokenId id = sampler.sample(row, result.tokens.size(), mask);
    if (job.constraint) job.constraint->take(id);
    if (std::find(job.stop_ids.begin(), job.stop_ids.end(), id) != job.stop_ids.end()) {
      result.end.reason = EndReason::stop_token;
      result.end.stop_id = id;
      break;
    }
    sampler.observe(id);
    result.tokens.push_back(id);
    if (job.logprobs) result.scores.push_back(scored(row, id, *job.logprobs));
    if (job.constraint && job.constraint->complete()) break;
    result.end.reason = EndReason::max_tokens;
    if (std::ssize(result.tokens) == job.max_tokens) break;
    result.end.reason = EndReason::context;
    if (engine.length(sequence) == engine.context()) break;
    result.end.reason = EndReason::complete;
    row = feed_last(engine, sequence, {&id, 1});
    row.resize(kWords);
  }
  engine.close(sequence);
  return result;
}

// An engine on a golden model and a scheduler on it.
struct Served {
  Checkpoint checkpoint;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Scheduler> scheduler;
  Ticket last = 0;

  struct Options {
    int64_t max_running = 8, max_queued = 64, step_rows = 32, context = 512, kv_bytes = 0;
    bool cache = true;
    int64_t entries = 12;
    StateStore* store = nullptr;
  };
  Served(const std::string& model, const Options& o) : Served(open_golden(model), nullptr, o) {}
  Served(Checkpoint c, const TensorSource* tensors, const Options& o) : checkpoint(std::move(c)) {
    EngineOptions e;
    e.threads = 1;
    e.chunk = o.step_rows;
    e.context = o.context;
    e.max_sequences = o.max_running + o.entries + 1;
    e.kv_bytes = o.kv_bytes;
    engine = std::make_unique<Engine>(checkpoint.spec, tensors ? *tensors : *checkpoint.tensors, e);
    SchedulerOptions s;
    s.max_running = o.max_running;
    s.max_queued = o.max_queued;
    s.step_rows = o.step_rows;
    s.vocab_size = kWords;
    s.cache.enabled = o.cache;
    s.cache.max_entries = o.entries;
    s.cache.mark_every = 64;
    s.store = o.store;
    scheduler = std::make_unique<Scheduler>(*engine, std::move(s));
  }
  std::shared_ptr<Keeper> send(Job job, std::shared_ptr<Keeper> sink = std::make_shared<Keeper>()) {
    std::vector<Scheduler::Order> orders;
    orders.push_back({std::move(job), sink});
    last = scheduler->submit(std::move(orders)).at(0);
    return sink;
  }
  // Nothing is held any more, once the cache is cleared.
  void expect_no_leak() const {
    scheduler->clear_cache();
    const SchedulerView view = scheduler->view();
    EXPECT_EQ(view.room.in_use, 0);
    EXPECT_TRUE(view.jobs.empty());
    EXPECT_TRUE(view.entries.empty());
  }
};

inline Job generation(std::vector<TokenId> prompt, int64_t max_tokens) {
  Job job;
  job.client = "someone";
  job.prompt = std::move(prompt);
  job.max_tokens = max_tokens;
  return job;
}

}  // namespace lapidary::serve::scheduler_test
