// Which of the sequences that are kept begins like a text, and how far: a table from the hash at each border
// of pages to the sequences that have it, so that a look-up compares tokens of the deepest ones only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "serve/cache/page_hashes.h"

namespace lapidary::serve {

class PrefixIndex {
 public:
  explicit PrefixIndex(int64_t page) : page_(page) {}

  // `tokens` must stay where they are until remove(). The sequence can go on from its lengths `earliest` and
  // up (Engine::earliest_restart).
  void add(int32_t sequence, std::span<const TokenId> tokens, std::vector<Hash128> hashes, int64_t earliest);
  void remove(int32_t sequence);

  struct Match {
    int32_t sequence = -1;
    int64_t tokens = 0;
  };
  struct Found {
    Match usable;        // the longest prefix, of at most `limit` tokens, that one can go on from
    int64_t common = 0;  // the longest that one has, whether it can or not; at most `limit`
    int32_t alike = -1;  // which has that
  };
  // `hashes`: page_hashes(tokens). `but`: a sequence to look past.
  Found find(std::span<const TokenId> tokens, std::span<const Hash128> hashes, int64_t limit,
             int32_t but = -1) const;

  // The sequence that begins with all of these tokens and can go on from each length that `earliest` allows;
  // -1 when there is none.
  int32_t covering(std::span<const TokenId> tokens, std::span<const Hash128> hashes, int64_t earliest) const;
  // The sequences that this one makes superfluous in the same way.
  std::vector<int32_t> covered_by(int32_t sequence) const;

  std::vector<int32_t> longer(int32_t sequence) const;   // those that begin with all of its tokens
  std::vector<int32_t> shorter(int32_t sequence) const;  // those that it begins with

  std::span<const TokenId> tokens(int32_t sequence) const { return held_.at(sequence).tokens; }
  std::span<const Hash128> hashes(int32_t sequence) const { return held_.at(sequence).hashes; }
  int64_t earliest(int32_t sequence) const { return held_.at(sequence).earliest; }

 private:
  struct Held {
    std::span<const TokenId> tokens;
    std::vector<Hash128> hashes;
    int64_t earliest = 0;
  };
  static bool begins_with(const Held& text, const Held& prefix);

  int64_t page_;
  std::map<int32_t, Held> held_;
  std::unordered_map<Hash128, std::vector<int32_t>, HashOfHash> at_;  // never an empty list
};

// What was evicted lately, as hashes of the prefixes that it could have served; bounded, the oldest go first.
class EvictedPrefixes {
 public:
  explicit EvictedPrefixes(int64_t page, size_t most = 16384) : page_(page), most_(most) {}
  // The lengths from `earliest` on that end a page, and the whole.
  void add(std::span<const TokenId> tokens, std::span<const Hash128> hashes, int64_t earliest);
  // The longest prefix of at most `limit` tokens that is remembered; 0: none.
  int64_t longest(std::span<const TokenId> tokens, std::span<const Hash128> hashes, int64_t limit) const;
  void clear();

 private:
  struct Prefix {
    int64_t length = 0;
    Hash128 hash;
  };
  void remember(const Hash128& border, const Prefix& prefix);
  int64_t page_;
  size_t most_;
  std::unordered_map<Hash128, std::vector<Prefix>, HashOfHash> at_;  // by the last border before their ends
  std::deque<std::pair<Hash128, Prefix>> order_;
};

}  // namespace lapidary::serve
