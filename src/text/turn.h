// The parts of a model's turn, told apart by token ids: content, thoughts, tool calls, the end. Spelled-out
// delimiters are text; only the special tokens themselves delimit.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "text/tokenizer.h"

namespace lapidary {

// The delimiters of a vocabulary, found by their spelling among its special tokens (Gemma 4's). Vocabularies
// without them have turns that are content only.
struct TurnSyntax {
  std::vector<TokenId> stop_ids;
  std::optional<TokenId> thought_open, thought_close;  // <|channel>, <channel|>: both or none
  std::optional<TokenId> call_open, call_close;        // <|tool_call>, <tool_call|>: both or none
  std::optional<TokenId> string_mark;                  // <|"|>, around strings within calls

  static TurnSyntax of(const Tokenizer& tokenizer, std::span<const TokenId> stop_ids);
  bool is_stop(TokenId id) const;
};

// Characters of a tool's name within a call.
constexpr bool is_tool_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '-';
}

// Whether the prompt ends inside an open thought: a template may open one for the model.
bool ends_in_thought(const TurnSyntax& syntax, std::span<const TokenId> prompt);

// Walks a turn id by id.
class TurnTracker {
 public:
  enum class Part { content, thought, call, ended };
  enum class Event {
    part,     // the id belongs to the part that is going on
    dropped,  // a delimiter out of place, or an id after the end
    stop,     // the end of the turn
    open_thought,
    close_thought,
    open_call,  // ends a thought that is open
    close_call,
  };

  // calls: tools are declared, so that call delimiters count. REQUIRES: the syntax outlives it.
  TurnTracker(const TurnSyntax& syntax, bool calls, bool in_thought)
      : syntax_(&syntax), calls_(calls), part_(in_thought ? Part::thought : Part::content) {}
  Event take(TokenId id);
  Part part() const { return part_; }

 private:
  const TurnSyntax* syntax_;
  bool calls_;
  Part part_;
};

}  // namespace lapidary
