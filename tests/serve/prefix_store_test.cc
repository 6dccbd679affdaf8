// The prefix cache across restarts: what was saved goes on without being computed again, with the same bits;
// what is damaged or of another model is never taken, and never in the way.
#include <gtest/gtest.h>

#include <algorithm>

#include "serve/cache_harness.h"
#include "serve/memory_store.h"
#include "spec/model_hash.h"

namespace lapidary::test {
namespace {

using Problems = std::vector<std::pair<std::string, std::string>>;

class PrefixStore : public CacheSuite {
 protected:
  PrefixStore() : model(model_hash(checkpoint.spec, *checkpoint.tensors)) {}
  Problems load(Served& served) { return load(served, model); }
  Problems load(Served& served, const Hash128& of) {
    Problems problems;
    served.cache.load(store, of, [&](const std::string& name, const std::string& problem) {
      problems.emplace_back(name, problem);
    });
    return problems;
  }
  Served server(EngineOptions options = {}, const PrefixCacheOptions& cache = {.max_entries = 6}) const {
    options.max_sequences = 8;
    return Served(make(options), cache);
  }
  // Two chats of two turns with one system prompt.
  void talk(Served& served) const {
    for (const Tokens& chat : {chat_a, chat_b}) {
      served.talk(chat, text(7, 20));
      served.talk(chat + text(7, 20) + text(8, 12), text(9, 40));
    }
  }

