// Memory of KV pages: what it is said to take before a step is what the step takes, and no step takes more
// than is allowed.
#include <gtest/gtest.h>

#include <vector>

#include "engine/harness.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

const auto ignore = [](size_t, int64_t, std::span<const float>) {};

class Room : public testing::TestWithParam<const char*> {
 protected:
  Room() : checkpoint(open_golden_model(GetParam())) {
    for (int i = 0; i < 90; i++) tokens.push_back(3 + i * 7 % 40);
  }
  Engine make(EngineOptions options) const {
    options.threads = 1;
    options.chunk = 16;
    return Engine(checkpoint.spec, *checkpoint.tensors, options);
  }
  std::span<const int32_t> part(size_t from, size_t n) const { return std::span(tokens).subspan(from, n); }
  static void feed(Engine& engine, int32_t sequence, std::span<const int32_t> some) {
    const Feed one{sequence, some};
    engine.forward({&one, 1}, ignore);
  }

  Checkpoint checkpoint;
  Tokens tokens;
};

TEST_P(Room, WhatAStepTakesIsKnownBefore) {
  Engine engine = make({.max_sequences = 4});
  const int32_t a = engine.open();
  int32_t b = -1;
  size_t fed = 0;
  for (const size_t n : {1, 5, 16, 10, 1, 16, 7, 16}) {
    const int64_t before = engine.kv_room().in_use,
                  most = engine.kv_bytes_to_feed(a, static_cast<int64_t>(n));
    feed(engine, a, part(fed, n));
    fed += n;
    EXPECT_LE(engine.kv_room().in_use - before, most) << fed;
    EXPECT_LE(engine.kv_bytes_of_its_own(a), engine.kv_bytes_at_length(static_cast<int64_t>(fed))) << fed;
    if (b < 0 && fed > 20) b = engine.fork(a);
  }
  ASSERT_GE(b, 0);
  engine.close(b);
  // A shared page is copied by the first who writes to it, and a full one is followed by a new one: either
  // counts.
  b = engine.fork(a);
  const int64_t before = engine.kv_room().in_use, most = engine.kv_bytes_to_feed(b, 1);
  EXPECT_GT(most, 0);
  feed(engine, b, part(fed, 1));
  EXPECT_LE(engine.kv_room().in_use - before, most);
  const int64_t own = engine.kv_bytes_of_its_own(b), both = engine.kv_room().in_use;
  engine.close(b);
  EXPECT_EQ(engine.kv_room().in_use, both - own);
  engine.close(a);
  EXPECT_EQ(engine.kv_room().in_use, 0);
}

TEST_P(Room, AStepWithoutRoomIsRefusedAndLeavesNoTrace) {
  Engine calm = make({.max_sequences = 2});
  const int64_t bytes = calm.kv_bytes_at_length(40);
  Engine engine = make({.max_sequences = 2, .kv_bytes = bytes});
  EXPECT_EQ(engine.kv_room().total, bytes);
  const int32_t a = engine.open();
  feed(engine, a, part(0, 16));
  feed(engine, a, part(16, 14));
  const int32_t b = engine.open();
  bool refused = false;
  size_t held = 0;
  for (size_t i = 0; i < 60 && !refused; i++) {
    try {
      feed(engine, b, part(i, 1));
      held++;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::limit);
      EXPECT_NE(std::string(error.what()).find("KV pages"), std::string::npos) << error.what();
      refused = true;
    }
  }
  EXPECT_TRUE(refused);
  EXPECT_EQ(engine.length(b), static_cast<int64_t>(held));
  EXPECT_LE(engine.kv_room().in_use, bytes);
  engine.close(a);
  const std::vector<float> rest = feed_all(engine, b, part(held, 3));
  const int32_t fresh = calm.open();
  if (held > 0) feed(calm, fresh, part(0, held));
  expect_same_bits(feed_all(calm, fresh, part(held, 3)), rest, "after the refusal");
}

TEST_P(Room, HiddenRowsReachTheFinalNormWithoutLogits) {
  struct Norms : Probe {
    std::vector<float> values;
    std::vector<int64_t> positions;
    void on_hidden(int64_t, std::span<const RowId>, std::span<const float>) override {}
    void on_final_norm(std::span<const RowId> rows, std::span<const float> rows_values) override {
      for (const RowId& row : rows) positions.push_back(row.position);
      values.insert(values.end(), rows_values.begin(), rows_values.end());
    }
    void on_kv(int64_t, RowId, std::span<const float>, std::span<const float>) override {}
    void on_scores(int64_t, RowId, int64_t, int64_t, std::span<const float>) override {}
    bool wants_scores() const override { return false; }
  };
  Engine engine = make({.max_sequences = 2});
  Norms all, hidden;
  int64_t logits = 0;
  const auto count = [&](size_t, int64_t, std::span<const float>) { logits++; };
  const Feed with{engine.open(), part(0, 37), Want::all};
  engine.forward({&with, 1}, count, &all);
  EXPECT_EQ(logits, 37);
  const Feed without{engine.open(), part(0, 37), Want::hidden};
  engine.forward({&without, 1}, count, &hidden);
  EXPECT_EQ(logits, 37);
  EXPECT_EQ(hidden.positions, all.positions);
  expect_same_bits(hidden.values, all.values, "final norms");
}

INSTANTIATE_TEST_SUITE_P(Models, Room, testing::Values("gemma4-e2b-tiny", "gemma4-31b-tiny"));

}  // namespace
}  // namespace lapidary::test
