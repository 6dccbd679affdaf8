#include "serve/cache/prefix_cache.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "serve/cache/prefix_cache_impl.h"

namespace lapidary::serve {
namespace {

// Fewer tokens in common are nothing: every text begins with the same BOS.
constexpr int64_t kLeast = 2;

bool any_window(const ModelSpec& spec) {
  for (int64_t i = 0; i < spec.n_layers(); i++) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (layer.owns_kv(i) && layer.attention->window > 0) return true;
  }
  return false;
}

int64_t size_of(std::span<const TokenId> tokens) {
  return static_cast<int64_t>(tokens.size());
}

}  // namespace

PrefixCache::Impl::Impl(Engine& e, const PrefixCacheOptions& o)
    : engine(e), options(o), has_windows(any_window(e.spec())) {
  ensure(o.max_entries >= 0, ErrorCode::usage, "prefix cache: expected at least 0 entries, got {}",
         o.max_entries);
  ensure(o.mark_every >= 1, ErrorCode::usage,
         "prefix cache: expected marks at least 1 position apart, got {}", o.mark_every);
  for (const Reuse reuse : kReuses) counts.prompts[reuse] = 0;
}

PrefixCache::PrefixCache(Engine& engine, const PrefixCacheOptions& options)
    : impl_(std::make_unique<Impl>(engine, options)) {}

PrefixCache::~PrefixCache() {
  for (const auto& [sequence, entry] : impl_->entries) impl_->engine.close(sequence);
}

// ---- look-up ----

PrefixCache::Impl::Lookup PrefixCache::Impl::look_up(std::span<const TokenId> prompt) const {
  Lookup lookup{page_hashes(prompt, page), {}};
  PrefixIndex::Found& found = lookup.found;
  found = index.find(prompt, lookup.hashes, size_of(prompt) - 1);
  if (found.usable.tokens < kLeast) found.usable = {};
  if (found.common < kLeast) found.common = 0;
  return lookup;
}

Reuse PrefixCache::Impl::reason(std::span<const TokenId> prompt, const Lookup& lookup) const {
  const int64_t limit = size_of(prompt) - 1, cached = lookup.found.usable.tokens;
  if (cached > 0 && cached == limit) return Reuse::whole;
  if (evicted.longest(prompt, lookup.hashes, limit) >= std::max(cached + 1, kLeast)) return Reuse::evicted;
  if (lookup.found.common > cached) return Reuse::window_lost;
  if (cached == 0) return Reuse::cold;
  return cached == size_of(index.tokens(lookup.found.usable.sequence)) ? Reuse::extended : Reuse::differs;
}

PrefixCache::Begin PrefixCache::begin(std::span<const TokenId> prompt, bool reuse) {
  Impl& c = *impl_;
  ensure(!prompt.empty(), ErrorCode::usage, "prefix cache: expected a prompt of at least one token");
  Begin begin{.reuse = Reuse::unwanted};
  int32_t from = -1;
  if (reuse && c.options.enabled) {
    const Impl::Lookup lookup = c.look_up(prompt);
    begin.reuse = c.reason(prompt, lookup);
    begin.cached = lookup.found.usable.tokens;
    from = lookup.found.usable.sequence;
  }
  const std::optional<int32_t> sequence =
      c.opened([&] { return from >= 0 ? c.engine.fork(from) : c.engine.open(); }, from);
  ensure(sequence || from >= 0, ErrorCode::limit,
         "no sequence is free for a prompt of {} tokens, and no cached one is left to evict", prompt.size());
  c.begun++;
  if (from >= 0) c.use(c.entries.at(from));
  begin.sequence = sequence.value_or(from);
  if (!sequence) {  // the last one that can be had: it is not kept, but taken
    c.evicted.add(c.index.tokens(from), c.index.hashes(from), c.index.earliest(from));
    c.counts.evictions++;
    c.drop(from, false);
  }
  if (from >= 0) c.engine.trim(begin.sequence, begin.cached);
  c.counts.prompts[begin.reuse]++;
  c.counts.prompt_tokens += size_of(prompt);
  c.counts.cached_tokens += begin.cached;
  return begin;
}

