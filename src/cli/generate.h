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
#include "text/tokenizer.h"

namespace lapidary {

struct GenerationOptions {
  int64_t max_tokens = 1024;  // 0: until the model stops or the context is full
  std::vector<TokenId> stop_ids;
  std::vector<std::string> stop_texts;  // looked for in the visible text
  bool show_special = false;
  SamplingParams sampling;
};

enum class Finish { stop, length, interrupted };
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
  std::string text;          // visible text, cut before a stop text
  std::string history;  // the same with special tokens spelled out: what a template may want to see later
  Finish finish = Finish::stop;
  std::string reason;  // what ended it: the stop token's spelling, the stop text, "-n", "context", "Ctrl-C"
  int64_t prompt_tokens = 0;
  CacheUse cache;
  int64_t decode_steps = 0;    // forward steps of one token
  double prefill_seconds = 0;  // up to the first token
  double decode_seconds = 0;
};

struct Watcher {  // how the outside follows an answer
  FunctionRef<void(std::string_view text)> on_text;
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
  class TextOut;  // visible text, and whether a stop text came
  bool prefill(std::span<const TokenId> prompt, Sampler& sampler, const Watcher& watcher, TokenId& first);
  void decode(TokenId token, Sampler& sampler, TextOut& out, const Watcher& watcher, Answer& answer);
  TokenId feed(std::span<const TokenId> tokens, Want want, Sampler& sampler, uint64_t step);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  GenerationOptions options_;
  int64_t chunk_;
  int64_t words_;  // rows of logits that the tokenizer has a token for; models pad their vocabularies
  int32_t sequence_;
};

// Error(usage / limit): the checks of Session::answer, for before the weights are loaded.
void check_prompt(std::span<const TokenId> prompt, int64_t context);

}  // namespace lapidary
