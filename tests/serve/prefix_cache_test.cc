// The prefix cache: what it finds is the longest that can be gone on from, what goes on from it has the bits
// of a fresh run, and what it keeps is bounded.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "serve/cache_harness.h"

namespace lapidary::test {
namespace {

class Prefix : public CacheSuite {};

TEST_P(Prefix, ATurnGoesOnFromTheOneBefore) {
  Served served(make({.max_sequences = 8}));
  Tokens chat = text(1, 70);
  EXPECT_EQ(served.talk(chat, text(2, 30)).begin.reuse, Reuse::cold);
  int64_t held = 100;
  chat = chat + text(2, 30);
  for (int turn = 0; turn < 4; turn++) {
    chat = chat + text(10 + turn, 25);
    const Tokens answer = text(20 + turn, 15);
    const Served::Turn got = served.talk(chat, answer);
    EXPECT_EQ(got.begin.cached, held) << turn;
    EXPECT_EQ(got.begin.reuse, Reuse::extended) << turn;
    expect_same_bits(got.logits, fresh(chat), "turn");
    chat = chat + answer;
    held = std::ssize(chat);
  }
  EXPECT_EQ(served.cache.stats().prompts.at(Reuse::extended), 4);
}

// A template that strips the thinking: the next prompt parts from the answer at its beginning.
TEST_P(Prefix, AnAnswerThatIsRewrittenLeavesThePrompt) {
  Served served(make({.max_sequences = 8}));
  const Tokens prompt = text(1, 101);
  served.talk(prompt, text(2, 90));
  const Tokens next = prompt + text(3, 40);
  const Served::Turn got = served.talk(next);
  EXPECT_EQ(got.begin.cached, 101);
  expect_same_bits(got.logits, fresh(next), "next");
}

TEST_P(Prefix, TheSamePromptIsComputedButForItsLastToken) {
  Served served(make({.max_sequences = 8, .keep_behind = 1}));
  for (const size_t n : {2, 31, 32, 33, 64, 65, 100, 129}) {
    const Tokens prompt = text(static_cast<int>(n), n);
    served.talk(prompt, text(7, 40));
    const Served::Turn again = served.prompt(prompt);
    if (n == 2) {  // one token in common is nothing
      EXPECT_EQ(again.begin.cached, 0);
      EXPECT_EQ(again.begin.reuse, Reuse::cold);
    } else {
      EXPECT_EQ(again.begin.cached, static_cast<int64_t>(n) - 1);
      EXPECT_EQ(again.begin.reuse, Reuse::whole);
    }
    expect_same_bits(again.logits, fresh(prompt), std::to_string(n));
    served.cache.give(again.begin.sequence);
  }
}

// A common beginning, then texts of their own: the first has no windows there, the second leaves a mark, from
// the third on it is found.
TEST_P(Prefix, TheThirdComerFindsTheBranchPoint) {
  Served served(make({.max_sequences = 12}), {.max_entries = 10});
  const Tokens system = text(1, 150);
  EXPECT_EQ(served.talk(system + text(2, 90)).begin.reuse, Reuse::cold);
  const Served::Turn second = served.talk(system + text(3, 90));
  if (has_window()) {
    EXPECT_EQ(second.begin.reuse, Reuse::window_lost);
    EXPECT_EQ(second.begin.cached, 0);
  } else {
    EXPECT_EQ(second.begin.reuse, Reuse::differs);
    EXPECT_EQ(second.begin.cached, 150);
  }
  for (int i = 4; i < 7; i++) {
    const Tokens prompt = system + text(i, 90);
    const Served::Turn got = served.talk(prompt);
    EXPECT_GE(got.begin.cached, 128) << i;  // the border of pages before the 150
    expect_same_bits(got.logits, fresh(prompt), std::to_string(i));
  }
}

TEST_P(Prefix, LongPromptsLeaveMarksWhereThereAreWindows) {
  Served served(make({.max_sequences = 12}), {.max_entries = 10, .mark_every = 64});
  const Tokens prompt = text(1, 300);
  EXPECT_EQ(served.talk(prompt).marks, has_window() ? 5 : 1);
  EXPECT_EQ(served.cache.stats().entries, has_window() ? 5 : 1);
  const Tokens other = first(prompt, 220) + text(2, 30);
  const Served::Turn got = served.talk(other);
  EXPECT_EQ(got.begin.cached, has_window() ? 192 : 220);
  expect_same_bits(got.logits, fresh(other), "other");
}

TEST_P(Prefix, WhatIsBeingAnsweredCanBeSharedAlready) {
  Served served(make({.max_sequences = 8}));
  const Tokens prompt = text(1, 120);
  const Served::Turn running = served.prompt(prompt);
  const Tokens other = prompt + text(2, 10);
  const Served::Turn beside = served.prompt(other);
  EXPECT_EQ(beside.begin.cached, 120);
  expect_same_bits(beside.logits, fresh(other), "beside");
  const Tokens more = text(3, 50);
  expect_same_bits(feed_last(*served.engine, running.begin.sequence, more), fresh(prompt + more), "running");
  served.cache.give(running.begin.sequence);
  served.cache.give(beside.begin.sequence);
}

TEST_P(Prefix, WhyNoMoreWasTaken) {
  Served served(make({.max_sequences = 8}), {.max_entries = 4});
  const Tokens a = text(1, 100);
  EXPECT_EQ(served.talk(a).begin.reuse, Reuse::cold);
  EXPECT_EQ(served.talk(text(2, 100)).begin.reuse, Reuse::cold);
  EXPECT_EQ(served.talk(a + text(3, 10)).begin.reuse, Reuse::extended);
  const Served::Turn scored = served.prompt(a + text(3, 10), false);
  EXPECT_EQ(scored.begin.reuse, Reuse::unwanted);
  EXPECT_EQ(scored.begin.cached, 0);
  served.engine->close(scored.begin.sequence);
  if (!has_window()) {
    EXPECT_EQ(served.talk(first(a, 97) + text(4, 20)).begin.reuse, Reuse::differs);
  }
  ASSERT_TRUE(served.cache.make_room(served.engine->kv_room().total));
  EXPECT_GT(served.cache.stats().evictions, 0);
  const Served::Turn back = served.talk(a + text(3, 10) + text(5, 10));
  EXPECT_EQ(back.begin.reuse, Reuse::evicted);
  int64_t all = 0;
  const serve::PrefixStats stats = served.cache.stats();
  for (const auto& [reuse, n] : stats.prompts) all += n;
  EXPECT_EQ(all, has_window() ? 5 : 6);
  EXPECT_LE(stats.entries, 4);
  served.cache.clear();
  EXPECT_EQ(served.talk(a).begin.reuse, Reuse::cold) << "cleared is forgotten";
}

TEST_P(Prefix, SwitchedOffItKeepsNothing) {
  Served served(make({.max_sequences = 2}), {.enabled = false});
  const Tokens prompt = text(1, 100);
  served.talk(prompt);
  EXPECT_EQ(served.cache.would_reuse(prompt), 0);
  EXPECT_EQ(served.talk(prompt).begin.reuse, Reuse::unwanted);
  EXPECT_EQ(served.engine->kv_room().in_use, 0);
}

TEST_P(Prefix, WhatAnotherOneServesIsNotKept) {
  Served served(make({.max_sequences = 10}), {.max_entries = 8});
  const Tokens chat = text(1, 20);  // no window is lost up to the first border of pages
  served.talk(chat, text(2, 4));
  served.talk(chat + text(2, 4), text(3, 4));
  served.talk(chat + text(2, 4) + text(3, 4), text(4, 4));
  EXPECT_EQ(served.cache.entries().size(), 1u);
  EXPECT_EQ(served.cache.entries().at(0).tokens, 32);
  served.talk(first(chat, 19));
  EXPECT_EQ(served.cache.entries().size(), 1u);
}

TEST_P(Prefix, SequencesAreHadAsLongAsOneIsNotRunning) {
  Served served(make({.max_sequences = 3}), {.max_entries = 3});
  const Tokens a = text(1, 70);
  served.talk(a);
  served.talk(text(2, 70));
  served.talk(text(3, 70));
  std::vector<int32_t> running;
  for (int i = 0; i < 2; i++) running.push_back(served.prompt(text(10 + i, 50)).begin.sequence);
  // One is left: it is wanted, and taken over.
  const serve::PrefixStats before = served.cache.stats();
  ASSERT_EQ(before.entries, 1);
  const std::span<const int32_t> held = served.engine->tokens(served.cache.entries().at(0).sequence);
  const Tokens next = Tokens(held.begin(), held.end()) + text(30, 5);
  const Served::Turn last = served.prompt(next);
  EXPECT_EQ(last.begin.reuse, Reuse::extended);
  expect_same_bits(last.logits, fresh(next), "taken");
  EXPECT_EQ(served.cache.stats().entries, 0);
  EXPECT_EQ(served.cache.stats().evictions, before.evictions + 1);
  expect_error([&] { served.cache.begin(next, true); }, ErrorCode::limit, "no sequence is free");
}

TEST_P(Prefix, RoomIsMadeByTheCheapestLoss) {
  Served served(make({.max_sequences = 10, .kv_bytes = make()->kv_bytes_at_length(400) * 3}),
                {.max_entries = 8});
  const Tokens wanted = text(1, 128), cold = text(2, 128);
  served.talk(wanted);
  served.talk(cold);
  for (int i = 0; i < 3; i++) served.talk(wanted + text(3, 2));
  Engine& engine = *served.engine;
  ASSERT_TRUE(served.cache.make_room(engine.kv_room().free() + 1));
  EXPECT_GE(served.cache.would_reuse(wanted + text(3, 2)), 128) << "what was used last stays";
  EXPECT_LT(served.cache.would_reuse(cold + text(3, 2)), 128);
  // More than there is: nothing is evicted in vain.
  const serve::PrefixStats before = served.cache.stats();
  EXPECT_FALSE(served.cache.make_room(engine.kv_room().total + 1));
  EXPECT_EQ(served.cache.stats().entries, before.entries);
  const int64_t in_use = engine.kv_room().in_use;
  EXPECT_EQ(before.bytes, in_use) << "nobody else runs";
  EXPECT_TRUE(served.cache.make_room(engine.kv_room().total));
  EXPECT_EQ(served.cache.stats().entries, 0);
  EXPECT_EQ(engine.kv_room().in_use, 0);
}

TEST_P(Prefix, WhatSharesItsPagesWithARunningTextFreesNothing) {
  Served served(make({.max_sequences = 6}), {.max_entries = 4});
  const Served::Turn running = served.prompt(text(1, 128));
  EXPECT_EQ(served.cache.stats().entries, 1);
  EXPECT_EQ(served.cache.stats().bytes, 0);
  EXPECT_FALSE(served.cache.make_room(served.engine->kv_room().free() + 1));
  EXPECT_EQ(served.cache.stats().entries, 1);
  served.cache.give(running.begin.sequence);
  EXPECT_EQ(served.cache.stats().bytes, served.engine->kv_room().in_use);
}

INSTANTIATE_TEST_SUITE_P(Models, Prefix, testing::ValuesIn(cache_models()), name_of_model);

// ---- against a plain model, at random ----

class PrefixAtRandom : public CacheSuite {
 protected:
  struct Held {
    Tokens tokens;
    int64_t earliest = 0;
  };
  static int64_t common(const Tokens& a, const Tokens& b) {
    int64_t n = 0;
    while (n < std::ssize(a) && n < std::ssize(b) && a[static_cast<size_t>(n)] == b[static_cast<size_t>(n)])
      n++;
    return n;
  }
  // What the cache says that it holds, with the engine's word for each.
  static std::vector<Held> held(const Served& served) {
    std::vector<Held> all;
    for (const serve::PrefixEntryView& entry : served.cache.entries()) {
      const std::span<const int32_t> tokens = served.engine->tokens(entry.sequence);
      all.push_back({{tokens.begin(), tokens.end()}, served.engine->earliest_restart(entry.sequence)});
    }
    return all;
  }
  static int64_t longest(const std::vector<Held>& all, const Tokens& prompt) {
    int64_t best = 0;
    for (const Held& one : all) {
      const int64_t n = std::min(common(one.tokens, prompt), std::ssize(prompt) - 1);
      if (n >= 2 && n >= one.earliest) best = std::max(best, n);
    }
    return best;
  }
  // Each length that was kept is still served, by whichever.
  static bool is_served(const std::vector<Held>& all, const Tokens& kept, int64_t earliest) {
    return std::any_of(all.begin(), all.end(), [&](const Held& one) {
      return common(one.tokens, kept) == std::ssize(kept) && one.earliest <= earliest;
    });
  }
};

TEST_P(PrefixAtRandom, EveryPromptHasTheBitsOfAFreshRun) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  const int64_t room = make()->kv_bytes_at_length(400) * 2;
  Served served(make({.chunk = 32, .max_sequences = 10, .kv_bytes = room}),
                {.max_entries = 6, .mark_every = 64});
  struct Running {
    Tokens prompt, fed;
    int32_t sequence = 0;
  };
  std::vector<Running> running;
  std::vector<Tokens> known{text(1, 200), text(2, 40)};
  std::map<std::vector<int32_t>, std::vector<float>> computed;
  int hits = 0;
  for (int operation = 0; operation < 500; operation++) {
    SCOPED_TRACE(operation);
    const int64_t what = pick(10);
    if (what < 4 && running.size() < 3) {  // a prompt that begins like one that was there
      const Tokens& base = known[static_cast<size_t>(pick(std::ssize(known)))];
      const auto kept = static_cast<size_t>(pick(2) ? std::ssize(base) : pick(std::ssize(base)));
      const Tokens prompt =
          first(base, kept) + text(static_cast<int>(pick(5)), static_cast<size_t>(1 + pick(60)));
      const int64_t expected = longest(held(served), prompt);
      EXPECT_EQ(served.cache.would_reuse(prompt), expected);
      const PrefixCache::Begin begin = served.cache.begin(prompt, true);
      ASSERT_EQ(begin.cached, expected);
      hits += begin.cached > 0;
      running.push_back({prompt, first(prompt, static_cast<size_t>(begin.cached)), begin.sequence});
    } else if (what < 8 && !running.empty()) {  // compute on
      Running& one = running[static_cast<size_t>(pick(std::ssize(running)))];
      const int64_t at = std::ssize(one.fed), length = std::ssize(one.prompt);
      Tokens part = text(static_cast<int>(pick(9)), static_cast<size_t>(1 + pick(20)));
      if (at < length) {
        const int64_t next = std::min(served.cache.next_mark(one.prompt, at), at + 1 + pick(64));
        part.assign(one.prompt.begin() + at, one.prompt.begin() + next);
      } else if (at + std::ssize(part) > 380) {
        continue;
      }
      if (!served.cache.make_room(served.engine->kv_bytes_to_feed(one.sequence, std::ssize(part)))) {
        served.cache.give(one.sequence);
        running.erase(running.begin() + (&one - running.data()));
        continue;
      }
      const std::vector<float> logits = feed_last(*served.engine, one.sequence, part);
      one.fed = one.fed + part;
      auto [known_logits, is_new] = computed.try_emplace(one.fed);
      if (is_new) known_logits->second = fresh(one.fed);
      ASSERT_TRUE(is_same_bits(logits, known_logits->second));
      if (std::ssize(one.fed) == length || pick(3) == 0) {
        const int64_t earliest = served.engine->earliest_restart(one.sequence);
        const size_t before = served.cache.entries().size();
        served.cache.mark(one.sequence);
        if (before < 6 && one.fed.size() >= 2) {
          EXPECT_TRUE(is_served(held(served), one.fed, earliest));
        }
      }
    } else if (what == 8 && !running.empty()) {
      const auto which = pick(std::ssize(running));
      Running& one = running[static_cast<size_t>(which)];
      const int64_t earliest = served.engine->earliest_restart(one.sequence);
      const size_t before = served.cache.entries().size();
      served.cache.give(one.sequence);
      if (before < 6 && one.fed.size() >= 2) {
        EXPECT_TRUE(is_served(held(served), one.fed, earliest));
      }
      if (!one.fed.empty() && one.fed.size() < 250) known.push_back(one.fed);
      if (known.size() > 6) known.erase(known.begin());
      running.erase(running.begin() + which);
    } else if (what == 9) {
      const int64_t wanted = served.engine->kv_room().free() + pick(room / 8);
      const int64_t can = served.engine->kv_room().free() + served.cache.stats().bytes;
      EXPECT_EQ(served.cache.make_room(wanted), can >= wanted);
      if (can >= wanted) {
        EXPECT_GE(served.engine->kv_room().free(), wanted);
      }
    }
    const std::vector<Held> all = held(served);
    ASSERT_LE(all.size(), 6u);
    for (size_t a = 0; a < all.size(); a++)
      for (size_t b = 0; b < all.size(); b++)
        EXPECT_FALSE(a != b && common(all[a].tokens, all[b].tokens) == std::ssize(all[a].tokens) &&
                     all[b].earliest <= all[a].earliest)
            << "one is kept that another serves";
  }
  EXPECT_GT(hits, 15);
  EXPECT_GT(served.cache.stats().evictions, 5);
  for (const Running& one : running) served.cache.give(one.sequence);
  EXPECT_GT(served.engine->kv_room().in_use, 0);
  served.cache.clear();
  EXPECT_EQ(served.engine->kv_room().in_use, 0) << "leaked pages";
  for (int i = 0; i < 10; i++) EXPECT_NO_THROW(served.engine->open()) << "leaked sequences";
}

INSTANTIATE_TEST_SUITE_P(Models, PrefixAtRandom, testing::ValuesIn(cache_models()), name_of_model);

}  // namespace
}  // namespace lapidary::test
