#include "serve/api/texts.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lapidary::serve {

size_t characters_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

TextReader::TextReader(const Tokenizer& tokenizer, const TurnSyntax& syntax, TextOptions options)
    : tokenizer_(tokenizer), raw_(options.raw), stops_(std::move(options.stops)) {
  if (raw_) {
    decoder_.emplace(tokenizer, options.show_special);
  } else {
    parser_.emplace(tokenizer, syntax, OutputOptions{options.tools, options.in_thought});
  }
}

OutputDelta TextReader::read(TokenId id) {
  if (parser_) return parser_->push({&id, 1});
  OutputDelta out;
  out.content = decoder_->push(id);
  return out;
}

TextDelta TextReader::push(TokenId id, const ScoredToken* score) {
  using Part = TurnTracker::Part;
  const Part before = parser_ ? parser_->part() : Part::content;
  OutputDelta read = this->read(id);
  const Part after = parser_ ? parser_->part() : Part::content;
  if (before == Part::thought || after == Part::thought) reasoning_tokens_++;
  const bool content = before == Part::content && after == Part::content;
  if (score != nullptr && content && (raw_ || !tokenizer_.is_special(id))) {
    waiting_.push_back({id, read_, *score});
  }
  TextDelta out;
  take(std::move(read), false, out);
  return out;
}

TextDelta TextReader::finish(std::optional<TokenId> stop_id) {
  TextDelta out;
  if (parser_ && stop_id) take(parser_->push({&*stop_id, 1}), false, out);
  OutputDelta rest;
  if (parser_) {
    rest = parser_->finish();
  } else {
    rest.content = decoder_->flush();
  }
  take(std::move(rest), true, out);
  return out;
}

// A token is out as soon as some of its text is. At the end, what a stop text cut off stays away with its
// tokens; without one, tokens without any text of their own come along.
void TextReader::take(OutputDelta read, bool last, TextDelta& out) {
  out.reasoning += read.reasoning;
  has_calls_ = has_calls_ || !read.calls.empty();
  std::move(read.calls.begin(), read.calls.end(), std::back_inserter(out.calls));
  read_ += characters_of(read.content);
  std::string certain = stops_.push(read.content);
  if (last) certain += stops_.flush();
  out_ += characters_of(certain);
  out.content += certain;
  const bool all = last && !stop() && (raw_ || out_ > 0);
  while (!waiting_.empty() && (all || waiting_.front().begin < out_)) {
    out.tokens.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

}  // namespace lapidary::serve
