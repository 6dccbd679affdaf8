// Prefix reuse: each reason for a miss on purpose, the sums, and logits that must be those of a fresh run.
#include "kvlab/prefix/prefix.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/rng.h"
#include "engine/harness.h"
#include "engine/state_bytes.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;
using kvlab::PrefixOptions;
using kvlab::PrefixPrompt;
using kvlab::PrefixReason;
using kvlab::PrefixReport;
using kvlab::PrefixState;

const Hash128 kModelHash{{1, 2, 3}};

struct Replayed {
  Checkpoint checkpoint;
  Engine engine;
  Replayed(const std::string& model, const PrefixOptions& options, KvTypes kv = DType::f16)
      : checkpoint(open_golden(model)),
        engine(checkpoint.spec, *checkpoint.tensors,
               {.threads = 1,
                .max_sequences = kvlab::prefix_sequences(options),
                .kv_dtype = kv,
                .keep_behind = options.keep_behind}) {}
};

PrefixReport replay(const std::string& model, const std::vector<Tokens>& prompts,
                    const PrefixOptions& options, const std::optional<PrefixState>& state = {},
                    KvTypes kv = DType::f16) {
  Replayed run(model, options, kv);
  PrefixReport report = kvlab::run_prefix(
      run.engine, kv, prompts, state, options, [](int32_t id) { return "<" + std::to_string(id) + ">"; },
      [](int64_t, int64_t) {});
  for (int64_t i = 0; i < kvlab::prefix_sequences(options); ++i) run.engine.open();  // all were closed
  EXPECT_EQ(run.engine.stats().kv_bytes_in_use, 0);
  return report;
}

std::vector<PrefixReason> reasons(const PrefixReport& report) {
  std::vector<PrefixReason> out;
  for (const PrefixPrompt& p : report.prompts) out.push_back(p.reason);
  return out;
}
std::vector<int64_t> hits(const PrefixReport& report) {
  std::vector<int64_t> out;
  for (const PrefixPrompt& p : report.prompts) out.push_back(p.hit_tokens);
  return out;
}

Tokens counting(int32_t first, int32_t n) {
  Tokens tokens;
  for (int32_t i = 0; i < n; ++i) tokens.push_back(first + i);
  return tokens;
}
Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(Prefix, NamesColdWholeExtendedAndDiffers) {
  const Tokens base = counting(10, 8);
  const PrefixReport report =
      replay("llama-tiny", {base, joined(base, {90, 91}), base, joined(counting(10, 5), {80, 81}), {60, 61}},
             {.slots = 8});
  EXPECT_EQ(reasons(report), (std::vector{PrefixReason::cold, PrefixReason::extended, PrefixReason::whole,
                                          PrefixReason::differs, PrefixReason::cold}));
  EXPECT_EQ(hits(report), (std::vector<int64_t>{0, 8, 7, 5, 0}));
  EXPECT_TRUE(report.passed());
  EXPECT_EQ(report.checks.size(), 2u);
  const PrefixPrompt& differs = report.prompts[3];
  ASSERT_TRUE(differs.differs);
  EXPECT_EQ(differs.differs->at, 5);
  EXPECT_EQ(differs.differs->kept.id, 15);
  EXPECT_EQ(differs.differs->kept.piece, "<15>");
  EXPECT_EQ(differs.differs->prompt.id, 80);
  EXPECT_TRUE(report.evictions.empty());
  EXPECT_EQ(report.prompts[2].logits, report.prompts[0].logits) << "the same prompt, reused and from nothing";
  EXPECT_NE(report.prompts[1].logits, report.prompts[0].logits);
  EXPECT_EQ(report.prompts[1].bytes_not_recomputed, 8 * report.bytes_per_position);
}

TEST(Prefix, AHeldPromptTakesNoSlotOfItsOwn) {
  const Tokens base = counting(10, 8);
  const PrefixReport report = replay("llama-tiny", {base, base, base, {60, 61}, base}, {.slots = 2});
  EXPECT_TRUE(report.evictions.empty());
  EXPECT_EQ(report.prompts[4].reason, PrefixReason::whole);
}

