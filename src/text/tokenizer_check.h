// Is this the tokenizer of this model? Checks that take a moment and name what is wrong, before anything slow
// runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace lapidary {

struct TokenizerCheck {
  std::string name;  // "texts come back"
  bool passed = false;
  std::string detail;  // what was found, or what was expected and got
};

// What the model says of its vocabulary.
struct VocabularyClaims {
  int64_t vocab_size = 0;  // rows of the embedding table
  std::optional<int64_t> bos_id, eos_id;
  std::vector<int64_t> stop_ids;
};

// What it cannot see: two ordinary tokens exchanged in a vocabulary whose answers it does not know.
std::vector<TokenizerCheck> check_tokenizer(const Tokenizer& tokenizer, const VocabularyClaims& claims);

}  // namespace lapidary
