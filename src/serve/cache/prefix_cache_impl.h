// What the files of the prefix cache share; for nobody else.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "serve/cache/prefix_cache.h"
#include "serve/cache/prefix_index.h"

namespace lapidary::serve {

struct PrefixCache::Impl {
  struct Entry {
    int64_t hits = 0;
    int64_t last_use = 0;  // prompts begun until then
    Clock::time_point last_time;
    std::optional<PrefixIndex::Match> fallback;  // what could serve its beginning instead, once known
  };

  Engine& engine;
  const PrefixCacheOptions options;
  const int64_t page = Engine::kv_page_positions();
  const bool has_windows;
  PrefixIndex index{page};
  EvictedPrefixes evicted{page};
  std::map<int32_t, Entry> entries;  // by sequence
  int64_t begun = 0;                 // prompts
  PrefixStats counts;                // what only grows
  std::set<std::string> refused;     // blobs that load() could not use: save() leaves them alone

  Impl(Engine& e, const PrefixCacheOptions& o);

  // A look-up with what it was made from.
  struct Lookup {
    std::vector<Hash128> hashes;
    PrefixIndex::Found found;
  };
  Lookup look_up(std::span<const TokenId> prompt) const;
  Reuse reason(std::span<const TokenId> prompt, const Lookup& lookup) const;

  // Makes an entry of an open sequence, and drops what it covers. REQUIRES: not covered itself.
  void keep(int32_t sequence, std::vector<Hash128> hashes, Entry entry);
  // Counts as a use of what holds all of the sequence's tokens already; false when nothing does.
  bool is_covered(int32_t sequence, std::span<const Hash128> hashes);
  void use(Entry& entry);
  void drop(int32_t sequence, bool close = true);

  std::vector<int32_t> worth_a_blob() const;

  // The entry whose loss is least; -1 without entries. `but` is spared.
  int32_t cheapest(bool per_byte, int32_t but = -1);
  void evict(int32_t sequence);
  double loss(int32_t sequence, Entry& entry);
  int64_t freeable() const;  // bytes that evicting all entries would free
  // f() opens a sequence; evicts while none is free. Nothing when none can be had.
  template <typename F>
  std::optional<int32_t> opened(F&& f, int32_t but = -1) {
    while (true) {
      try {
        return f();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::limit) throw;
      }
      const int32_t victim = cheapest(false, but);
      if (victim < 0) return std::nullopt;
      evict(victim);
    }
  }
};

}  // namespace lapidary::serve
