// From the ids of one text to what a client gets of it: content, thoughts and calls as they become certain,
// and with each piece of content the scores of the tokens that it is made of. However the ids are cut into
// pieces, what comes out is the same when joined.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/job.h"
#include "text/output_parser.h"
#include "text/stop_texts.h"

namespace lapidary::serve {

struct TextToken {
  TokenId id = 0;
  size_t begin = 0;  // of its text within the content, in characters
  ScoredToken score;
};

struct TextDelta {
  std::string content, reasoning;
  std::vector<ToolCall> calls;
  std::vector<TextToken> tokens;  // with a score only: those whose text is (at least in part) out
  bool empty() const { return content.empty() && reasoning.empty() && calls.empty() && tokens.empty(); }
};

struct TextOptions {
  bool raw = false;           // the ids are content, all of them; else a turn: content, thoughts, calls
  bool show_special = false;  // raw: special tokens are spelt out
  bool tools = false;         // of a turn
  bool in_thought = false;    // of a turn
  std::vector<std::string> stops;
};

// Used by one thread at a time.
class TextReader {
 public:
  // REQUIRES: the tokenizer outlives it.
  TextReader(const Tokenizer& tokenizer, const TurnSyntax& syntax, TextOptions options);
  TextDelta push(TokenId id, const ScoredToken* score);
  // The rest. stop_id: the stop token that ended the text, if one did.
  TextDelta finish(std::optional<TokenId> stop_id);

  const std::optional<std::string>& stop() const { return stops_.found(); }
  bool has_calls() const { return has_calls_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  int64_t characters() const { return static_cast<int64_t>(out_); }  // of the content so far

 private:
  OutputDelta read(TokenId id);
  void take(OutputDelta read, bool last, TextDelta& out);

  const Tokenizer& tokenizer_;
  const bool raw_;
  std::optional<StreamDecoder> decoder_;  // raw
  std::optional<OutputParser> parser_;    // of a turn
  StopMatcher stops_;
  std::deque<TextToken> waiting_;  // their text is not out yet
  size_t read_ = 0, out_ = 0;      // characters of content that were read, and that are out
  int64_t reasoning_tokens_ = 0;
  bool has_calls_ = false;
};

size_t characters_of(std::string_view text);  // code points of valid UTF-8

}  // namespace lapidary::serve
