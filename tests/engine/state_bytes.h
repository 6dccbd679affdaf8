// Saved states for tests: taken from an engine, cut into their named regions, and sealed again after a change
// so that a reader has to find what is wrong without the help of a checksum.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/kv_state.h"

namespace lapidary::test {

using StateBytes = std::vector<std::byte>;

inline StateBytes state_of(const Engine& engine, int32_t sequence, const Hash128& model,
                           std::string_view attachment = "") {
  StateBytes bytes;
  engine.save(sequence, model, std::as_bytes(std::span(attachment)),
              [&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
  return bytes;
}

// Returns the attachment.
inline std::string restore(Engine& engine, int32_t sequence, const StateBytes& state, const Hash128& model,
                           std::string_view name = "state") {
  std::string attachment;
  engine.restore(sequence, state, model, name, [&](std::span<const std::byte> bytes) {
    attachment.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return attachment;
}

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

struct Region {
  std::string name;  // what a message about its damage must say
  size_t begin = 0, end = 0;
};

struct PagePlace {
  int64_t layer = 0, block = 0;
  size_t at = 0, bytes = 0;  // the checksum follows
};

// Where the parts of a state lie, from its own numbers. Follows them no further than the bytes reach.
struct StateMap {
  std::vector<size_t> entries;
  size_t tokens = 0, attachment = 0, pages = 0;
  std::vector<PagePlace> places;
};

inline StateMap map_state(std::span<const std::byte> bytes) {
  using namespace kv_state;
  StateMap map;
  if (bytes.size() < sizeof(Header)) return map;
  const Header h = record_at<Header>(bytes, 0);
  size_t at = sizeof(Header);
  for (uint32_t i = 0; i < h.n_layers && bytes.size() - at >= sizeof(LayerEntry);
       ++i, at += sizeof(LayerEntry))
    map.entries.push_back(at);
  map.tokens = at;
  if (h.length > (bytes.size() - at) / 4) return map;
  map.attachment = at + h.length * 4;
  if (h.attachment_bytes > bytes.size() - map.attachment || h.block == 0 || h.block > 1024) return map;
  map.pages = at = map.attachment + h.attachment_bytes;
  for (const size_t entry : map.entries) {
    const auto e = record_at<LayerEntry>(bytes, entry);
    if (e.kind != kOwner || e.n_kv_heads > 4096 || e.head_dim > 4096) continue;
    const size_t position = size_t{2} * e.n_kv_heads * e.head_dim * (h.key_dtype == 1 ? 2 : 4);
    for (uint64_t first = e.first; first < h.length; first += h.block) {
      const size_t size = std::min<uint64_t>(h.block, h.length - first) * position;
      if (size + sizeof(Hash128) > bytes.size() - at) return map;
      map.places.push_back({int64_t{e.layer}, static_cast<int64_t>(first / h.block), at, size});
      at += size + sizeof(Hash128);
    }
  }
  return map;
}

// Makes every checksum right for what the bytes say.
inline void reseal(std::span<std::byte> bytes) {
  using namespace kv_state;
  const StateMap map = map_state(bytes);
  if (bytes.size() < sizeof(Header)) return;
  auto h = record_at<Header>(bytes, 0);
  if (map.attachment > 0) h.tokens_hash = hash128(bytes.subspan(map.tokens, map.attachment - map.tokens));
  if (map.pages > 0) h.attachment_hash = hash128(bytes.subspan(map.attachment, h.attachment_bytes));
  h.hash = hash128(hashed_part(h));
  put_record(bytes, 0, h);
  for (const size_t at : map.entries) {
    auto entry = record_at<LayerEntry>(bytes, at);
    entry.hash = entry_hash(h.hash, entry);
    put_record(bytes, at, entry);
  }
  for (const PagePlace& p : map.places)
    put_record(bytes, p.at + p.bytes, page_hash(h.hash, p.layer, p.block, bytes.subspan(p.at, p.bytes)));
}

}  // namespace lapidary::test
