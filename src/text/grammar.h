// Grammars over token ids: JSON schemas, regular expressions and Lark grammars, compiled to masks that say
// which tokens may come next (llguidance in bridge/). Grammars come from clients: their size and the work
// that they cause are limited, and what would not be enforced is refused. docs/text.md has the rules.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace lapidary {

// One bit per token, 32 to a word from the lowest up. A set bit allows the token.
using MaskBits = std::vector<uint32_t>;

inline size_t mask_words(int64_t vocab_size) {
  return (static_cast<size_t>(vocab_size) + 31) / 32;
}
inline bool mask_has(std::span<const uint32_t> mask, TokenId id) {
  return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}
inline void mask_add(std::span<uint32_t> mask, TokenId id) {
  mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
}

// One text under a grammar. Not thread-safe; one per sequence.
class GrammarMatcher {
 public:
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;
  ~GrammarMatcher();

  // Tokens that may come next; the stop tokens where the text is whole. Never empty, unless the text is
  // complete and there are no stop tokens. mask: mask_words(vocabulary) words. Error(limit) when the step
  // takes too much work, Error(data) when no token of the vocabulary goes on.
  void mask(std::span<uint32_t> mask);
  // Takes ids up to the first that the grammar does not allow; returns how many.
  size_t consume(std::span<const TokenId> ids);
  bool consume(TokenId id) { return consume({&id, 1}) == 1; }
  void rollback(size_t count);    // takes back the last ids
  GrammarMatcher fork() const;    // independent of this one
  std::vector<TokenId> forced();  // what must come next whatever is sampled; empty where there is a choice
  bool accepting();               // the text is whole
  bool complete();                // and nothing can be added to it

 private:
  friend class Grammar;
  struct Impl;
  explicit GrammarMatcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Compiled; immutable, cheap to copy, safe to share between threads.
class Grammar {
 public:
  GrammarMatcher begin() const;

 private:
  friend class GrammarEnv;
  struct Impl;
  explicit Grammar(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

// A tokenizer's vocabulary made ready for grammars: about a second for Gemma's, so once per tokenizer.
// Immutable, cheap to copy, safe to share between threads. Keeps what it needs of the tokenizer alive.
class GrammarEnv {
 public:
  // stop_ids end a text. Error(usage) on one outside of the vocabulary.
  GrammarEnv(const Tokenizer& tokenizer, std::span<const TokenId> stop_ids);

  // Error(data) when the source is no schema, expression or grammar, Error(unsupported) when it asks for
  // what would not be enforced (an unknown keyword, a reference to the outside), Error(limit) when it is too
  // large, too deep, or takes too much work. The message says where and what.
  Grammar json_schema(std::string_view schema) const;
  Grammar regex(std::string_view pattern) const;  // the whole text matches
  Grammar lark(std::string_view source) const;    // llguidance's dialect; special tokens are refused
  // The body of a Gemma 4 tool call, `call:NAME{...}`, for any of these names: what the output parser reads
  // as a call. Error(usage) on a name that no call can spell, Error(unsupported) when the vocabulary has no
  // string marks.
  Grammar call_body(std::span<const std::string> names) const;
  // The same, and the arguments of those with a schema fit it (call_schema.h has the keywords; Errors as
  // there).
  struct Tool {
    std::string name;
    std::string schema;  // of the arguments, JSON; empty: any
  };
  Grammar call_body(std::span<const Tool> tools) const;

  int64_t vocab_size() const;
  std::span<const TokenId> stop_ids() const;
  std::span<const uint32_t> text_mask() const;  // every token that is text: not special, no stop token
 private:
  struct Impl;
  Grammar compile(int kind, std::string_view source) const;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace lapidary
