#include "text/turn.h"

#include <algorithm>

namespace lapidary {
namespace {

std::optional<TokenId> special(const Tokenizer& tokenizer, std::string_view spelling) {
  const std::optional<TokenId> id = tokenizer.find(spelling);
  return id && tokenizer.is_special(*id) ? id : std::nullopt;
}

void both_or_none(std::optional<TokenId>& open, std::optional<TokenId>& close) {
  if (!open || !close) open = close = std::nullopt;
}

}  // namespace

TurnSyntax TurnSyntax::of(const Tokenizer& tokenizer, std::span<const TokenId> stop_ids) {
  TurnSyntax syntax;
  syntax.stop_ids.assign(stop_ids.begin(), stop_ids.end());
  syntax.thought_open = special(tokenizer, "<|channel>");
  syntax.thought_close = special(tokenizer, "<channel|>");
  syntax.call_open = special(tokenizer, "<|tool_call>");
  syntax.call_close = special(tokenizer, "<tool_call|>");
  syntax.string_mark = special(tokenizer, "<|\"|>");
  both_or_none(syntax.thought_open, syntax.thought_close);
  both_or_none(syntax.call_open, syntax.call_close);
  return syntax;
}

bool TurnSyntax::is_stop(TokenId id) const {
  return std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end();
}

bool ends_in_thought(const TurnSyntax& syntax, std::span<const TokenId> prompt) {
  for (auto id = prompt.rbegin(); id != prompt.rend(); ++id) {
    if (*id == syntax.thought_open) return true;
    if (*id == syntax.thought_close || syntax.is_stop(*id)) return false;
  }
  return false;
}

TurnTracker::Event TurnTracker::take(TokenId id) {
  const auto enter = [this](Part part, Event event) {
    part_ = part;
    return event;
  };
  if (part_ == Part::ended) return Event::dropped;
  if (syntax_->is_stop(id)) return enter(Part::ended, Event::stop);
  if (part_ == Part::call) {
    if (id == syntax_->call_close) return enter(Part::content, Event::close_call);
    return id == syntax_->call_open ? Event::dropped : Event::part;
  }
  if (calls_ && id == syntax_->call_open) return enter(Part::call, Event::open_call);
  const bool thinking = part_ == Part::thought;
  if (id == syntax_->thought_open) {
    return thinking ? Event::dropped : enter(Part::thought, Event::open_thought);
  }
  if (id == syntax_->thought_close) {
    return thinking ? enter(Part::content, Event::close_thought) : Event::dropped;
  }
  return Event::part;
}

}  // namespace lapidary
