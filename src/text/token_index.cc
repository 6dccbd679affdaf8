#include "text/token_index.h"

#include <algorithm>
#include <bit>

namespace lapidary {
namespace {

constexpr uint64_t kBase = 0x100000001B3u;

uint64_t extend(uint64_t hash, char c) {
  return hash * kBase + static_cast<unsigned char>(c) + 1;
}

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0;
  for (char c : text) hash = extend(hash, c);
  return hash;
}

// The polynomial leaves its low bits poorly mixed.
uint64_t mixed(uint64_t hash) {
  hash *= 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

}  // namespace

TokenIndex::TokenIndex(const std::vector<std::string_view>& tokens) : tokens_(tokens) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(16, 2 * tokens.size()));
  slots_.assign(capacity, Slot{0, kNone});
  size_t longest = 0;
  for (size_t id = 0; id < tokens.size(); ++id) {
    longest = std::max(longest, tokens[id].size());
    const uint64_t hash = hash_of(tokens[id]);
    if (find(tokens[id], hash) != kNone) continue;
    const uint64_t mix = mixed(hash);
    size_t at = mix & (capacity - 1);
    while (slots_[at].id != kNone) at = (at + 1) & (capacity - 1);
    slots_[at] = {static_cast<uint32_t>(mix >> 32), static_cast<uint32_t>(id)};
  }
  powers_.assign(longest + 1, 1);
  for (size_t i = 1; i < powers_.size(); ++i) powers_[i] = powers_[i - 1] * kBase;
}

uint32_t TokenIndex::find(std::string_view token) const {
  return find(token, hash_of(token));
}

uint32_t TokenIndex::find(std::string_view token, uint64_t hash) const {
  const uint64_t mix = mixed(hash);
  const auto tag = static_cast<uint32_t>(mix >> 32);
  size_t at = mix & (slots_.size() - 1);
  while (slots_[at].id != kNone && (slots_[at].tag != tag || tokens_[slots_[at].id] != token)) {
    at = (at + 1) & (slots_.size() - 1);
  }
  return slots_[at].id;
}

void TokenIndex::prefix_hashes(std::string_view text, std::vector<uint64_t>& out) {
  out.resize(text.size() + 1);
  out[0] = 0;
  for (size_t i = 0; i < text.size(); ++i) out[i + 1] = extend(out[i], text[i]);
}

uint64_t TokenIndex::part_hash(const std::vector<uint64_t>& prefix, size_t from, size_t to) const {
  return prefix[to] - prefix[from] * powers_[to - from];
}

}  // namespace lapidary
