// Damaged and hostile states: every byte region, every cut, and what checksums cannot tell. Each is refused
// with the field, or the layer and positions, and the engine is as it was.
#include <gtest/gtest.h>

#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/state_bytes.h"
#include "engine/state_harness.h"

namespace lapidary::test {
namespace {

using kv_state::Header;
using kv_state::LayerEntry;

#define FIELD(type, name, text)                                           \
  Region {                                                                \
    text, offsetof(type, name), offsetof(type, name) + sizeof(type::name) \
  }

const std::vector<Region> kHeaderFields = {
    FIELD(Header, magic, "magic"),
    FIELD(Header, version, "version"),
    FIELD(Header, byte_order, "byte order"),
    FIELD(Header, model, "model hash"),
    FIELD(Header, arithmetic, "arithmetic"),
    FIELD(Header, key_dtype, "key dtype"),
    FIELD(Header, value_dtype, "value dtype"),
    FIELD(Header, block, "positions of a page"),
    FIELD(Header, n_layers, "number of layers"),
    FIELD(Header, vocab_size, "vocabulary size"),
    FIELD(Header, reserved, "reserved"),
    FIELD(Header, length, "length"),
    FIELD(Header, earliest_restart, "earliest restart"),
    FIELD(Header, attachment_bytes, "attachment bytes"),
    FIELD(Header, tokens_hash, "checksum of the token ids"),
    FIELD(Header, attachment_hash, "checksum of the attachment"),
    FIELD(Header, hash, "header checksum"),
};
// Nothing else says where a layer begins: damage there looks like damage of the checksum over it.
const std::vector<Region> kEntryFields = {
    FIELD(LayerEntry, layer, "layer: expected"),       FIELD(LayerEntry, kind, "kind: expected"),
    FIELD(LayerEntry, owner, "owner: expected"),       FIELD(LayerEntry, n_kv_heads, "KV heads: expected"),
    FIELD(LayerEntry, head_dim, "head_dim: expected"), FIELD(LayerEntry, rope_kind, "rope kind: expected"),
    FIELD(LayerEntry, window, "window: expected"),     FIELD(LayerEntry, rope_theta, "rope theta: expected"),
    FIELD(LayerEntry, first, "first position"),        FIELD(LayerEntry, hash, "first position"),
};
#undef FIELD

std::string positions(const PagePlace& p, int64_t length) {
  return fmt::format("layer {}, positions {} to {}", p.layer, p.block * 32,
                     std::min(p.block * 32 + 31, length - 1));
}

// All of a state, in order.
std::vector<Region> regions_of(const StateBytes& state) {
  const StateMap map = map_state(state);
  const auto header = record_at<Header>(state, 0);
  std::vector<Region> regions = kHeaderFields;
  for (size_t i = 0; i < map.entries.size(); ++i) {
    for (const Region& field : kEntryFields)
      regions.push_back({fmt::format("map of layers, layer {}: {}", i, field.name),
                         map.entries[i] + field.begin, map.entries[i] + field.end});
  }
  regions.push_back({"token ids: checksum", map.tokens, map.attachment});
  regions.push_back({"attachment: checksum", map.attachment, map.pages});
  for (const PagePlace& p : map.places) {
    const std::string name = positions(p, static_cast<int64_t>(header.length)) + ": checksum";
    regions.push_back({name, p.at, p.at + p.bytes});
    regions.push_back({name, p.at + p.bytes, p.at + p.bytes + sizeof(Hash128)});
  }
  return regions;
}

class Damage : public testing::Test {
 protected:
  Damage()
      : checkpoint(open_golden_model("gemma4-e2b-tiny")),
        tokens(tokens_of(golden_case("gemma4-e2b-tiny"))),
        model(model_hash(checkpoint.spec, *checkpoint.tensors)),
        engine(checkpoint.spec, *checkpoint.tensors, {.threads = 1, .max_sequences = 3, .context = 256}),
        source(engine.open()),
        target(engine.open()) {
    feed_all(engine, source, tokens);
    feed_all(engine, source, std::span(tokens).first(25));  // 73 positions: windows begin in the third page
    state = state_of(engine, source, model, "what the caller likes");
    next = feed_last(engine, target, std::span(tokens).first(20));
    before = state_of(engine, target, model);
    in_use = engine.stats().kv_bytes_in_use;
  }
  void TearDown() override {  // whatever was tried, nothing came of it
    EXPECT_EQ(engine.stats().kv_bytes_in_use, in_use);
    EXPECT_EQ(engine.stats().kv_bytes_restored, 0);
    EXPECT_EQ(state_of(engine, target, model), before);
    restore(engine, target, state, model, "state");  // the undamaged one is fine
    EXPECT_EQ(state_of(engine, target, model, "what the caller likes"), state);
  }
  testing::AssertionResult refused(const StateBytes& bytes, std::string_view part,
                                   ErrorCode code = ErrorCode::data) {
    return throws_error([&] { restore(engine, target, bytes, model, "my.state"); }, code, part);
  }
  testing::AssertionResult refused_somehow(const StateBytes& bytes) {
    try {
      restore(engine, target, bytes, model, "my.state");
    } catch (const Error&) {
      return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << "restored";
  }
  template <typename T>
  StateBytes with(size_t at, FunctionRef<void(T&)> change) const {  // sealed again: only the meaning is wrong
    StateBytes bytes = state;
    T record = record_at<T>(bytes, at);
    change(record);
    put_record(std::span(bytes), at, record);
    reseal(bytes);
    return bytes;
  }

  Checkpoint checkpoint;
  Tokens tokens;
  Hash128 model;
  Engine engine;
  int32_t source, target;
  StateBytes state, before;
  std::vector<float> next;
  int64_t in_use = 0;
};

TEST_F(Damage, RegionsCoverTheWholeFile) {
  size_t at = 0;
  for (const Region& region : regions_of(state)) {
    EXPECT_EQ(region.begin, at) << region.name;
    at = region.end;
  }
  EXPECT_EQ(at, state.size());
  StateBytes same = state;
  reseal(same);
  EXPECT_EQ(same, state) << "sealing agrees with the writer";
  const StateMap map = map_state(state);
  EXPECT_EQ(record_at<LayerEntry>(state, map.entries[0]).first, 64u);
  EXPECT_EQ(record_at<LayerEntry>(state, map.entries[4]).first, 0u) << "a global layer";
}

// One bit of every byte of the header and the map, the ids and the attachment; some of every page.
TEST_F(Damage, AFlippedBitIsNamedInEveryRegion) {
  size_t flips = 0;
  for (const Region& region : regions_of(state)) {
    const size_t size = region.end - region.begin, stride = size > 400 ? size / 5 : 1;
    for (size_t at = region.begin; at < region.end; at += stride, ++flips) {
      StateBytes bytes = state;
      bytes[at] ^= std::byte{1} << (flips % 8);
      const ErrorCode code = region.name == "version" ? ErrorCode::unsupported : ErrorCode::data;
      ASSERT_TRUE(refused(bytes, region.name, code)) << "byte " << at << ", bit " << flips % 8;
    }
  }
  EXPECT_GT(flips, 1500u);
}

TEST_F(Damage, RandomFlipsAreAllFound) {
  for (uint64_t i = 0; i < 3000; ++i) {
    StateBytes bytes = state;
    const auto draw = philox(7, 1, i);
    for (uint32_t n = 0; n <= draw[0] % 3; ++n) {
      const auto place = philox(8, n, i);
      bytes[place[0] % bytes.size()] ^= static_cast<std::byte>(1 + place[1] % 255);
    }
    ASSERT_TRUE(bytes == state || refused_somehow(bytes)) << "draw " << i;
  }
}

TEST_F(Damage, ATruncatedFileSaysWhereItEnds) {
  const StateMap map = map_state(state);
  const auto cut = [&](size_t size, const std::string& part) {
    ASSERT_TRUE(refused(StateBytes(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(size)), part))
        << size << " bytes";
  };
  for (const Region& field : kHeaderFields) cut(field.begin, "cut short in the header");
  for (size_t i = 0; i < map.entries.size(); ++i) {
    cut(map.entries[i], fmt::format("cut short in the map of layers, layer {}", i));
    cut(map.entries[i] + 63, fmt::format("cut short in the map of layers, layer {}", i));
  }
  cut(map.tokens, "cut short in the token ids");
  cut(map.attachment - 1, "cut short in the token ids");
  cut(map.attachment, "cut short in the attachment");
  for (const PagePlace& p : map.places) {
    const std::string name = "cut short in " + positions(p, 73);
    cut(p.at, name);
    cut(p.at + p.bytes, name);
    cut(p.at + p.bytes + sizeof(Hash128) - 1, name);
  }
  for (size_t size = 0; size < state.size(); size += 97)
    ASSERT_TRUE(
        refused_somehow(StateBytes(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(size))));
}

TEST_F(Damage, WhatIsAppendedIsCounted) {
  StateBytes bytes = state;
  bytes.push_back(std::byte{0});
  EXPECT_TRUE(refused(bytes, "1 bytes after the end"));
  bytes.insert(bytes.end(), state.begin(), state.end());
  EXPECT_TRUE(refused(bytes, fmt::format("{} bytes after the end", state.size() + 1)));
}

TEST_F(Damage, SwappedPartsAreNamed) {
  const StateMap map = map_state(state);
  const auto swapped = [&](size_t a, size_t b, size_t size) {
    StateBytes bytes = state;
    std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(a),
                     bytes.begin() + static_cast<std::ptrdiff_t>(a + size),
                     bytes.begin() + static_cast<std::ptrdiff_t>(b));
    return bytes;
  };
  EXPECT_TRUE(refused(swapped(map.entries[1], map.entries[2], sizeof(LayerEntry)),
                      "map of layers, layer 1: layer: expected 1, got 2"));
  // The same page of two layers, and two pages of one layer, each with and without its checksum.
  const PagePlace *one = nullptr, *two = nullptr, *later = nullptr;
  for (const PagePlace& p : map.places) {
    if (p.layer == 0 && p.block == 2) one = &p;
    if (p.layer == 1 && p.block == 2) two = &p;
  }
  ASSERT_TRUE(one && two && one->bytes == two->bytes);
  for (const size_t extra : {size_t{0}, sizeof(Hash128)})
    EXPECT_TRUE(
        refused(swapped(one->at, two->at, one->bytes + extra), "layer 0, positions 64 to 72: checksum"));
  one = nullptr;
  for (const PagePlace& p : map.places) {
    if (p.layer == 4 && p.block == 0) one = &p;
    if (p.layer == 4 && p.block == 1) later = &p;
  }
  ASSERT_TRUE(one && later && one->bytes == later->bytes);
  for (const size_t extra : {size_t{0}, sizeof(Hash128)})
    EXPECT_TRUE(
        refused(swapped(one->at, later->at, one->bytes + extra), "layer 4, positions 0 to 31: checksum"));
}

// A page of another sequence of the same model, whole and with a right checksum of its own.
TEST_F(Damage, PartsOfTwoFilesNeverPassForOne) {
  const int32_t other = engine.open();
  Tokens changed = engine.tokens(source).size()
                       ? Tokens(engine.tokens(source).begin(), engine.tokens(source).end())
                       : Tokens();
  changed[70]++;
  feed_all(engine, other, changed);
  const StateBytes theirs = state_of(engine, other, model, "what the caller likes");
  engine.close(other);
  ASSERT_EQ(theirs.size(), state.size());
  const StateMap map = map_state(state);
  const auto spliced = [&](size_t from, size_t to) {
    StateBytes bytes = state;
    std::copy(theirs.begin() + static_cast<std::ptrdiff_t>(from),
              theirs.begin() + static_cast<std::ptrdiff_t>(to),
              bytes.begin() + static_cast<std::ptrdiff_t>(from));
    return bytes;
  };
  const PagePlace& page = map.places[3];
  EXPECT_TRUE(refused(spliced(page.at, page.at + page.bytes + sizeof(Hash128)), positions(page, 73)));
  EXPECT_TRUE(refused(spliced(map.tokens, map.attachment), "token ids: checksum"));
  EXPECT_TRUE(refused(spliced(map.entries[0], map.tokens), "map of layers, layer 0"));
  EXPECT_TRUE(refused(spliced(0, sizeof(Header)), "map of layers, layer 0"));
}

TEST_F(Damage, FieldsThatLieUnderARightChecksumAreNamed) {
  const StateMap map = map_state(state);
  const auto header = [&](FunctionRef<void(Header&)> change) { return with<Header>(0, change); };
  const auto entry = [&](size_t layer, FunctionRef<void(LayerEntry&)> change) {
    return with<LayerEntry>(map.entries[layer], change);
  };
  EXPECT_TRUE(refused(header([](Header& h) { h.length = 257; }),
                      "length: 257 positions exceed the context of 256", ErrorCode::limit));
  EXPECT_TRUE(refused(header([](Header& h) { h.length = ~uint64_t{0}; }),
                      "length: 18446744073709551615 positions", ErrorCode::limit));
  EXPECT_TRUE(refused(header([](Header& h) { h.length = 72; }), "bytes after the end"));
  EXPECT_TRUE(refused(header([](Header& h) { h.length = 30; }),
                      "layer 0: first position: expected a multiple of 32 up to 23, got 64"));
  EXPECT_TRUE(
      refused(header([](Header& h) { h.earliest_restart = 72; }), "earliest restart: expected 71, got 72"));
  EXPECT_TRUE(
      refused(header([](Header& h) { h.attachment_bytes = 1 << 20; }), "cut short in the attachment"));
  EXPECT_TRUE(refused(header([](Header& h) { h.attachment_bytes = ~uint64_t{0}; }),
                      "attachment bytes: 18446744073709551615"));
  EXPECT_TRUE(refused(header([](Header& h) { h.value_dtype = 1; }), "value dtype: expected f32, got bf16",
                      ErrorCode::usage));
  EXPECT_TRUE(refused(header([](Header& h) { h.key_dtype = 77; }), "key dtype: expected f32, got code 77",
                      ErrorCode::usage));
  EXPECT_TRUE(refused(header([](Header& h) { h.arithmetic[0] = '\x1b'; }),
                      "arithmetic: expected \"exact, f32 accumulation\", got \"\\x1bxact",
                      ErrorCode::usage));
  EXPECT_TRUE(
      refused(header([](Header& h) { h.reserved = 9; }), "reserved: expected 0, got 9", ErrorCode::usage));
  EXPECT_TRUE(refused(header([](Header& h) { h.n_layers = 14; }), "number of layers: expected 15, got 14",
                      ErrorCode::usage));
  EXPECT_TRUE(refused(entry(0, [](LayerEntry& e) { e.first = 33; }),
                      "layer 0: first position: expected a multiple of 32 up to 66, got 33"));
  EXPECT_TRUE(refused(entry(0, [](LayerEntry& e) { e.first = 96; }), "layer 0: first position"));
  EXPECT_TRUE(refused(entry(4, [](LayerEntry& e) { e.first = 32; }),
                      "layer 4: first position: expected a multiple of 32 up to 0, got 32"));
  EXPECT_TRUE(refused(entry(14, [](LayerEntry& e) { e.first = 32; }), "layer 14: first position"));
  EXPECT_TRUE(
      refused(entry(12, [](LayerEntry& e) { e.owner = 3; }), "layer 12: owner: expected", ErrorCode::usage));
  EXPECT_TRUE(refused(entry(2, [](LayerEntry& e) { e.kind = 9; }),
                      "layer 2: kind: expected an owner, got code 9", ErrorCode::usage));
  for (const int32_t id : {-1, 320})
    EXPECT_TRUE(refused(with<int32_t>(map.tokens + 4 * 17, [&](int32_t& token) { token = id; }),
                        fmt::format("token ids: position 17: expected 0 to 319, got {}", id)));
}

TEST_F(Damage, WhatIsNoStateIsNamed) {
  EXPECT_TRUE(refused({}, "my.state: damaged: cut short in the header: expected at least 176 bytes, got 0"));
  StateBytes other(4096, std::byte{'G'});
  EXPECT_TRUE(refused(other, "magic: expected a saved state (\"LAPIDKV\\0\"), got \"GGGGGGGG\""));
}

}  // namespace
}  // namespace lapidary::test
