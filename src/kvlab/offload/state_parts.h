// Where the parts of a saved state lie (engine/kv_state.h), so that the lab can hash, poison and damage them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/kv_types.h"
#include "engine/engine.h"
#include "engine/kv_state.h"

namespace lapidary::kvlab {

struct PagePart {
  int64_t layer = 0, block = 0, positions = 0;
  int64_t n_kv_heads = 0, head_dim = 0;
  size_t at = 0, bytes = 0;  // in the state; the checksum follows
  size_t end() const { return at + bytes + sizeof(Hash128); }
};

struct StateParts {
  kv_state::Header header;
  std::vector<kv_state::LayerEntry> entries;
  KvTypes types;
  size_t tokens_at = 0, attachment_at = 0, pages_at = 0;
  std::vector<PagePart> pages;
  bool whole = false;  // the parts fill the bytes exactly
  size_t entry_at(size_t layer) const {
    return sizeof(kv_state::Header) + layer * sizeof(kv_state::LayerEntry);
  }
};

// From the state's own numbers, followed no further than the bytes reach: any bytes may be given.
StateParts parts_of(std::span<const std::byte> state);

// Makes every checksum right for what the bytes say: what a reader can still find is wrong in its meaning.
void seal(std::span<std::byte> state);

// The same state, sealed, with every K and V a NaN of its type (q8: the scales). REQUIRES: a whole state.
std::vector<std::byte> poisoned(std::span<const std::byte> state);

// K and V of one page apart, without padding, heads in order: codes, then scales.
struct PageHash {
  int64_t layer = 0, first = 0, positions = 0, kv_bytes = 0;
  Hash128 keys, values;
  bool operator==(const PageHash&) const = default;
};
std::vector<PageHash> page_hashes(std::span<const std::byte> state, const StateParts& parts);
// The same of the pages of a sequence as they lie in the cache, whatever wrote them.
std::vector<PageHash> page_hashes(const Engine& engine, int32_t sequence, const KvTypes& types);

template <typename T>
T record_at(std::span<const std::byte> bytes, size_t at) {
  T record;
  std::memcpy(&record, bytes.data() + at, sizeof record);
  return record;
}
template <typename T>
void put_record(std::span<std::byte> bytes, size_t at, const T& record) {
  std::memcpy(bytes.data() + at, &record, sizeof record);
}

}  // namespace lapidary::kvlab
