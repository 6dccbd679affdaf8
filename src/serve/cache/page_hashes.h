// Hashes of the prefixes of a text that end at the borders of KV pages: each of the one before and the tokens
// of one page. Equal hashes lead to a comparison of tokens; they never stand for one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/hash.h"
#include "text/tokenizer.h"

namespace lapidary::serve {

struct HashOfHash {  // for the tables of the library
  size_t operator()(const Hash128& hash) const;
};

// [tokens / page + 1]: of the first 0, page, 2 * page, ... tokens.
std::vector<Hash128> page_hashes(std::span<const TokenId> tokens, int64_t page);
// Of a prefix of any length, from the hash at the last border before its end and the tokens from there on.
Hash128 prefix_hash(const Hash128& border, std::span<const TokenId> tail);

}  // namespace lapidary::serve
