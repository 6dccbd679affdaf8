// Spelling → id over views. Hashes are polynomial, so that every substring of a token can be looked up
// without reading it again: rebuilding merges asks for each prefix and suffix of a quarter of a million
// tokens.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lapidary {

class TokenIndex {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  // The first of equal spellings wins. REQUIRES: the views outlive the index.
  explicit TokenIndex(const std::vector<std::string_view>& tokens);

  uint32_t find(std::string_view token) const;
  uint32_t find(std::string_view token, uint64_t hash) const;

  // Hash of text[0, n] for every n.
  static void prefix_hashes(std::string_view text, std::vector<uint64_t>& out);
  // Hash of text[from, to) out of the prefix hashes of `text`.
  uint64_t part_hash(const std::vector<uint64_t>& prefix, size_t from, size_t to) const;

 private:
  struct Slot {
    uint32_t tag;  // part of the hash: a miss rarely has to read a spelling
    uint32_t id;
  };

  const std::vector<std::string_view>& tokens_;
  std::vector<Slot> slots_;       // [2^k]; id kNone: free
  std::vector<uint64_t> powers_;  // [longest token + 1]
};

}  // namespace lapidary