TEST(Prefix, EvictsTheLeastRecentlyUsedAndTellsItsAge) {
  const Tokens a = counting(10, 6), b = counting(30, 6), c = counting(50, 6);
  const PrefixReport report = replay("llama-tiny", {a, b, a, c, b}, {.slots = 2});
  EXPECT_EQ(reasons(report), (std::vector{PrefixReason::cold, PrefixReason::cold, PrefixReason::whole,
                                          PrefixReason::cold, PrefixReason::evicted}));
  const PrefixPrompt& miss = report.prompts[4];
  ASSERT_TRUE(miss.eviction);
  EXPECT_EQ(miss.eviction->origin, 1);
  EXPECT_EQ(miss.eviction->evicted_by, 3);
  EXPECT_EQ(miss.eviction->age, 2);
  EXPECT_EQ(miss.eviction->idle, 2);
  EXPECT_EQ(miss.eviction->reuses, 0);
  EXPECT_EQ(miss.lost_tokens(), 5);
  EXPECT_EQ(report.prompts[3].evicted, (std::vector<int64_t>{1}));
  ASSERT_EQ(report.evictions.size(), 2u);
  EXPECT_EQ(report.evictions[1].origin, 0) << "used by prompt 2, before c";
  EXPECT_EQ(report.evictions[1].reuses, 1);
  EXPECT_EQ(report.evictions[1].age, 4);
  EXPECT_EQ(report.evictions[1].idle, 2);
  const kvlab::PrefixTotals totals = report.totals();
  EXPECT_EQ(totals.lost_evicted, 5);
  EXPECT_EQ(totals.lost_window, 0);
}

// 70 positions leave the pages of a window of 8 two pages behind.
TEST(Prefix, SaysWhichWindowIsGone) {
  const Tokens base = counting(10, 70);
  const std::vector<Tokens> prompts{base, joined(counting(10, 20), {5, 6})};
  const PrefixReport lost = replay("gemma4-e2b-tiny", prompts, {.slots = 4});
  const PrefixPrompt& miss = lost.prompts[1];
  EXPECT_EQ(miss.reason, PrefixReason::window_lost);
  EXPECT_EQ(miss.hit_tokens, 0);
  EXPECT_EQ(miss.lost_tokens(), 20);
  ASSERT_TRUE(miss.window);
  EXPECT_EQ(miss.window->layer, 0);
  EXPECT_EQ(miss.window->window, 8);
  EXPECT_EQ(miss.window->wanted, 20);
  EXPECT_EQ(miss.window->earliest, 32 + 8 - 1);
  EXPECT_TRUE(lost.passed());

  const PrefixReport kept = replay("gemma4-e2b-tiny", prompts, {.slots = 4, .keep_behind = 64});
  EXPECT_EQ(kept.prompts[1].reason, PrefixReason::differs);
  EXPECT_EQ(kept.prompts[1].hit_tokens, 20);
  EXPECT_TRUE(kept.passed());

  // From the earliest restart on it can be gone on from, one token before it cannot.
  const PrefixReport edge =
      replay("gemma4-e2b-tiny",
             {base, joined(counting(10, 39), {5, 6}), base, joined(counting(10, 38), {5, 6})}, {.slots = 1});
  EXPECT_EQ(edge.prompts[1].hit_tokens, 39);
  EXPECT_EQ(edge.prompts[3].reason, PrefixReason::window_lost);
}

// What the engine says of going back is what the pages show, for every kind of model.
TEST(Prefix, TheWindowNamedIsTheEnginesOwn) {
  for (const std::string& name : golden_models()) {
    const PrefixReport report =
        replay(name, {counting(3, 90), joined(counting(3, 12), {1, 2})}, {.slots = 2, .check = false});
    Replayed run(name, {.slots = 1});
    const int32_t sequence = run.engine.open();
    feed_last(run.engine, sequence, counting(3, 90));
    const int64_t earliest = run.engine.earliest_restart(sequence);
    const PrefixPrompt& p = report.prompts[1];
    EXPECT_EQ(p.window.has_value(), earliest > 12) << name;
    if (p.window) {
      EXPECT_EQ(p.window->earliest, earliest) << name;
    }
  }
}