int64_t PrefixCache::would_reuse(std::span<const TokenId> prompt) const {
  return prompt.empty() || !impl_->options.enabled ? 0 : impl_->look_up(prompt).found.usable.tokens;
}

int64_t PrefixCache::next_mark(std::span<const TokenId> prompt, int64_t at) const {
  const Impl& c = *impl_;
  int64_t next = size_of(prompt);
  if (!c.options.enabled || !c.has_windows || at >= next) return next;
  const int64_t step = std::max(c.page, c.options.mark_every / c.page * c.page);
  next = std::min(next, (at / step + 1) * step);
  // Where it parts from what is held: whoever parts there next finds the windows of that point.
  const int64_t branch = c.look_up(prompt).found.common / c.page * c.page;
  return branch > at ? std::min(next, branch) : next;
}

// ---- entries ----

void PrefixCache::Impl::use(Entry& entry) {
  entry.hits++;
  entry.last_use = begun;
  entry.last_time = Clock::now();
}

void PrefixCache::Impl::drop(int32_t sequence, bool close) {
  index.remove(sequence);
  entries.erase(sequence);
  for (auto& [other, entry] : entries)
    if (entry.fallback && entry.fallback->sequence == sequence) entry.fallback.reset();
  if (close) engine.close(sequence);
}

void PrefixCache::Impl::keep(int32_t sequence, std::vector<Hash128> hashes, Entry entry) {
  index.add(sequence, engine.tokens(sequence), std::move(hashes), engine.earliest_restart(sequence));
  for (const int32_t covered : index.covered_by(sequence)) {
    const Entry& old = entries.at(covered);
    entry.hits = std::max(entry.hits, old.hits);
    entry.last_use = std::max(entry.last_use, old.last_use);
    entry.last_time = std::max(entry.last_time, old.last_time);
    drop(covered);
  }
  for (auto& [other, known] : entries) known.fallback.reset();
  entries[sequence] = entry;
  while (std::ssize(entries) > options.max_entries) evict(cheapest(false));
}

bool PrefixCache::Impl::is_covered(int32_t sequence, std::span<const Hash128> hashes) {
  const int32_t by = index.covering(engine.tokens(sequence), hashes, engine.earliest_restart(sequence));
  if (by < 0) return false;
  Entry& entry = entries.at(by);
  entry.last_use = begun;
  entry.last_time = Clock::now();
  return true;
}

void PrefixCache::mark(int32_t sequence) {
  Impl& c = *impl_;
  if (!c.options.enabled || c.options.max_entries == 0 || c.engine.length(sequence) < kLeast) return;
  std::vector<Hash128> hashes = page_hashes(c.engine.tokens(sequence), c.page);
  if (c.is_covered(sequence, hashes)) return;
  const std::optional<int32_t> copy = c.opened([&] { return c.engine.fork(sequence); });
  if (!copy) return;  // every sequence is being computed: none to spare
  c.keep(*copy, std::move(hashes), {.last_use = c.begun, .last_time = Clock::now()});
}

void PrefixCache::give(int32_t sequence) {
  Impl& c = *impl_;
  std::vector<Hash128> hashes = page_hashes(c.engine.tokens(sequence), c.page);
  if (!c.options.enabled || c.options.max_entries == 0 || c.engine.length(sequence) < kLeast ||
      c.is_covered(sequence, hashes)) {
    c.engine.close(sequence);
    return;
  }
  c.keep(sequence, std::move(hashes), {.last_use = c.begun, .last_time = Clock::now()});
}

void PrefixCache::clear() {
  while (!impl_->entries.empty()) impl_->drop(impl_->entries.begin()->first);
  impl_->evicted.clear();
}

