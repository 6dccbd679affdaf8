// One text to generate, one prompt to score or one to embed: what the API hands to the scheduler, and what
// comes back. Ids in, ids out; what they spell is the API's business.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "text/constraint.h"
#include "text/tokenizer.h"

namespace lapidary::serve {

using Clock = std::chrono::steady_clock;

// Natural logarithm of a token's probability under the model itself: softmax of its logits, before penalties,
// bias, temperature and masks.
struct TokenScore {
  TokenId id = 0;
  float logprob = 0;
};
struct ScoredToken {
  TokenScore token;
  std::vector<TokenScore> best;  // the most probable ones, best first, ties to the lower id; as many as asked
};

enum class Pooling { none, mean, last };

struct Job {
  std::string request;            // id of the HTTP request, for logs and GET /v1/kv
  int64_t index = 0;              // which of the request's texts
  std::string client;             // whose it is, for fair queueing: the name of a key, or an address
  std::vector<TokenId> prompt;    // at least one id
  int64_t max_tokens = 0;         // to generate; 0: none (the prompt's scores or embedding are wanted)
  std::vector<TokenId> stop_ids;  // any of them ends the text
  SamplingParams sampling;        // `stream` tells the texts of one request apart
  // Binds what is drawn; at its beginning, or past what of the answer the prompt has already.
  std::optional<Constraint> constraint;
  std::optional<int64_t> logprobs;            // of every generated token, and this many of the best beside it
  std::optional<int64_t> prompt_logprobs;     // of every prompt token but the first, likewise
  Pooling pooling = Pooling::none;            // the prompt's embedding: final norms, pooled and of length 1
  int64_t priority = 0;                       // greater goes first
  std::optional<Clock::time_point> deadline;  // ends it, wherever it is
  bool reuse = true;  // may begin with what the prefix cache holds, and leave its own there
};

// Why no more of a prompt was taken from the prefix cache. The first two are hits.
enum class Reuse {
  whole,        // all but the last token, which is always fed
  extended,     // all of what was held; the rest of the prompt is new
  cold,         // nothing held begins like it
  differs,      // what is held goes on otherwise
  window_lost,  // what is held has more in common, but the windows there are gone
  evicted,      // what had more in common had to make room
  unwanted,     // the request needs every row (prompt scores, embeddings), or asked for none
};
inline constexpr Reuse kReuses[] = {Reuse::whole,       Reuse::extended, Reuse::cold,    Reuse::differs,
                                    Reuse::window_lost, Reuse::evicted,  Reuse::unwanted};
std::string_view reuse_name(Reuse reuse);

enum class EndReason {
  stop_token,  // one of stop_ids; JobEnd::stop_id says which
  max_tokens,
  context,    // the model's context is full
  complete,   // the constraint allows nothing more (or max_tokens is 0)
  sink,       // on_token answered `stop`
  cancelled,  // by cancel()
  deadline,
  error,     // JobEnd::error
  shutdown,  // the server went down before it was through
};
std::string_view end_reason_name(EndReason reason);

struct JobEnd {
  EndReason reason = EndReason::complete;
  std::optional<TokenId> stop_id;
  std::string error;            // for the log; not for the client
  bool grammar_failed = false;  // with error: the constraint is too much work or leaves no way on
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  Reuse reuse = Reuse::cold;
  int64_t preemptions = 0;
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;  // prefill: up to the first token
};

// Where a job's results go. Called on the scheduler's thread, one call at a time: must not block, must not
// throw, must not call the scheduler but for cancel() and resume().
class JobSink {
 public:
  virtual ~JobSink() = default;
  virtual void on_start(int64_t cached_tokens) { (void)cached_tokens; }  // its prompt is being computed
  // [prompt.size() - 1]: of prompt token 1 and on.
  virtual void on_prompt_scores(std::vector<ScoredToken> scores) { (void)scores; }
  virtual void on_embedding(std::vector<float> embedding) { (void)embedding; }
  enum class Next {
    go_on,
    pause,  // hold it until Scheduler::resume(): its reader is slow
    stop,   // enough (a stop text was found)
  };
  // A generated token, never a stop token. `score` is nothing unless logprobs were asked for. The same tokens
  // and scores whatever else the server does.
  virtual Next on_token(TokenId id, const ScoredToken* score) = 0;
  virtual void on_end(const JobEnd& end) = 0;  // the last call, exactly once
};

}  // namespace lapidary::serve
