#include "text/output_parser.h"

#include <utility>

#include "base/error.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

constexpr std::string_view kChannelName = "thought";  // written first in a thought, with a newline
constexpr std::string_view kBlanks = " \t\n\r\f\v";

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::tool_calls: return "tool_calls";
  }
  fail(ErrorCode::internal, "finish reason {} has no name", static_cast<int>(reason));
}

OutputParser::OutputParser(const Tokenizer& tokenizer, TurnSyntax syntax, const OutputOptions& options)
    : tokenizer_(tokenizer),
      syntax_(std::move(syntax)),
      tracker_(syntax_, options.tools, options.in_thought && syntax_.thought_open) {
  if (tracker_.part() == TurnTracker::Part::thought) begin_thought(true);
}

OutputDelta OutputParser::push(std::span<const TokenId> ids) {
  for (const TokenId id : ids) take(id);
  return std::exchange(delta_, {});
}

OutputDelta OutputParser::finish() {
  switch (tracker_.part()) {
    case TurnTracker::Part::thought: end_thought(false); break;
    case TurnTracker::Part::call: end_call(); break;
    case TurnTracker::Part::content:
    case TurnTracker::Part::ended: break;
  }
  const std::string rest = utf8_lossy(std::exchange(content_, {}));
  if (!rest.empty()) {
    blanks_ += rest;
    release_content();
  }
  if (!has_content_ && !has_calls_) delta_.content += blanks_;
  blanks_.clear();
  return std::exchange(delta_, {});
}

FinishReason OutputParser::finish_reason() const {
  if (!ended()) return FinishReason::length;
  return has_calls_ ? FinishReason::tool_calls : FinishReason::stop;
}

void OutputParser::take(TokenId id) {
  using Event = TurnTracker::Event;
  const TurnTracker::Part before = tracker_.part();
  const Event event = tracker_.take(id);
  const bool ends = event == Event::stop || event == Event::open_call;
  if (before == TurnTracker::Part::thought && ends) end_thought(false);
  if (before == TurnTracker::Part::call && event == Event::stop) end_call();
  switch (event) {
    case Event::dropped:
    case Event::stop:
    case Event::open_call: return;
    case Event::open_thought: return begin_thought(false);
    case Event::close_thought: return end_thought(true);
    case Event::close_call: return end_call();
    case Event::part: break;
  }
  if (before == TurnTracker::Part::call) {
    call_.push_back(id);
    return;
  }
  const std::string bytes = tokenizer_.decode_bytes({&id, 1}, false);
  before == TurnTracker::Part::thought ? add_thought(bytes) : add_content(bytes);
}

// Content that is nothing but blanks is dropped beside calls, so it waits until it is clear what it is.
void OutputParser::add_content(std::string_view bytes) {
  content_ += bytes;
  utf8_drain(content_, blanks_);
  release_content();
}

void OutputParser::release_content() {
  if (!has_content_ && blanks_.find_first_not_of(kBlanks) == std::string::npos) return;
  has_content_ = true;
  delta_.content += blanks_;
  blanks_.clear();
}

void OutputParser::begin_thought(bool named) {
  head_.clear();
  named_ = named;
  newline_ = thought_has_text_ = false;
}

void OutputParser::add_thought(std::string_view bytes) {
  thought_ += bytes;
  std::string text;
  utf8_drain(thought_, text);
  if (named_) return release_thought(std::move(text));
  head_ += text;
  if (head_.size() <= kChannelName.size() && kChannelName.starts_with(head_)) return;
  named_ = true;
  std::string_view rest = head_;
  if (rest.starts_with(kChannelName) && rest[kChannelName.size()] == '\n') {
    rest.remove_prefix(kChannelName.size() + 1);
  }
  release_thought(std::string(rest));
}

// The last newline waits: it is dropped if the thought is closed right after it.
void OutputParser::release_thought(std::string text) {
  if (text.empty()) return;
  if (std::exchange(newline_, false)) text.insert(0, 1, '\n');
  newline_ = text.ends_with('\n');
  if (newline_) text.pop_back();
  emit_thought(text);
}

void OutputParser::emit_thought(std::string_view text) {
  if (text.empty()) return;
  if (!thought_has_text_ && has_reasoning_) delta_.reasoning += '\n';  // between thoughts
  thought_has_text_ = has_reasoning_ = true;
  delta_.reasoning += text;
}

void OutputParser::end_thought(bool closed) {
  std::string rest = utf8_lossy(std::exchange(thought_, {}));
  if (!std::exchange(named_, true)) {
    // The name alone is no thought; the beginning of the name is one.
    if (head_ != kChannelName || !rest.empty()) rest.insert(0, head_);
  }
  release_thought(std::move(rest));
  if (std::exchange(newline_, false) && !closed) emit_thought("\n");
}

void OutputParser::end_call() {
  const std::vector<TokenId> body = std::exchange(call_, {});
  if (std::optional<ToolCall> call = parse_call(tokenizer_, syntax_.string_mark, body)) {
    has_calls_ = true;
    delta_.calls.push_back(std::move(*call));
  } else {
    add_content(tokenizer_.decode_bytes(body, false));
  }
}

}  // namespace lapidary
