#include "serve/cache/page_hashes.h"

#include <cstring>

namespace lapidary::serve {

size_t HashOfHash::operator()(const Hash128& hash) const {
  size_t first;
  std::memcpy(&first, hash.bytes.data(), sizeof first);
  return first;
}

Hash128 prefix_hash(const Hash128& border, std::span<const TokenId> tail) {
  return Hasher().add(border).add(std::as_bytes(tail)).digest();
}

std::vector<Hash128> page_hashes(std::span<const TokenId> tokens, int64_t page) {
  const auto step = static_cast<size_t>(page);
  std::vector<Hash128> hashes;
  hashes.reserve(tokens.size() / step + 1);
  hashes.emplace_back();
  Hasher hasher;
  for (size_t at = 0; at + step <= tokens.size(); at += step) {
    hasher.reset();
    hashes.push_back(hasher.add(hashes.back()).add(std::as_bytes(tokens.subspan(at, step))).digest());
  }
  return hashes;
}

}  // namespace lapidary::serve
