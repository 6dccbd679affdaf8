#include "serve/cache/prefix_index.h"

#include <algorithm>
#include <utility>

namespace lapidary::serve {
namespace {

// Tokens that the two have in common, from `from` on.
int64_t common_from(std::span<const TokenId> a, std::span<const TokenId> b, size_t from) {
  const size_t n = std::min(a.size(), b.size());
  if (from >= n) return static_cast<int64_t>(n);
  const auto offset = static_cast<std::ptrdiff_t>(from);
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(n);
  return std::mismatch(a.begin() + offset, end, b.begin() + offset).first - a.begin();
}

bool starts_with(std::span<const TokenId> text, std::span<const TokenId> prefix) {
  return text.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), text.begin());
}

}  // namespace

void PrefixIndex::add(int32_t sequence, std::span<const TokenId> tokens, std::vector<Hash128> hashes,
                      int64_t earliest) {
  for (const Hash128& hash : hashes) at_[hash].push_back(sequence);
  held_[sequence] = {tokens, std::move(hashes), earliest};
}

void PrefixIndex::remove(int32_t sequence) {
  const auto held = held_.find(sequence);
  for (const Hash128& hash : held->second.hashes) {
    const auto list = at_.find(hash);
    std::erase(list->second, sequence);
    if (list->second.empty()) at_.erase(list);
  }
  held_.erase(held);
}

PrefixIndex::Found PrefixIndex::find(std::span<const TokenId> tokens, std::span<const Hash128> hashes,
                                     int64_t limit, int32_t but) const {
  size_t levels = 0;  // with somebody at each: who has one border has all before it
  while (levels < hashes.size() && at_.contains(hashes[levels])) levels++;
  Found found;
  bool whole = false;  // the usable match is all of its sequence
  for (size_t level = levels; level-- > 0;) {
    for (const int32_t sequence : at_.at(hashes[level])) {
      const Held& held = held_.at(sequence);
      const bool seen =
          level + 1 < levels && level + 1 < held.hashes.size() && held.hashes[level + 1] == hashes[level + 1];
      if (sequence == but || seen) continue;
      const auto length = [&](size_t from) {
        return std::min(limit, common_from(tokens, held.tokens, from));
      };
      const auto better = [&](int64_t n) {
        const bool all = n == static_cast<int64_t>(held.tokens.size());
        return n >= held.earliest &&
               (n > found.usable.tokens || (n > 0 && n == found.usable.tokens && all && !whole));
      };
      int64_t n = length(level * static_cast<size_t>(page_));
      if (n <= found.common && !better(n)) continue;
      n = length(0);  // the hash said so; now the tokens
      if (n > found.common) {
        found.common = n;
        found.alike = sequence;
      }
      if (!better(n)) continue;
      found.usable = {sequence, n};
      whole = n == static_cast<int64_t>(held.tokens.size());
    }
    if (found.usable.tokens >= static_cast<int64_t>(level) * page_ - 1) break;  // the others have less
  }
  return found;
}

int32_t PrefixIndex::covering(std::span<const TokenId> tokens, std::span<const Hash128> hashes,
                              int64_t earliest) const {
  const auto list = at_.find(hashes.back());
  if (list == at_.end()) return -1;
  for (const int32_t sequence : list->second) {
    const Held& held = held_.at(sequence);
    if (held.earliest <= earliest && starts_with(held.tokens, tokens)) return sequence;
  }
  return -1;
}

bool PrefixIndex::begins_with(const Held& text, const Held& prefix) {
  const size_t border = prefix.hashes.size() - 1;
  return border < text.hashes.size() && text.hashes[border] == prefix.hashes[border] &&
         starts_with(text.tokens, prefix.tokens);
}

std::vector<int32_t> PrefixIndex::longer(int32_t sequence) const {
  std::vector<int32_t> longer;
  for (const int32_t other : at_.at(hashes(sequence).back()))
    if (other != sequence && begins_with(held_.at(other), held_.at(sequence))) longer.push_back(other);
  return longer;
}

std::vector<int32_t> PrefixIndex::shorter(int32_t sequence) const {
  std::vector<int32_t> shorter;
  for (const auto& [other, held] : held_)
    if (other != sequence && begins_with(held_.at(sequence), held)) shorter.push_back(other);
  return shorter;
}

std::vector<int32_t> PrefixIndex::covered_by(int32_t sequence) const {
  std::vector<int32_t> covered = shorter(sequence);
  std::erase_if(covered, [&](int32_t other) { return earliest(sequence) > earliest(other); });
  return covered;
}

void EvictedPrefixes::add(std::span<const TokenId> tokens, std::span<const Hash128> hashes,
                          int64_t earliest) {
  const auto length = static_cast<int64_t>(tokens.size());
  for (size_t i = 1; i < hashes.size(); i++) {
    const int64_t border = static_cast<int64_t>(i) * page_;
    if (border >= earliest && border < length) remember(hashes[i], {border, hashes[i]});
  }
  const size_t last = hashes.size() - 1;
  const auto tail = tokens.subspan(last * static_cast<size_t>(page_));
  remember(hashes[last], {length, tail.empty() ? hashes[last] : prefix_hash(hashes[last], tail)});
}

void EvictedPrefixes::remember(const Hash128& border, const Prefix& prefix) {
  std::vector<Prefix>& list = at_[border];
  for (const Prefix& known : list)
    if (known.length == prefix.length && known.hash == prefix.hash) return;
  list.push_back(prefix);
  order_.emplace_back(border, prefix);
  if (order_.size() <= most_) return;
  const auto oldest = at_.find(order_.front().first);
  std::erase_if(oldest->second, [&](const Prefix& known) {
    return known.length == order_.front().second.length && known.hash == order_.front().second.hash;
  });
  if (oldest->second.empty()) at_.erase(oldest);
  order_.pop_front();
}

int64_t EvictedPrefixes::longest(std::span<const TokenId> tokens, std::span<const Hash128> hashes,
                                 int64_t limit) const {
  int64_t longest = 0;
  for (size_t i = 0; i < hashes.size(); i++) {
    const auto list = at_.find(hashes[i]);
    if (list == at_.end()) continue;
    const int64_t border = static_cast<int64_t>(i) * page_;
    for (const Prefix& known : list->second) {
      if (known.length <= longest || known.length > limit) continue;
      const auto tail =
          tokens.subspan(static_cast<size_t>(border), static_cast<size_t>(known.length - border));
      if (known.hash == (tail.empty() ? hashes[i] : prefix_hash(hashes[i], tail))) longest = known.length;
    }
  }
  return longest;
}

void EvictedPrefixes::clear() {
  at_.clear();
  order_.clear();
}

}  // namespace lapidary::serve
