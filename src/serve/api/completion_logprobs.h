// Log probabilities in the shape of completions: four lists beside each other.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "serve/api/texts.h"

namespace lapidary::serve {

class CompletionLogprobs {
 public:
  // top: how many of the best are shown beside each token. REQUIRES: the tokenizer outlives it.
  CompletionLogprobs(const Tokenizer& tokenizer, int64_t top) : tokenizer_(&tokenizer), top_(top) {}
  // The first token of a prompt, of which there is no probability.
  void add_first(TokenId id);
  // offset: of its text, in characters from the beginning of the choice's text.
  void add(const ScoredToken& token, size_t offset);
  // What was added since the last take: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}.
  boost::json::object take();

 private:
  std::string spelling(TokenId id) const;  // "bytes:\xe2\x80" where the bytes are not whole characters
  const Tokenizer* tokenizer_;
  int64_t top_;
  boost::json::array tokens_, logprobs_, best_, offsets_;
};

}  // namespace lapidary::serve
