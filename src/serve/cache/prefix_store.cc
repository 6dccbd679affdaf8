// The prefix cache's life across restarts: an entry is a blob of its own, a state of the engine with a small
// record attached.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <tuple>
#include <type_traits>

#include "base/error.h"
#include "serve/cache/prefix_cache_impl.h"

namespace lapidary::serve {
namespace {

struct Attachment {  // little-endian, as kv_state.h
  char magic[4] = {'L', 'P', 'F', 'X'};
  uint32_t version = 1;
  uint64_t hits = 0, idle_seconds = 0;
};
static_assert(sizeof(Attachment) == 24 && std::is_trivially_copyable_v<Attachment>);

Attachment read_attachment(std::span<const std::byte> bytes, const std::string& name) {
  const Attachment expected;
  Attachment got;
  ensure(bytes.size() == sizeof got, ErrorCode::data,
         "{}: expected a record of the prefix cache of {} bytes attached, got {} bytes", name, sizeof got,
         bytes.size());
  std::memcpy(&got, bytes.data(), sizeof got);
  ensure(std::memcmp(got.magic, expected.magic, sizeof got.magic) == 0, ErrorCode::data,
         "{}: what is attached is no record of the prefix cache", name);
  ensure(got.version == expected.version, ErrorCode::unsupported,
         "{}: expected a record of the prefix cache of version {}, got version {}", name, expected.version,
         got.version);
  constexpr uint64_t kMost = uint64_t{1} << 40;
  ensure(got.hits < kMost && got.idle_seconds < kMost, ErrorCode::data,
         "{}: expected hits and seconds below {}, got {} and {}", name, kMost, got.hits, got.idle_seconds);
  return got;
}

// States of one model in one arithmetic have names that begin alike; the rest is of the tokens.
std::string group_name(const Engine& engine, const Hash128& model) {
  const std::string mode = engine.numeric_mode();
  const Hash128 hash = Hasher().add(model).add(mode.substr(0, mode.find(';'))).digest();
  return hash_text(hash).substr(0, 16) + "-";
}

std::string blob_name(const std::string& group, std::span<const TokenId> tokens) {
  return group + hash_text(hash128(std::as_bytes(tokens)));
}

}  // namespace

// A blob holds all of its tokens, also those that other blobs hold. So a mark gets one only when it was of
// use before, or is the last one before an end: the prompt of the last answer. In the order of use, the
// latest last.
std::vector<int32_t> PrefixCache::Impl::worth_a_blob() const {
  std::set<int32_t> worth;
  for (const auto& [sequence, entry] : entries) {
    if (entry.hits > 0) worth.insert(sequence);
    if (!index.longer(sequence).empty()) continue;
    worth.insert(sequence);
    int32_t last = -1;
    for (const int32_t shorter : index.shorter(sequence))
      if (last < 0 || index.tokens(shorter).size() > index.tokens(last).size()) last = shorter;
    if (last >= 0) worth.insert(last);
  }
  std::vector<int32_t> order(worth.begin(), worth.end());
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::tuple(entries.at(a).last_use, index.tokens(a).size(), a) <
           std::tuple(entries.at(b).last_use, index.tokens(b).size(), b);
  });
  return order;
}

int64_t PrefixCache::save(StateStore& store, const Hash128& model) {
  Impl& c = *impl_;
  const std::string group = group_name(c.engine, model);
  const std::vector<int32_t> saved = c.worth_a_blob();
  std::set<std::string> wanted;
  for (const int32_t sequence : saved) wanted.insert(blob_name(group, c.index.tokens(sequence)));
  std::set<std::string> there;
  for (const std::string& name : store.names()) {
    if (!name.starts_with(group) || c.refused.contains(name)) continue;
    if (wanted.contains(name)) {
      there.insert(name);
    } else {
      store.remove(name);
    }
  }
  int64_t tokens = 0;
  for (const int32_t sequence : saved) {
    tokens += c.engine.length(sequence);
    const std::string name = blob_name(group, c.index.tokens(sequence));
    if (there.contains(name)) continue;
    const Impl::Entry& entry = c.entries.at(sequence);
    const auto idle = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - entry.last_time);
    const Attachment attached{.hits = static_cast<uint64_t>(entry.hits),
                              .idle_seconds = static_cast<uint64_t>(idle.count())};
    store.write(name, [&](StateStore::Sink sink) {
      c.engine.save(sequence, model, std::as_bytes(std::span(&attached, 1)), sink);
    });
    c.refused.erase(name);
  }
  return tokens;
}

void PrefixCache::load(StateStore& store, const Hash128& model, Report report) {
  Impl& c = *impl_;
  if (!c.options.enabled) return;
  std::set<std::string> held;
  int64_t restored = 0;  // the newest count as used last
  const std::string group = group_name(c.engine, model);
  for (const auto& [sequence, entry] : c.entries) held.insert(blob_name(group, c.index.tokens(sequence)));
  for (const std::string& name : store.names()) {
    if (held.contains(name)) continue;
    std::optional<int32_t> sequence;
    try {
      if (std::ssize(c.entries) >= c.options.max_entries)
        fail(ErrorCode::limit, "{}: the prefix cache has its {} entries", name, c.options.max_entries);
      sequence = c.engine.open();
      Attachment attached;
      store.read(name, [&](std::span<const std::byte> state) {
        c.engine.restore(*sequence, state, model, name,
                         [&](std::span<const std::byte> bytes) { attached = read_attachment(bytes, name); });
      });
      std::vector<Hash128> hashes = page_hashes(c.engine.tokens(*sequence), c.page);
      if (c.is_covered(*sequence, hashes)) {
        c.engine.close(*sequence);
        continue;
      }
      // Other states bring the same beginnings: they are held once.
      const std::span<const TokenId> tokens = c.engine.tokens(*sequence);
      const int32_t like = c.index.find(tokens, hashes, std::ssize(tokens)).alike;
      if (like >= 0) c.engine.share_pages(*sequence, like);
      c.counts.restored_entries++;
      c.counts.restored_tokens += std::ssize(tokens);
      c.keep(*sequence, std::move(hashes),
             {.hits = static_cast<int64_t>(attached.hits),
              .last_use = c.begun - restored++,
              .last_time = Clock::now() - std::chrono::seconds(attached.idle_seconds)});
    } catch (const Error& error) {
      if (sequence) c.engine.close(*sequence);
      c.counts.refused_states++;
      if (error.code() != ErrorCode::limit) c.refused.insert(name);
      report(name, error.what());
    }
  }
}

}  // namespace lapidary::serve
