// What a model wrote, taken apart as it arrives: content, thinking and tool calls. Works on token ids; takes
// any number of them at a time, and every division of the ids gives the same result. docs/text.md has the
// rules. Vocabularies without Gemma 4's delimiters have content only.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "text/turn.h"

namespace lapidary {

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON object as text: keys in the order of the call, numbers digit for digit
  bool operator==(const ToolCall&) const = default;
};

struct OutputDelta {
  std::string content, reasoning;
  std::vector<ToolCall> calls;  // complete ones
  bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
};

enum class FinishReason { stop, length, tool_calls };
std::string_view finish_reason_name(FinishReason reason);

struct OutputOptions {
  bool tools = false;       // tools were declared; without, calls are content
  bool in_thought = false;  // the prompt ended inside an open thought (ends_in_thought)
};

class OutputParser {
 public:
  // REQUIRES: the tokenizer outlives it.
  OutputParser(const Tokenizer& tokenizer, TurnSyntax syntax, const OutputOptions& options);
  OutputParser(const OutputParser&) = delete;

  // What the ids add. Ids after a stop token are ignored. Error(usage) on an id out of range.
  OutputDelta push(std::span<const TokenId> ids);
  // What was held back, at the end of the ids; once. Before it, nothing is final but what was handed out.
  OutputDelta finish();
  bool ended() const { return tracker_.part() == TurnTracker::Part::ended; }  // a stop token came
  TurnTracker::Part part() const { return tracker_.part(); }
  // length: no stop token came. Whoever ends a turn for another reason (a stop text) knows better.
  FinishReason finish_reason() const;

 private:
  void take(TokenId id);
  void add_content(std::string_view bytes);
  void release_content();
  void begin_thought(bool named);
  void add_thought(std::string_view bytes);
  void release_thought(std::string text);
  void emit_thought(std::string_view text);
  void end_thought(bool closed);
  void end_call();

  const Tokenizer& tokenizer_;
  TurnSyntax syntax_;
  TurnTracker tracker_;
  OutputDelta delta_;    // since the last push
  std::string content_;  // bytes that do not form a character yet
  std::string blanks_;   // content so far, as long as it is nothing but blanks
  bool has_content_ = false, has_calls_ = false, has_reasoning_ = false;

  std::string thought_;   // bytes of the open thought that do not form a character yet
  std::string head_;      // its beginning, as long as that may be the channel's name
  bool named_ = false;    // the name is dealt with
  bool newline_ = false;  // a newline that is dropped if the thought ends here
  bool thought_has_text_ = false;
  std::vector<TokenId> call_;  // the open call's body
};

// The body of a tool call, `call:NAME{...}`; empty when it is none.
std::optional<ToolCall> parse_call(const Tokenizer& tokenizer, std::optional<TokenId> string_mark,
                                   std::span<const TokenId> body);
inline constexpr int kMaxCallDepth = 64;  // lists and objects within each other, the arguments included

}  // namespace lapidary