  Hash128 model;
  MemoryStore store;
  const Tokens system = text(1, 70), chat_a = system + text(2, 30), chat_b = system + text(3, 35);
  // The next turns: with the answer as it was, and without what it ended in.
  const Tokens answered = text(7, 20) + text(8, 12) + text(9, 40) + text(4, 9),
               rewritten = text(7, 20) + text(8, 12) + text(5, 9);
};

TEST_P(PrefixStore, AConversationGoesOnWithoutBeingComputedAgain) {
  int64_t saved = 0;
  {
    Served served = server();
    talk(served);
    saved = served.cache.save(store, model);
  }
  for (const Tokens& chat : {chat_a, chat_b}) {
    for (const Tokens& turn : {answered, rewritten}) {
      Served served = server();
      EXPECT_EQ(load(served), Problems{});
      const serve::PrefixStats stats = served.cache.stats();
      EXPECT_EQ(stats.restored_entries, std::ssize(store.blobs));
      EXPECT_EQ(stats.restored_tokens, saved);
      EXPECT_EQ(stats.refused_states, 0);
      const int64_t steps = served.engine->stats().steps;
      EXPECT_EQ(steps, 0);
      const Tokens prompt = chat + turn;
      const Served::Turn got = served.talk(prompt);
      EXPECT_EQ(got.begin.cached, std::ssize(prompt) - 9);
      EXPECT_EQ(served.engine->stats().rows, 9);
      // An engine that never stopped.
      Served unbroken = server();
      talk(unbroken);
      expect_same_bits(got.logits, unbroken.talk(prompt).logits, "never stopped");
      expect_same_bits(got.logits, fresh(prompt), "fresh");
    }
  }
}

TEST_P(PrefixStore, WhatIsThereIsNotWrittenAgainAndWhatIsGoneGoes) {
  Served served = server();
  talk(served);
  served.cache.save(store, model);
  const int64_t writes = store.writes;
  EXPECT_EQ(writes, std::ssize(store.blobs));
  served.cache.save(store, model);
  EXPECT_EQ(store.writes, writes);
  store.blobs["of-somebody-else"] = {};
  served.cache.clear();
  served.talk(text(40, 50));
  EXPECT_EQ(served.cache.save(store, model), 50);
  EXPECT_EQ(store.writes, writes + 1);
  EXPECT_EQ(store.blobs.size(), 2u) << "the new one, and the one that is not ours";
}

TEST_P(PrefixStore, LoadingTwiceBringsNothingTwice) {
  Served served = server();
  talk(served);
  const size_t entries = served.cache.entries().size();
  served.cache.save(store, model);
  EXPECT_EQ(load(served), Problems{});
  EXPECT_EQ(served.cache.entries().size(), entries) << "all is held";
  Served again = server();
  load(again);
  const size_t restored = again.cache.entries().size();
  const int64_t bytes = again.engine->kv_room().in_use, reads = store.reads;
  EXPECT_EQ(load(again), Problems{});
  EXPECT_EQ(again.cache.entries().size(), restored);
  EXPECT_EQ(again.engine->kv_room().in_use, bytes);
  EXPECT_EQ(store.reads, reads) << "known by their names";
  // A load into a cache that has gone on: covered ones are not kept.
  again.talk(chat_a + answered, text(30, 60));
  const size_t gone_on = again.cache.entries().size();
  load(again);
  EXPECT_LE(again.cache.entries().size(), std::max(gone_on, restored + 2));
}

TEST_P(PrefixStore, RestoredStatesShareTheirPages) {
  Served served = server({}, {.max_entries = 6, .mark_every = 64});
  talk(served);
  const int64_t shared = served.engine->kv_room().in_use;
  served.cache.save(store, model);
  Served again = server();
  load(again);
  ASSERT_GE(again.cache.entries().size(), 2u);
  // No more than what forks took: 64 of the system prompt's 70 positions are whole pages.
  EXPECT_LE(again.engine->kv_room().in_use, shared);
  int64_t held = 0;
  for (const serve::PrefixEntryView& entry : again.cache.entries()) {
    held += entry.bytes;
    const std::span<const int32_t> tokens = again.engine->tokens(entry.sequence);
    const Tokens prompt = Tokens(tokens.begin(), tokens.end()) + text(20, 3);
    expect_same_bits(again.talk(prompt).logits, fresh(prompt), "shared");
  }
  EXPECT_LT(held, shared) << "some pages are held by several";
}

TEST_P(PrefixStore, WhatDoesNotFitIsLeft) {
  {
    Served served = server();
    for (int i = 0; i < 4; i++) served.talk(text(10 + i, 100));
    served.cache.save(store, model);
  }
  ASSERT_EQ(store.blobs.size(), 4u);
  Served few = server({}, {.max_entries = 3});
  EXPECT_EQ(load(few).size(), 1u);
  EXPECT_EQ(few.cache.stats().entries, 3);
  EXPECT_EQ(few.cache.would_reuse(text(13, 100) + text(1, 5)), 100) << "the newest first";
  EXPECT_EQ(few.cache.would_reuse(text(10, 100) + text(1, 5)), 0);
  Served small = server({.kv_bytes = make()->kv_bytes_at_length(400) / 2});
  const Problems problems = load(small);
  EXPECT_EQ(std::ssize(problems) + small.cache.stats().entries, 4);
  EXPECT_LE(small.engine->kv_room().in_use, small.engine->kv_room().total);
  Served narrow = server({.context = 64});
  EXPECT_EQ(load(narrow).size(), 4u);
  EXPECT_EQ(narrow.engine->kv_room().in_use, 0);
}

TEST_P(PrefixStore, OtherModelsAndArithmeticsAreRefusedAndKept) {
  {
    Served served = server();
    served.talk(text(1, 60));
    served.cache.save(store, model);
  }
  Hash128 other = model;
  other.bytes[5] ^= 1;
  Served served = server();
  Problems problems = load(served, other);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].second.find("model"), std::string::npos) << problems[0].second;
  EXPECT_EQ(served.cache.stats().refused_states, 1);
  Served rounded = server({.kv_dtype = DType::bf16});
  EXPECT_EQ(load(rounded).size(), 1u);
  // Its own states lie beside them.
  rounded.talk(text(1, 60));
  rounded.cache.save(store, model);
  EXPECT_EQ(store.blobs.size(), 2u);
  Served first = server();
  EXPECT_EQ(load(first).size(), 1u);
  EXPECT_EQ(first.cache.would_reuse(text(1, 60) + text(2, 5)), 60);
}

TEST_P(PrefixStore, AFullDiskIsSaidAndWhatIsWrittenCounts) {
  Served served = server();
  for (int i = 0; i < 4; i++) served.talk(text(10 + i, 100));
  store.writes_allowed = 2;
  expect_error([&] { served.cache.save(store, model); }, ErrorCode::io, "No space left");
  EXPECT_EQ(store.blobs.size(), 2u);
  Served again = server();
  EXPECT_EQ(load(again), Problems{});
  EXPECT_EQ(again.cache.stats().entries, 2);
  store.writes_allowed = 100;
  EXPECT_EQ(served.cache.save(store, model), 400);
  EXPECT_EQ(store.writes, 4);
}

