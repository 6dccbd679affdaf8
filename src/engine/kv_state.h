// A sequence of the cache as bytes: tokens and the live K and V of every owner, checked down to the page.
// docs/formats.md has the page of prose; this file has the layout, which writer and reader share.
//
//   Header | LayerEntry [n_layers] | token ids, i32 [length] | attachment | pages
//
// Pages: per owner in order of layers, per block in order of positions, as KvCache::copy_out packs it, then
// its Hash128. Little-endian. Every checksum but the header's own starts from the header's, so parts of two
// files never pass for one.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/function_ref.h"
#include "base/hash.h"
#include "engine/kv_cache.h"
#include "spec/model_spec.h"

namespace lapidary {

namespace kv_state {

static_assert(std::endian::native == std::endian::little, "the structs below are written as they lie");

inline constexpr char kMagic[8] = {'L', 'A', 'P', 'I', 'D', 'K', 'V', '\0'};
inline constexpr uint32_t kVersion = 2, kByteOrder = 0x01020304;

struct Header {
  char magic[8] = {};
  uint32_t version = 0, byte_order = 0;
  Hash128 model;             // model_hash()
  char arithmetic[48] = {};  // numeric mode without what leaves the bits alone; filled up with NUL
  uint32_t key_dtype = 0, value_dtype = 0;  // dtype_code()
  uint32_t block = 0;                       // positions of a page: kBlock
  uint32_t n_layers = 0, vocab_size = 0, reserved = 0;
  uint64_t length = 0;            // positions, as many as token ids
  uint64_t earliest_restart = 0;  // the sequence may be cut to 0 and to lengths from here on
  uint64_t attachment_bytes = 0;
  Hash128 tokens_hash, attachment_hash;  // of the bytes alone
  Hash128 hash;                          // of all the fields above
};

struct LayerEntry {
  uint32_t layer = 0;  // its own number
  uint32_t kind = 0;   // LayerKind
  uint32_t owner = 0;  // whose K and V it reads
  uint32_t n_kv_heads = 0, head_dim = 0, rope_kind = 0;
  uint64_t window = 0;
  double rope_theta = 0;
  uint64_t first = 0;  // the first position that the pages hold; a multiple of `block`; 0 without pages
  Hash128 hash;        // of the header's hash and the fields above
};

enum LayerKind : uint32_t { kNoAttention = 0, kOwner = 1, kBorrower = 2 };

static_assert(sizeof(Header) == 176 && sizeof(LayerEntry) == 64);
static_assert(std::is_trivially_copyable_v<Header> && std::is_trivially_copyable_v<LayerEntry>);

template <typename T>
std::span<const std::byte> bytes_of(const T& record) {
  return std::as_bytes(std::span(&record, 1));
}
// A record without the checksum at its end.
template <typename T>
std::span<const std::byte> hashed_part(const T& record) {
  return bytes_of(record).first(sizeof(T) - sizeof(Hash128));
}
Hash128 entry_hash(const Hash128& header, const LayerEntry& entry);
Hash128 page_hash(const Hash128& header, int64_t layer, int64_t block, std::span<const std::byte> packed);

}  // namespace kv_state

// What a state belongs to.
struct StateKey {
  const ModelSpec& spec;
  Hash128 model;
  std::string_view arithmetic;  // at most 48 characters
};

// The header and the layer map that a state of this cache has; lengths, positions and checksums are left 0.
struct StateFrame {
  kv_state::Header header;
  std::vector<kv_state::LayerEntry> layers;
};
StateFrame expected_frame(const KvCache& cache, const StateKey& key);

void write_state(const KvCache& cache, int32_t sequence, const StateKey& key,
                 std::span<const std::byte> attachment, FunctionRef<void(std::span<const std::byte>)> sink);

// Checks every byte, shows the attachment to `accept`, and only then replaces the contents of the sequence.
// Errors as Engine::restore. Returns the bytes of K and V that the sequence now holds.
int64_t read_state(KvCache& cache, int32_t sequence, const StateKey& key, std::span<const std::byte> state,
                   std::string_view name, FunctionRef<void(std::span<const std::byte>)> accept);

}  // namespace lapidary
