#include "text/constraint.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace lapidary {

Constraint::Constraint(const GrammarEnv& env, TurnSyntax syntax, const std::optional<Grammar>& content,
                       const ConstraintOptions& options)
    : env_(env),
      syntax_(std::move(syntax)),
      calls_(syntax_.call_open ? options.calls : std::nullopt),
      content_(content ? std::optional(content->begin()) : std::nullopt),
      may_think_((options.thinking || (!content && !options.must_call)) && syntax_.thought_open &&
                 !options.in_thought),
      must_call_(options.must_call),
      state_(options.in_thought && syntax_.thought_open ? State::thought : State::start),
      mask_(mask_words(env.vocab_size())) {
  ensure(!must_call_ || calls_, ErrorCode::usage,
         "a call is demanded, and the model has no way to write one");
}

Constraint::Constraint(const Constraint& other)
    : env_(other.env_),
      syntax_(other.syntax_),
      calls_(other.calls_),
      content_(other.content_ ? std::optional(other.content_->fork()) : std::nullopt),
      call_(other.call_ ? std::optional(other.call_->fork()) : std::nullopt),
      may_think_(other.may_think_),
      must_call_(other.must_call_),
      state_(other.state_),
      mask_(other.mask_) {}

Constraint Constraint::fork() const {
  return Constraint(*this);
}

void Constraint::allow(std::optional<TokenId> id) {
  if (id) mask_add(mask_, *id);
}

void Constraint::allow_stops() {
  for (const TokenId id : env_.stop_ids()) mask_add(mask_, id);
}

void Constraint::content_mask() {
  if (content_) return content_->mask(mask_);
  std::copy(env_.text_mask().begin(), env_.text_mask().end(), mask_.begin());
  allow_stops();
}

bool Constraint::accepts_text(TokenId id) const {
  return id >= 0 && id < env_.vocab_size() && mask_has(env_.text_mask(), id);
}

std::span<const uint32_t> Constraint::mask() {
  const std::optional<TokenId> call = calls_ ? syntax_.call_open : std::nullopt;
  std::fill(mask_.begin(), mask_.end(), 0);
  switch (state_) {
    case State::start:
      if (!must_call_) content_mask();
      if (may_think_) allow(syntax_.thought_open);
      allow(call);
      break;
    case State::thought:
      std::copy(env_.text_mask().begin(), env_.text_mask().end(), mask_.begin());
      allow(syntax_.thought_close);
      allow(call);
      break;
    case State::content:
      content_mask();
      if (!content_) allow(call);
      break;
    case State::call:
      if (call_->complete()) {
        allow(syntax_.call_close);
      } else {
        call_->mask(mask_);
      }
      break;
    case State::calls:
      allow(call);
      allow_stops();
      break;
    case State::ended: allow_stops(); break;
  }
  return mask_;
}

void Constraint::take(TokenId id) {
  ensure(accepts(id), ErrorCode::usage, "token {} is not allowed here by the grammar of the answer", id);
}

bool Constraint::open_call(TokenId id) {
  if (!calls_ || id != syntax_.call_open) return false;
  call_.emplace(calls_->begin());
  state_ = State::call;
  return true;
}

bool Constraint::accepts(TokenId id) {
  const bool stop = syntax_.is_stop(id);
  switch (state_) {
    case State::start:
      if (open_call(id)) return true;
      if (may_think_ && id == syntax_.thought_open) {
        state_ = State::thought;
        return true;
      }
      if (must_call_) return false;
      [[fallthrough]];
    case State::content:
      if (!content_ && open_call(id)) return true;
      if (!(content_ ? content_->consume(id) : stop || accepts_text(id))) return false;
      state_ = stop ? State::ended : State::content;
      return true;
    case State::thought:
      if (open_call(id)) return true;
      if (id != syntax_.thought_close) return accepts_text(id);
      state_ = State::start;
      may_think_ = false;
      return true;
    case State::call:
      if (!call_->complete()) return !stop && call_->consume(id);
      if (id != syntax_.call_close) return false;
      state_ = State::calls;
      return true;
    case State::calls:
      if (open_call(id)) return true;
      state_ = stop ? State::ended : state_;
      return stop;
    case State::ended: return stop;
  }
  return false;
}

bool Constraint::complete() {
  switch (state_) {
    case State::ended: return true;
    case State::content: return content_ && content_->complete();
    default: return false;
  }
}

}  // namespace lapidary