// One blob, each of its bytes in turn (of the pages: some), and each end that it may be cut at.
TEST_P(PrefixStore, DamagedBlobsAreNeverTaken) {
  {
    Served served = server();
    served.talk(text(1, 40));
    served.cache.save(store, model);
  }
  ASSERT_EQ(store.blobs.size(), 1u);
  std::vector<std::byte>& bytes = store.blobs.begin()->second.bytes;
  const std::string& name = store.blobs.begin()->first;
  Served served = server();
  const auto refused = [&](const std::string& label) {
    const Problems problems = load(served);
    ASSERT_EQ(problems.size(), 1u) << label;
    EXPECT_EQ(problems[0].first, name);
    EXPECT_NE(problems[0].second.find(name), std::string::npos) << problems[0].second;
    ASSERT_EQ(served.cache.stats().entries, 0) << label;
    ASSERT_EQ(served.engine->kv_room().in_use, 0) << label;
  };
  int64_t tries = 0;
  const size_t dense = std::min<size_t>(bytes.size(), 1500);
  for (size_t i = 0; i < bytes.size(); i += i < dense ? 1 : 1 + bytes.size() / 300, tries++) {
    bytes[i] ^= std::byte{0x10};
    refused(fmt::format("byte {}", i));
    bytes[i] ^= std::byte{0x10};
  }
  const std::vector<std::byte> whole = bytes;
  for (const size_t n : {size_t{0}, size_t{1}, size_t{175}, whole.size() / 2, whole.size() - 1}) {
    bytes.assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
    refused(fmt::format("cut to {}", n));
    tries++;
  }
  bytes = whole;
  bytes.push_back(std::byte{0});
  refused("a byte more");
  EXPECT_EQ(served.cache.stats().refused_states, tries + 1);
  // Left alone by a save of others, replaced by one of the same.
  served.talk(text(2, 40));
  served.cache.save(store, model);
  EXPECT_EQ(store.blobs.size(), 2u);
  EXPECT_EQ(bytes.size(), whole.size() + 1);
  served.talk(text(1, 40));
  served.cache.save(store, model);
  EXPECT_EQ(bytes.size(), whole.size());
  Served again = server();
  EXPECT_EQ(load(again), Problems{});
  EXPECT_EQ(again.cache.stats().entries, 2);
}

// A sound state of the engine that is none of the prefix cache.
TEST_P(PrefixStore, ForeignAttachmentsAreRefused) {
  Served served = server();
  const int32_t sequence = served.engine->open();
  feed_last(*served.engine, sequence, text(1, 40));
  struct Record {
    char magic[4] = {'L', 'P', 'F', 'X'};
    uint32_t version = 1;
    uint64_t hits = 3, idle_seconds = 9;
  };
  const auto put = [&](const std::string& name, std::span<const std::byte> attachment) {
    store.write(
        name, [&](serve::StateStore::Sink sink) { served.engine->save(sequence, model, attachment, sink); });
  };
  Record newer, huge, odd, good;
  newer.version = 2;
  huge.hits = ~uint64_t{0};
  odd.magic[0] = 'X';
  put("none", {});
  put("newer", std::as_bytes(std::span(&newer, 1)));
  put("huge", std::as_bytes(std::span(&huge, 1)));
  put("odd", std::as_bytes(std::span(&odd, 1)));
  EXPECT_EQ(load(served).size(), 4u);
  EXPECT_EQ(served.cache.stats().entries, 0);
  store.blobs.clear();
  put("good", std::as_bytes(std::span(&good, 1)));
  served.engine->close(sequence);
  EXPECT_EQ(served.engine->kv_room().in_use, 0);
  EXPECT_EQ(load(served), Problems{});
  ASSERT_EQ(served.cache.entries().size(), 1u);
  EXPECT_EQ(served.cache.entries()[0].hits, 3);
  EXPECT_GE(served.cache.entries()[0].idle_seconds, 9);
}

INSTANTIATE_TEST_SUITE_P(Models, PrefixStore, testing::ValuesIn(cache_models()), name_of_model);

}  // namespace
}  // namespace lapidary::test