// ---- eviction ----

double PrefixCache::Impl::loss(int32_t sequence, Entry& entry) {
  const std::span<const TokenId> tokens = index.tokens(sequence);
  if (!entry.fallback)
    entry.fallback = index.find(tokens, index.hashes(sequence), size_of(tokens), sequence).usable;
  const auto again = static_cast<double>(size_of(tokens) - entry.fallback->tokens);
  return again * static_cast<double>(1 + entry.hits) / static_cast<double>(1 + begun - entry.last_use);
}

int32_t PrefixCache::Impl::cheapest(bool per_byte, int32_t but) {
  // Those that free nothing come last where bytes are wanted; ties go to what is longest unused, then by
  // number.
  using Rank = std::tuple<bool, double, int64_t, int32_t>;
  std::optional<Rank> least;
  for (auto& [sequence, entry] : entries) {
    if (sequence == but) continue;
    const int64_t bytes = per_byte ? engine.kv_bytes_of_its_own(sequence) : 1;
    const double price = loss(sequence, entry) / static_cast<double>(std::max<int64_t>(1, bytes));
    const Rank rank{bytes == 0, price, entry.last_use, sequence};
    if (!least || rank < *least) least = rank;
  }
  return least ? std::get<3>(*least) : -1;
}

void PrefixCache::Impl::evict(int32_t sequence) {
  evicted.add(index.tokens(sequence), index.hashes(sequence), index.earliest(sequence));
  counts.evictions++;
  drop(sequence);
}

int64_t PrefixCache::Impl::freeable() const {
  struct Page {
    int32_t here = 0, holders = 0;
  };
  std::array<std::vector<Page>, 2> pools;  // by the number of a page
  std::array<int64_t, 2> page_bytes{};
  for (const auto& [sequence, entry] : entries)
    engine.for_each_page(sequence, [&](const KvPageView& view) {
      std::vector<Page>& pages = pools[view.sliding];
      page_bytes[view.sliding] = view.pool_bytes;
      const auto number = static_cast<size_t>(view.pool_offset / view.pool_bytes);
      if (pages.size() <= number) pages.resize(number + 1);
      pages[number].here++;
      pages[number].holders = static_cast<int32_t>(view.holders);
    });
  int64_t bytes = 0;
  for (size_t pool = 0; pool < pools.size(); pool++)
    for (const Page& held : pools[pool])
      if (held.here > 0 && held.here == held.holders) bytes += page_bytes[pool];
  return bytes;
}

bool PrefixCache::make_room(int64_t bytes) {
  Impl& c = *impl_;
  const auto is_enough = [&] { return c.engine.kv_room().free() >= bytes; };
  if (is_enough()) return true;
  int64_t at_least = c.engine.kv_room().free();  // quick to tell, and most often enough
  for (const auto& [sequence, entry] : c.entries) at_least += c.engine.kv_bytes_of_its_own(sequence);
  if (at_least < bytes && c.engine.kv_room().free() + c.freeable() < bytes) return false;
  while (!is_enough()) c.evict(c.cheapest(true));
  return true;
}

PrefixStats PrefixCache::stats() const {
  PrefixStats stats = impl_->counts;
  stats.entries = std::ssize(impl_->entries);
  stats.bytes = impl_->freeable();
  return stats;
}

std::vector<PrefixEntryView> PrefixCache::entries() const {
  const Impl& c = *impl_;
  std::vector<PrefixEntryView> views;
  for (const auto& [sequence, entry] : c.entries)
    views.push_back({.sequence = sequence,
                     .tokens = c.engine.length(sequence),
                     .bytes = c.engine.kv_bytes_of_its_own(sequence),
                     .hits = entry.hits,
                     .idle_seconds = std::chrono::duration<double>(Clock::now() - entry.last_time).count()});
  return views;
}

}  // namespace lapidary::serve
