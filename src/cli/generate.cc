#include "cli/generate.h"

#include <algorithm>

#include "base/error.h"
#include "cli/load.h"
#include "text/stop_texts.h"

namespace lapidary {

class Session::Output {
 public:
  Output(const Tokenizer& tokenizer, const GenerationOptions& options, const TurnSyntax& syntax,
         bool in_thought, const Watcher& watcher, Answer& answer)
      : parser_(tokenizer, syntax, {.tools = options.tools, .in_thought = in_thought}),
        stops_(options.stop_texts),
        shown_stops_(options.stop_texts),
        watcher_(watcher),
        answer_(answer) {
    if (options.show_special) everything_.emplace(tokenizer, true);
  }

  void push(TokenId id) {
    add(parser_.push({&id, 1}));
    if (everything_) show(shown_stops_.push(everything_->push(id)));
  }
  void stop_token(TokenId id) { add(parser_.push({&id, 1})); }
  void finish() {
    add(parser_.finish());
    add_content(stops_.flush());
    if (!everything_) return;
    show(shown_stops_.push(everything_->flush()));
    show(shown_stops_.flush());
  }
  const std::optional<std::string>& stop() const {
    return shown_stops_.found() ? shown_stops_.found() : stops_.found();
  }

 private:
  void add(const OutputDelta& delta) {
    if (!delta.reasoning.empty()) {
      answer_.reasoning += delta.reasoning;
      if (!everything_) watcher_.on_thought(delta.reasoning);
    }
    add_content(stops_.push(delta.content));
    for (const ToolCall& call : delta.calls) {
      answer_.calls.push_back(call);
      if (!everything_) watcher_.on_call(call);
    }
  }
  void add_content(std::string_view text) {
    answer_.content += text;
    if (!everything_) show(text);
  }
  void show(std::string_view text) {
    if (text.empty()) return;
    answer_.text += text;
    watcher_.on_text(text);
  }

