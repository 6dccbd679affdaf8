// One sequence of an engine and the answers that it gives: prefill, sample, stream, stop.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "text/constraint.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace lapidary {

struct AnswerGrammar {  // what binds the content of every answer
  GrammarEnv env;
  Grammar content;
  std::optional<Grammar> calls;  // bodies of calls of the declared tools
  bool thinking = false;         // the model may think first
};

struct GenerationOptions {
  int64_t max_tokens = 1024;  // 0: until the model stops or the context is full
  std::vector<TokenId> stop_ids;
  std::vector<std::string> stop_texts;  // looked for in the visible text
  bool show_special = false;
  bool tools = false;  // tools are declared, so that calls are calls
  std::optional<AnswerGrammar> grammar;
  SamplingParams sampling;
};

enum class Finish { stop, length, tool_calls, interrupted };
std::string_view finish_name(Finish finish);

// What the cache had of a prompt.
struct CacheUse {
  int64_t cached = 0;    // tokens it held
  int64_t common = 0;    // of them, those that the prompt begins with (never all of the prompt)
  int64_t kept = 0;      // of them, those that were not computed again
  int64_t earliest = 0;  // the cache could be cut back to here, or to nothing
  bool whole() const { return kept == cached; }
};
std::string cache_use_text(const CacheUse& use);

struct Answer {
  std::vector<TokenId> ids;  // without the stop token
  std::string text;          // visible text, cut before a stop text: the content, or all with show_special
  std::string content, reasoning;
  std::vector<ToolCall> calls;
  Finish finish = Finish::stop;
  // What ended it: the stop token's spelling, the stop text, "grammar", "-n", "context", "Ctrl-C".
  std::string reason;
  int64_t prompt_tokens = 0;
  CacheUse cache;
  int64_t decode_steps = 0;    // forward steps of one token
  double prefill_seconds = 0;  // up to the first token
  double decode_seconds = 0;
};

struct Watcher {  // how the outside follows an answer
  FunctionRef<void(std::string_view text)> on_text;
  FunctionRef<void(std::string_view text)> on_thought;
  FunctionRef<void(const ToolCall& call)> on_call;
  FunctionRef<void(int64_t done, int64_t total)> on_prefill;
  FunctionRef<bool()> interrupted;
};

class Session {
 public:
  // REQUIRES: engine and tokenizer outlive it.
  Session(Engine& engine, const Tokenizer& tokenizer, GenerationOptions options, int64_t chunk);
  // Feeds what of `prompt` the cache does not hold. Error(usage) on an empty prompt, Error(limit) on one that
  // does not fit the context.
  Answer answer(std::span<const TokenId> prompt, const Watcher& watcher);
  // Cuts the cache back to what it has in common with the prompt; to nothing when a window is gone there.
  CacheUse keep_common(std::span<const TokenId> prompt);
  void reset() { engine_.trim(sequence_, 0); }
  void set_seed(uint64_t seed) { options_.sampling.seed = seed; }
  int32_t sequence() const { return sequence_; }

 private:
  class Output;  // the parts of the answer, and whether a stop text came
  // What draws the tokens of one answer.
  struct Drawing {
    Sampler sampler;
    std::optional<Constraint> constraint;
  };
  Drawing drawing(bool in_thought) const;
  bool prefill(std::span<const TokenId> prompt, Drawing& drawing, const Watcher& watcher, TokenId& first);
  void decode(TokenId token, Drawing& drawing, Output& out, const Watcher& watcher, Answer& answer);
  TokenId feed(std::span<const TokenId> tokens, Want want, Drawing& drawing, uint64_t step);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  GenerationOptions options_;
  TurnSyntax syntax_;
  int64_t chunk_;
  int64_t words_;  // rows of logits that the tokenizer has a token for; models pad their vocabularies
  int32_t sequence_;
};

// Error(usage / limit): the checks of Session::answer, for before the weights are loaded.
void check_prompt(std::span<const TokenId> prompt, int64_t context);

}  // namespace lapidary