TEST(Prefix, ASavedStateIsTheFirstSequence) {
  const Tokens base = counting(10, 12);
  Replayed other("llama-tiny", {.slots = 1});
  const int32_t sequence = other.engine.open();
  feed_last(other.engine, sequence, base);
  const StateBytes bytes = state_of(other.engine, sequence, kModelHash);
  const std::vector<Tokens> prompts{joined(base, {3, 4}), {60, 61}};

  const PrefixReport loaded =
      replay("llama-tiny", prompts, {.slots = 2}, PrefixState{"s", bytes, kModelHash});
  ASSERT_TRUE(loaded.state);
  EXPECT_TRUE(loaded.state->loaded);
  EXPECT_EQ(loaded.state->tokens, 12);
  EXPECT_EQ(loaded.prompts[0].reason, PrefixReason::extended);
  EXPECT_EQ(loaded.prompts[0].source, kvlab::kStateOrigin);
  EXPECT_EQ(loaded.prompts[0].hit_tokens, 12);
  EXPECT_TRUE(loaded.passed());

  const PrefixReport mode =
      replay("llama-tiny", prompts, {.slots = 2}, PrefixState{"s", bytes, kModelHash}, DType::f32);
  EXPECT_FALSE(mode.state->loaded);
  EXPECT_EQ(mode.state->field, "key dtype");
  EXPECT_EQ(mode.state->tokens, 12);
  EXPECT_EQ(mode.prompts[0].reason, PrefixReason::header_mismatch);
  EXPECT_EQ(mode.prompts[0].lost_tokens(), 12);
  EXPECT_EQ(mode.prompts[1].reason, PrefixReason::cold) << "the state would not have helped here";
  EXPECT_EQ(mode.totals().lost_mismatch, 12);

  const PrefixReport model =
      replay("llama-tiny", prompts, {.slots = 2}, PrefixState{"s", bytes, Hash128{{9}}});
  EXPECT_EQ(model.state->field, "model hash");
  EXPECT_EQ(model.prompts[0].reason, PrefixReason::header_mismatch);

  StateBytes damaged = bytes;
  damaged[damaged.size() / 2] ^= std::byte{1};
  expect_error(
      [&] {
        replay("llama-tiny", prompts, {.slots = 2}, PrefixState{"s", damaged, kModelHash});
      },
      ErrorCode::data, "s: ");
}

// Prompts that share beginnings by chance: whatever is reused, the logits are those of a fresh run.
TEST(Prefix, KeepsTheBitsOnEveryModel) {
  for (const std::string& name : golden_models()) {
    for (const int64_t keep_behind : {0, 40}) {
      std::vector<Tokens> prompts;
      for (uint64_t i = 0; i < 10; ++i) {
        Tokens prompt = counting(3, static_cast<int32_t>(2 + philox(7, i, 0)[0] % 60));
        for (uint64_t j = 1; j <= 5; ++j) prompt.push_back(static_cast<int32_t>(philox(7, i, j)[0] % 200));
        prompts.push_back(prompt);
      }
      const PrefixReport report = replay(name, prompts, {.slots = 3, .keep_behind = keep_behind});
      EXPECT_TRUE(report.passed()) << name;
      const kvlab::PrefixTotals totals = report.totals();
      EXPECT_GT(totals.hit_tokens, 0) << name;
      EXPECT_EQ(totals.hits + totals.misses, 10) << name;
      EXPECT_EQ(totals.reusable_tokens - totals.hit_tokens,
                totals.lost_evicted + totals.lost_window + totals.lost_mismatch)
          << name << ": every lost token has one reason";
      for (const PrefixPrompt& p : report.prompts) {
        EXPECT_LE(p.hit_tokens, p.tokens - 1);
        EXPECT_GE(p.lost_tokens(), 0);
        EXPECT_FALSE(kvlab::prefix_why(report, p).empty());
      }
    }
  }
}