  OutputParser parser_;
  StopMatcher stops_, shown_stops_;  // within the content, and within everything
  std::optional<StreamDecoder> everything_;
  const Watcher& watcher_;
  Answer& answer_;
};

namespace {

void end(Answer& answer, Finish finish, std::string reason) {
  answer.finish = finish;
  answer.reason = std::move(reason);
}

}  // namespace

std::string_view finish_name(Finish finish) {
  switch (finish) {
    case Finish::stop: return "stop";
    case Finish::length: return "length";
    case Finish::tool_calls: return "tool_calls";
    case Finish::interrupted: return "interrupted";
  }
  fail(ErrorCode::internal, "finish {} has no name", static_cast<int>(finish));
}

std::string cache_use_text(const CacheUse& use) {
  if (use.cached == 0) return "nothing was in the cache";
  if (use.whole()) return fmt::format("all {} tokens in the cache were used", use.cached);
  if (use.kept > 0 || use.common == 0)
    return fmt::format("{} of {} tokens in the cache were used; the prompt parts from them at token {}",
                       use.kept, use.cached, use.common);
  return fmt::format(
      "none of {} tokens in the cache were used: the prompt parts from them at token {}, and layers with a "
      "window go back to token {} only (--keep-behind)",
      use.cached, use.common, use.earliest);
}

void check_prompt(std::span<const TokenId> prompt, int64_t context) {
  ensure(!prompt.empty(), ErrorCode::usage, "the prompt is empty: there is nothing to go on from");
  ensure(static_cast<int64_t>(prompt.size()) <= context, ErrorCode::limit,
         "the prompt has {} tokens, the context holds {}; shorten it or raise --context", prompt.size(),
         context);
}

Session::Session(Engine& engine, const Tokenizer& tokenizer, GenerationOptions options, int64_t chunk)
    : engine_(engine),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      syntax_(TurnSyntax::of(tokenizer, options_.stop_ids)),
      chunk_(chunk),
      words_(std::min(tokenizer.vocab_size(), engine.spec().vocab_size)),
      sequence_(engine.open()) {}

// The last token of the prompt is always fed: its logits are wanted.
CacheUse Session::keep_common(std::span<const TokenId> prompt) {
  const std::span<const TokenId> held = engine_.tokens(sequence_),
                                 usable = prompt.first(prompt.size() - (prompt.empty() ? 0 : 1));
  const auto end = std::mismatch(held.begin(), held.end(), usable.begin(), usable.end()).first;
  CacheUse use;
  use.cached = static_cast<int64_t>(held.size());
  use.common = end - held.begin();
  use.earliest = engine_.earliest_restart(sequence_);
  use.kept = use.common >= use.earliest ? use.common : 0;
  engine_.trim(sequence_, use.kept);
  return use;
}

Session::Drawing Session::drawing(bool in_thought) const {
  Drawing drawing{Sampler(options_.sampling, words_), {}};
  if (const std::optional<AnswerGrammar>& grammar = options_.grammar) {
    drawing.constraint.emplace(grammar->env, syntax_, grammar->content,
                               ConstraintOptions{grammar->thinking, in_thought, grammar->calls});
  }
  return drawing;
}

TokenId Session::feed(std::span<const TokenId> tokens, Want want, Drawing& drawing, uint64_t step) {
  TokenId sampled = -1;
  const Feed feeds[] = {{sequence_, tokens, want}};
  engine_.forward(feeds, [&](size_t, int64_t, std::span<const float> logits) {
    std::span<const uint32_t> mask;
    if (drawing.constraint) mask = drawing.constraint->mask();
    sampled = drawing.sampler.sample(logits.first(static_cast<size_t>(words_)), step, mask);
    if (drawing.constraint) drawing.constraint->take(sampled);
  });
  return sampled;
}

// In pieces, so that a long prompt can be followed and interrupted (false); chunks never change the bits.
bool Session::prefill(std::span<const TokenId> prompt, Drawing& drawing, const Watcher& watcher,
                      TokenId& first) {
  std::span<const TokenId> rest = prompt.subspan(static_cast<size_t>(engine_.length(sequence_)));
  const auto total = static_cast<int64_t>(rest.size());
  while (!rest.empty()) {
    if (watcher.interrupted()) return false;
    const size_t n = std::min(rest.size(), static_cast<size_t>(chunk_));
    first = feed(rest.first(n), n == rest.size() ? Want::last : Want::none, drawing, 0);
    rest = rest.subspan(n);
    watcher.on_prefill(total - static_cast<int64_t>(rest.size()), total);
  }
  return true;
}

void Session::decode(TokenId token, Drawing& drawing, Output& out, const Watcher& watcher, Answer& answer) {
  for (;;) {
    if (syntax_.is_stop(token)) {
      out.stop_token(token);
      return end(answer, answer.calls.empty() ? Finish::stop : Finish::tool_calls,
                 tokenizer_.token_name(token));
    }
    answer.ids.push_back(token);
    drawing.sampler.observe(token);
    out.push(token);
    if (out.stop()) return;
    if (drawing.constraint && drawing.constraint->complete()) return end(answer, Finish::stop, "grammar");
    if (static_cast<int64_t>(answer.ids.size()) == options_.max_tokens)
      return end(answer, Finish::length, "-n");
    if (engine_.length(sequence_) == engine_.context()) return end(answer, Finish::length, "context");
    if (watcher.interrupted()) return end(answer, Finish::interrupted, "Ctrl-C");
    token = feed({&token, 1}, Want::last, drawing, answer.ids.size());
    ++answer.decode_steps;
  }
}

Answer Session::answer(std::span<const TokenId> prompt, const Watcher& watcher) {
  check_prompt(prompt, engine_.context());
  Answer answer;
  answer.cache = keep_common(prompt);
  answer.prompt_tokens = static_cast<int64_t>(prompt.size());
  const bool in_thought = ends_in_thought(syntax_, prompt);
  Drawing drawing = this->drawing(in_thought);
  for (const TokenId id : prompt) drawing.sampler.observe(id);
  Output out(tokenizer_, options_, syntax_, in_thought, watcher, answer);

  const double start = now_seconds();
  TokenId token = -1;
  const bool ready = prefill(prompt, drawing, watcher, token);
  const double first = now_seconds();
  answer.prefill_seconds = first - start;
  if (!ready) {
    end(answer, Finish::interrupted, "Ctrl-C");
    return answer;
  }
  decode(token, drawing, out, watcher, answer);
  answer.decode_seconds = now_seconds() - first;
  out.finish();
  if (out.stop()) end(answer, Finish::stop, *out.stop());
  return answer;
}

}  // namespace lapidary
