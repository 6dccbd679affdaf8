// What a model may write in its turn when its content is bound by a grammar: thinking first, then the
// content. The one place that knows both the parts of a turn and the grammar; used by whoever samples.
//
//   start    a thought (when thinking is on, once), a call (when tools are declared), or the content begins
//   thought  any text; closed by its delimiter, or by a call. The turn cannot end in it.
//   content  what the grammar allows; a turn with content has no calls
//            Without a grammar any text and any calls may follow each other.
//   call     a whole call of a declared tool, closed by its delimiter
//   calls    after a call: another one, or the end
//   end      stop tokens only
#pragma once

#include <optional>
#include <span>

#include "text/grammar.h"
#include "text/turn.h"

namespace lapidary {

struct ConstraintOptions {
  bool thinking = false;         // the model may think before it answers
  bool in_thought = false;       // the prompt ends inside an open thought
  std::optional<Grammar> calls;  // GrammarEnv::call_body of the declared tools; absent: no calls
  bool must_call = false;        // a call and nothing else (after thinking); REQUIRES: calls
};

class Constraint {
 public:
  // content, options.calls: grammars of `env`. Without one for the content only calls are bound. The syntax
  // is that of env's tokenizer.
  Constraint(const GrammarEnv& env, TurnSyntax syntax, const std::optional<Grammar>& content,
             const ConstraintOptions& options);
  Constraint(Constraint&&) noexcept = default;

  // Tokens that may come next. Valid until the next call. Errors as GrammarMatcher::mask.
  std::span<const uint32_t> mask();
  // Error(usage) when the token is not allowed here.
  void take(TokenId id);
  // The turn is whole and nothing but a stop token can come.
  bool complete();
  Constraint fork() const;

 private:
  enum class State { start, thought, content, call, calls, ended };
  Constraint(const Constraint& other);  // fork()
  void allow(std::optional<TokenId> id);
  void allow_stops();
  bool open_call(TokenId id);
  bool accepts(TokenId id);
  bool accepts_text(TokenId id) const;
  void content_mask();

  GrammarEnv env_;
  TurnSyntax syntax_;
  std::optional<Grammar> calls_;
  std::optional<GrammarMatcher> content_;  // absent: any text
  std::optional<GrammarMatcher> call_;
  bool may_think_, must_call_;
  State state_;
  MaskBits mask_;
};

}  // namespace lapidary