TEST(Prefix, ChecksFailWhenTheyMust) {
  PrefixReport report = replay("llama-tiny", {counting(10, 6), counting(10, 9)}, {.slots = 2});
  ASSERT_TRUE(report.passed());
  PrefixReport bits = report;
  bits.prompts[1].logits_equal = false;
  kvlab::check_prefix(bits);
  EXPECT_FALSE(bits.passed());
  EXPECT_NE(bits.checks[0].detail.find("1 of 2"), std::string::npos);
  EXPECT_NE(bits.checks[0].detail.find("prompt 1"), std::string::npos);
  PrefixReport bytes = report;
  bytes.prompts[1].bytes_not_recomputed += 1;
  kvlab::check_prefix(bytes);
  EXPECT_FALSE(bytes.passed());
}

TEST(Prefix, RefusesWhatCannotBeReplayed) {
  expect_error([] { replay("llama-tiny", {}, {}); }, ErrorCode::usage, "no prompts");
  expect_error([] { replay("llama-tiny", {{1}, {}}, {}); }, ErrorCode::usage, "prompt 1 has no tokens");
  expect_error([] { replay("llama-tiny", {Tokens(600, 1)}, {}); }, ErrorCode::limit,
               "prompt 0 has 600 tokens");
  expect_error([] { replay("llama-tiny", {{1 << 30}}, {}); }, ErrorCode::usage, "token id 1073741824");
  expect_error([] { replay("llama-tiny", {{1}}, {.slots = 0}); }, ErrorCode::usage, "slots");
}

TEST(PrefixJson, AddsUp) {
  const Tokens a = counting(10, 6), b = counting(30, 6);
  const PrefixReport report = replay("llama-tiny", {a, b, a}, {.slots = 1});
  const json::object out = kvlab::prefix_json(report, {});
  EXPECT_EQ(out.at("schema").as_string(), "lapidary.kv.prefix");
  int64_t tokens = 0, hit = 0;
  for (const json::value& p : out.at("prompts").as_array()) {
    tokens += p.at("tokens").as_int64();
    hit += p.at("hit_tokens").as_int64();
    EXPECT_EQ(p.at("tokens").as_int64(), p.at("hit_tokens").as_int64() + p.at("computed_tokens").as_int64());
  }
  EXPECT_EQ(out.at("totals").at("tokens").as_int64(), tokens);
  EXPECT_EQ(out.at("totals").at("hit_tokens").as_int64(), hit);
  EXPECT_EQ(out.at("prompts").at(2).at("reason").as_string(), "evicted");
  EXPECT_EQ(out.at("prompts").at(2).at("eviction").at("sequence").as_int64(), 0);
  EXPECT_EQ(out.at("evictions").as_array().size(), 2u);
  int64_t counted = 0;
  for (const json::value& bar : out.at("histograms").at("age_prompts").as_array())
    counted += bar.at("count").as_int64();
  EXPECT_EQ(counted, 2);
}

TEST(Histogram, DoublesItsRanges) {
  const std::vector<kvlab::HistogramBar> bars = kvlab::doubling_histogram({0, 1, 1, 2, 3, 4, 9});
  ASSERT_EQ(bars.size(), 6u);
  EXPECT_EQ(bars[3].from, 3);
  EXPECT_EQ(bars[3].to, 4);
  EXPECT_EQ(bars[3].count, 2);
  EXPECT_EQ(bars[4].count, 0);
  EXPECT_EQ(bars[5].from, 9);
  EXPECT_EQ(bars[5].to, 16);
  EXPECT_EQ(bars[5].count, 1);
  EXPECT_TRUE(kvlab::doubling_histogram({}).empty());
}

}  // namespace
}  // namespace lapidary::test
