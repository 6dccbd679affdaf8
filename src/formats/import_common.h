// What the importers of both formats share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spec/json_fields.h"

namespace lapidary {

// The layer whose K/V `layer` reads when only the first `owners` layers store any: itself, or the last owner
// of its own kind
// (`full`: true for layers without a window). Error(data) naming `path` when there is none.
int64_t last_owner_of_kind(const std::vector<bool>& full, int64_t owners, int64_t layer,
                           const std::string& path);

// Twice a size, safe against overflow.
int64_t checked_double(int64_t value, const std::string& path);

// A token id or a list of them; null is an empty list. Error(data) on ids outside the vocabulary.
std::vector<int64_t> read_token_ids(JsonFields& fields, std::string_view key, int64_t vocab_size);

}  // namespace lapidary
