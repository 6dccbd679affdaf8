// The prefix cache: sequences of the engine that were computed before and are kept, so that a prompt that
// begins like one of them begins with its pages. An entry is a fork: it shares pages with whoever goes on
// from it, and costs the pages that nobody else holds. Layers with a window can go on only from a length
// whose window is still held, so entries are left at useful points (mark). Used by the scheduler's thread
// only.
//
// What is evicted first is what loses least: the tokens that would have to be computed again, times how
// likely that is, per byte that only this entry holds:
//
//   (tokens - tokens that another entry could serve instead) * (1 + hits) / (1 + age) / bytes
//
// where age counts the prompts begun since its last use. Where sequences are short, and not bytes, without
// the division by bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/engine.h"
#include "serve/job.h"
#include "serve/state_store.h"

namespace lapidary::serve {

struct PrefixCacheOptions {
  bool enabled = true;
  int64_t max_entries = 64;   // sequences that it may keep open
  int64_t mark_every = 1024;  // positions between the marks that a long prompt leaves in models with windows
};

struct PrefixStats {
  std::map<Reuse, int64_t> prompts;  // by outcome
  int64_t prompt_tokens = 0, cached_tokens = 0;
  int64_t evictions = 0, entries = 0;
  int64_t bytes = 0;  // that evicting all entries would free
  int64_t restored_entries = 0, restored_tokens = 0, refused_states = 0;  // by load()
};

struct PrefixEntryView {  // for GET /v1/kv
  int32_t sequence = 0;
  int64_t tokens = 0, bytes = 0, hits = 0;
  double idle_seconds = 0;
};

class PrefixCache {
 public:
  // REQUIRES: the engine outlives it and has more sequences than max_entries.
  PrefixCache(Engine& engine, const PrefixCacheOptions& options);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;

  struct Begin {
    int32_t sequence = 0;  // open, and the caller's; holds the first `cached` tokens of the prompt
    int64_t cached = 0;    // never all of the prompt
    Reuse reuse = Reuse::cold;
  };
  // A sequence to compute the prompt in. Evicts when no sequence is free; Error(limit) when none can be had.
  Begin begin(std::span<const TokenId> prompt, bool reuse);
  // What begin() would find, without taking it: for the order in which prompts are computed.
  int64_t would_reuse(std::span<const TokenId> prompt) const;
  // The first length past `at` at which the prompt's computation should pause for mark(); its whole length
  // when there is none before.
  int64_t next_mark(std::span<const TokenId> prompt, int64_t at) const;
  // The sequence stands at a useful point: keep it as it is now, if that is worth its pages.
  void mark(int32_t sequence);
  // Takes over a sequence that its owner is done with: an entry, or closed.
  void give(int32_t sequence);
  // Evicts, cheapest loss first, until `bytes` of the engine's KV room are free. False: evicting everything
  // would not do; then nothing is evicted.
  bool make_room(int64_t bytes);
  void clear();

  // Entries as states, each in a blob of its own: sequences that no longer one begins with, the last mark
  // before the end of each, and marks that were of use. Those that the store has already are not written
  // again, those of entries that are gone are removed. Returns the tokens that the store now holds. Errors of
  // the store.
  int64_t save(StateStore& store, const Hash128& model);
  // What of the store goes with this model and fits. A blob that does not (damaged, another model, another
  // arithmetic) is left alone, counted and reported; it never stops the server.
  using Report = FunctionRef<void(const std::string& name, const std::string& problem)>;
  void load(StateStore& store, const Hash128& model, Report report);

  PrefixStats stats() const;
  std::vector<PrefixEntryView> entries() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lapidary::serve
