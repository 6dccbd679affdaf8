// Fork, trim and redo: a sequence that branched off or went back gives the bits of a fresh run, beyond the
// window too.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/allocation_count.h"
#include "engine/state_bytes.h"
#include "engine/state_harness.h"

namespace lapidary::test {
namespace {

class State : public StateSuite {};
class StateOnEveryIsa : public StateSuite {};

// Feeds both sequences side by side, in calls of five tokens each; logits of both.
std::array<std::vector<float>, 2> run_apart(Engine& engine, int32_t a, const Tokens& to_a, int32_t b,
                                            const Tokens& to_b) {
  std::array<std::vector<float>, 2> logits;
  for (size_t at = 0; at < to_a.size(); at += 5) {
    const Feed feeds[] = {{a, std::span(to_a).subspan(at, 5), Want::all},
                          {b, std::span(to_b).subspan(at, 5), Want::all}};
    engine.forward(feeds, [&](size_t feed, int64_t, std::span<const float> row) {
      logits[feed].insert(logits[feed].end(), row.begin(), row.end());
    });
  }
  return logits;
}

TEST_P(State, BranchesGoTheirOwnWays) {
  for_ways([&](const EngineOptions& options, const std::string& label) {
    Engine engine = make(options);
    const int32_t a = engine.open(), other = engine.open();
    const Feed feeds[] = {{a, base, Want::none}, {other, left, Want::none}};
    engine.forward(feeds, [](size_t, int64_t, std::span<const float>) {});
    const int32_t b = engine.fork(a);
    EXPECT_EQ(engine.length(b), engine.length(a));
    EXPECT_TRUE(std::equal(base.begin(), base.end(), engine.tokens(b).begin(), engine.tokens(b).end()));
    const auto [to_left, to_right] = run_apart(engine, a, left, b, right);
    expect_same_bits(to_left, fresh(options.kv_dtype, joined(base, left), left.size()), label + ", parent");
    expect_same_bits(to_right, fresh(options.kv_dtype, joined(base, right), right.size()),
                     label + ", branch");
  });
}

TEST_P(State, ABranchOutlivesItsParentAndBranchesAgain) {
  Engine engine = make({});
  const int32_t a = engine.open();
  feed_all(engine, a, base);
  const int32_t b = engine.fork(a);
  engine.close(a);
  const int32_t junk = engine.open();  // takes the pages that were given back, if any were
  feed_all(engine, junk, right);
  const int32_t c = engine.fork(b);
  expect_same_bits(feed_all(engine, c, left), fresh(DType::f32, joined(base, left), left.size()),
                   "branch of a branch");
  expect_same_bits(feed_all(engine, b, right), fresh(DType::f32, joined(base, right), right.size()),
                   "branch");
  for (const int32_t sequence : {b, c, junk}) engine.close(sequence);
  EXPECT_EQ(engine.stats().kv_bytes_in_use, 0);
}

TEST_P(State, SharedPagesCountOnceAndAreCopiedByTheFirstWriterOnly) {
  for (const size_t length : {size_t{144}, size_t{128}}) {  // amid a page, and at its end
    Engine engine = make({});
    const int32_t a = engine.open();
    feed_all(engine, a, std::span(base).first(length));
    const int64_t of_one = engine.stats().kv_bytes_in_use;
    const int32_t b = engine.fork(a), c = engine.fork(a);
    EXPECT_EQ(engine.stats().kv_bytes_in_use, of_one);
    EXPECT_EQ(engine.stats().kv_page_copies, 0);
    const int64_t per_writer = length % kernels::kBlock == 0 ? 0 : owners();
    feed_all(engine, b, std::span(left).first(3));
    EXPECT_EQ(engine.stats().kv_page_copies, per_writer);
    feed_all(engine, b, std::span(left).subspan(3));
    EXPECT_EQ(engine.stats().kv_page_copies, per_writer) << "the page is its own by now";
    feed_all(engine, a, std::span(left).first(3));
    EXPECT_EQ(engine.stats().kv_page_copies, 2 * per_writer);
    feed_all(engine, c, std::span(left).first(3));
    EXPECT_EQ(engine.stats().kv_page_copies, 2 * per_writer) << "nobody shares it any more";
    EXPECT_GT(engine.stats().kv_bytes_in_use, of_one);
  }
}

// The pools have room for sequences that share nothing; sharing must not need more.
TEST_P(State, BranchesMayFillTheContext) {
  Engine engine = make({.chunk = 7, .max_sequences = 3, .context = 200, .keep_behind = 10});
  const int32_t a = engine.open();
  feed_all(engine, a, base);
  const int32_t b = engine.fork(a), c = engine.fork(b);
  const Tokens rest(56, 5);
  for (const int32_t sequence : {a, b, c}) feed_all(engine, sequence, rest);
  EXPECT_EQ(engine.length(c), 200);
  EXPECT_LE(engine.stats().kv_bytes_in_use, engine.stats().kv_bytes_reserved);
  expect_error([&] { engine.fork(a); }, ErrorCode::limit, "all 3 sequences");
}

TEST_P(State, TrimGoesBackToEveryRestartPositionAndToNoOther) {
  const std::span<const int32_t> next = std::span(right).first(3);
  for (const KvTypes& kv : kKvTypes) {
    for (const int64_t keep : {int64_t{0}, int64_t{25}}) {
      Engine engine = make({.chunk = 16, .kv_dtype = kv, .keep_behind = keep});
      const int32_t whole = engine.open();
      feed_all(engine, whole, base);
      const auto full = static_cast<int64_t>(base.size());
      const int64_t earliest = engine.earliest_restart(whole);
      EXPECT_EQ(earliest, expected_restart(full, keep));
      if (has_window() && keep == 0) {
        EXPECT_GT(earliest, 96) << "the window must have gone by";
      }
      for (int64_t length = 0; length <= full; length += length < earliest ? 19 : 3) {
        const int32_t branch = engine.fork(whole);
        if (length == 0 || length >= earliest) {
          engine.trim(branch, length);
          EXPECT_EQ(engine.length(branch), length);
          const Tokens now = joined(std::span(base).first(static_cast<size_t>(length)), next);
          expect_same_bits(feed_all(engine, branch, next), fresh(kv, now, next.size()),
                           fmt::format("cut to {}, kv {}, keep {}", length, kv_types_name(kv), keep));
        } else {
          expect_error([&] { engine.trim(branch, length); }, ErrorCode::limit,
                       fmt::format("position {}: layer", length));
          expect_error([&] { engine.trim(branch, length); }, ErrorCode::limit,
                       fmt::format("from {} to {}", earliest, full));
          EXPECT_EQ(engine.length(branch), full);
        }
        engine.close(branch);
      }
      expect_same_bits(feed_all(engine, whole, left), fresh(kv, joined(base, left), left.size()),
                       "the sequence itself never noticed");
    }
  }
}

TEST_P(State, TrimGivesPagesBack) {
  Engine engine = make({.keep_behind = 200});  // nothing leaves by itself
  const int32_t sequence = engine.open();
  feed_all(engine, sequence, std::span(base).first(20));
  const int64_t of_twenty = engine.stats().kv_bytes_in_use;
  feed_all(engine, sequence, std::span(base).subspan(20));
  EXPECT_GT(engine.stats().kv_bytes_in_use, of_twenty);
  engine.trim(sequence, 20);
  EXPECT_EQ(engine.stats().kv_bytes_in_use, of_twenty);
  engine.trim(sequence, 0);
  EXPECT_EQ(engine.stats().kv_bytes_in_use, 0);
}

TEST_P(State, RedoGivesTheSameBits) {
  for_ways([&](EngineOptions options, const std::string& label) {
    options.keep_behind = 20;
    Engine engine = make(options);
    const int32_t sequence = engine.open();
    const std::vector<float> first = feed_all(engine, sequence, base);
    for (const size_t back : {size_t{1}, size_t{8}, size_t{20}, size_t{1}}) {
      engine.trim(sequence, static_cast<int64_t>(base.size() - back));
      expect_same_bits(feed_all(engine, sequence, std::span(base).last(back)),
                       std::span(first).last(back * vocab()), fmt::format("{}, {} back", label, back));
    }
    engine.trim(sequence, static_cast<int64_t>(base.size()) - 20);
    expect_same_bits(
        feed_all(engine, sequence, left),
        fresh(options.kv_dtype, joined(std::span(base).first(base.size() - 20), left), left.size()),
        label + ", another way");
  });
}

TEST_P(State, KeepBehindIsKeptAtEveryLength) {
  constexpr int64_t kKeep = 45;
  for (const int64_t chunk : {1, 7, 64}) {
    Engine engine = make({.chunk = chunk, .max_sequences = 1, .keep_behind = kKeep});
    const int32_t sequence = engine.open();
    while (engine.length(sequence) < 300) {
      feed_all(engine, sequence, std::span(base).first(static_cast<size_t>(chunk)));
      const int64_t length = engine.length(sequence);
      EXPECT_EQ(engine.earliest_restart(sequence), expected_restart(length, kKeep)) << "length " << length;
      EXPECT_LE(engine.earliest_restart(sequence), std::max<int64_t>(0, length - kKeep));
    }
  }
  if (has_window()) {
    EXPECT_GT(make({.keep_behind = 200}).stats().kv_bytes_reserved, make({}).stats().kv_bytes_reserved);
  }
}

TEST_P(StateOnEveryIsa, BranchesAndGoesBackAlike) {
  for (const std::string& isa : isas()) {
    const ScopedEnvironment forced("LAPIDARY_ISA", isa);
    Engine engine = make({.kv_dtype = DType::bf16, .keep_behind = 8});
    const int32_t a = engine.open();
    feed_all(engine, a, base);
    const int32_t b = engine.fork(a);
    engine.trim(b, 140);
    const auto [to_left, to_right] = run_apart(engine, a, left, b, right);
    expect_same_bits(to_left, fresh(DType::bf16, joined(base, left), left.size()), isa);
    expect_same_bits(to_right, fresh(DType::bf16, joined(std::span(base).first(140), right), right.size()),
                     isa);
  }
}

// A walk through all that can be done to sequences, beside plain lists of tokens.
TEST_P(State, AnyOrderOfOperations) {
  const Hash128 model = hash128({});
  for (const int64_t keep : {int64_t{0}, int64_t{20}}) {
    Engine engine = make({.chunk = 11, .max_sequences = 4, .context = 400, .keep_behind = keep});
    std::map<int32_t, Tokens> texts;
    auto draw = [keep, step = uint64_t{0}](uint64_t below) mutable {
      return philox(static_cast<uint64_t>(keep), 9, step++)[0] % below;
    };
    const auto any = [&] {
      auto it = texts.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(draw(texts.size())));
      return it->first;
    };
    int forks = 0, trims = 0, restores = 0;
    for (int step = 0; step < 120; ++step) {
      if (texts.empty()) texts[engine.open()];
      const int32_t sequence = any();
      const uint64_t action = draw(10);
      if (action == 0 && texts.size() < 4) {
        texts[engine.fork(sequence)] = texts[sequence];
        ++forks;
      } else if (action == 1 && texts.size() > 1) {
        engine.close(sequence);
        texts.erase(sequence);
        continue;
      } else if (action == 2 || action == 3) {
        const int64_t earliest = engine.earliest_restart(sequence), length = engine.length(sequence);
        const int64_t to =
            earliest + static_cast<int64_t>(draw(static_cast<uint64_t>(length - earliest) + 1));
        engine.trim(sequence, to);
        texts[sequence].resize(static_cast<size_t>(to));
        ++trims;
      } else if (action == 4) {  // into another sequence, over what it held
        const int32_t target = any();
        restore(engine, target, state_of(engine, sequence, model), model, "walk");
        texts[target] = texts[sequence];
        ++restores;
      }
      const int32_t fed = any();
      Tokens more(1 + draw(30));
      for (int32_t& id : more) id = static_cast<int32_t>(draw(vocab()));
      if (texts[fed].size() + more.size() > 400) texts[fed].clear(), engine.trim(fed, 0);
      texts[fed] = joined(texts[fed], more);
      expect_same_bits(feed_last(engine, fed, more), fresh(DType::f32, texts[fed], 1),
                       fmt::format("step {}, keep {}", step, keep));
      const std::span<const int32_t> held = engine.tokens(fed);
      ASSERT_TRUE(std::equal(held.begin(), held.end(), texts[fed].begin(), texts[fed].end()));
    }
    EXPECT_GT(std::min({forks, trims, restores}), 2);
    for (const auto& [sequence, text] : texts) engine.close(sequence);
    EXPECT_EQ(engine.stats().kv_bytes_in_use, 0);
  }
}

// Branching, copying on write and going back included.
TEST_P(State, NothingIsAllocatedAfterTheFirstStep) {
  Engine engine = make({.threads = 2, .max_sequences = 3, .keep_behind = 16});
  std::array<int32_t, 3> sequences{engine.open(), 0, 0};
  const auto nothing = [](size_t, int64_t, std::span<const float>) {};
  std::array<Feed, 3> feeds{Feed{sequences[0], base, Want::last}};
  engine.forward(std::span(feeds).first(1), nothing);
  const int64_t before = allocation_count();
  sequences[1] = engine.fork(sequences[0]);
  sequences[2] = engine.fork(sequences[1]);
  for (size_t step = 0; step < 80; ++step) {
    for (size_t i = 0; i < 3; ++i)
      feeds[i] = {sequences[i], std::span(base).subspan(i + step, 1), Want::last};
    engine.forward(feeds, nothing);
    if (step % 20 == 19) engine.trim(sequences[2], engine.length(sequences[2]) - 5);
  }
  EXPECT_EQ(allocation_count() - before, 0);
  EXPECT_GT(engine.stats().kv_page_copies, 0);
}

TEST_P(State, RefusesWhatIsNotThere) {
  Engine engine = make({});
  const int32_t a = engine.open();
  feed_all(engine, a, left);
  expect_error([&] { engine.trim(a, 41); }, ErrorCode::usage, "cannot be cut to 41 positions, it has 40");
  expect_error([&] { engine.trim(a, -1); }, ErrorCode::usage, "cannot be cut to -1");
  for (const int32_t unknown : {5, -1, 99}) {
    const std::string name = fmt::format("sequence {} is not open", unknown);
    expect_error([&] { engine.trim(unknown, 0); }, ErrorCode::usage, name);
    expect_error([&] { engine.fork(unknown); }, ErrorCode::usage, name);
    expect_error([&] { engine.tokens(unknown); }, ErrorCode::usage, name);
    expect_error([&] { engine.earliest_restart(unknown); }, ErrorCode::usage, name);
    expect_error([&] { state_of(engine, unknown, {}); }, ErrorCode::usage, name);
    expect_error([&] { restore(engine, unknown, {}, {}); }, ErrorCode::usage, name);
  }
  expect_error([&] { make({.keep_behind = -1}); }, ErrorCode::usage, "keep_behind: expected 0 or more");
}

INSTANTIATE_TEST_SUITE_P(, State, testing::ValuesIn(state_models()), name_of_model);
INSTANTIATE_TEST_SUITE_P(, StateOnEveryIsa, testing::ValuesIn(small_state_models()), name_of_model);

}  // namespace
}  // namespace lapidary::test
