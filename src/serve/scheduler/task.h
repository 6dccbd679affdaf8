// A job on its way: its tokens, its draws, and what it still owes to its sink. The scheduler's thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "serve/scheduler/scheduler.h"

namespace lapidary::serve {

struct Task {
  Task(Ticket ticket, Job job, std::shared_ptr<JobSink> sink, int64_t vocab_size);

  const Ticket ticket;
  Job job;
  const std::shared_ptr<JobSink> sink;
  const int64_t n_prompt;
  const bool shares;  // may take from and leave to the prefix cache

  std::vector<TokenId> tokens;  // the prompt, then what was generated; the job's own prompt is moved here
  int32_t sequence = -1;        // of the engine; -1: none, it waits
  int64_t length = 0;           // tokens of it that the sequence holds
  uint64_t started = 0;         // when it first began, as a number in order; 0: not yet
  bool paused = false;

  // Another prompt that is being computed has these first tokens too: worth waiting for.
  struct Joined {
    Ticket ticket = 0;
    int64_t length = 0;
  };
  std::optional<Joined> joined;
  std::set<int64_t> pauses;  // lengths at which others join this one
  struct Known {
    int64_t epoch = -1, tokens = 0;
  };
  Known reusable;  // what the prefix cache had of it at an epoch of the cache

  JobEnd end;
  Clock::time_point submitted = Clock::now();
  std::optional<Clock::time_point> begun, first_token, last_token;

  int64_t n_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t n_generated() const { return n_tokens() - n_prompt; }
  int64_t n_rest() const { return n_tokens() - length; }  // to be fed before the next draw
  // The same, foreseen, while it waits.
  int64_t n_ahead() const { return holds() ? n_rest() : n_tokens() - reusable.tokens; }
  bool holds() const { return sequence >= 0; }
  bool decodes() const { return holds() && n_generated() > 0 && n_rest() == 1; }

  // What feeding the next n tokens must report.
  Want want(int64_t n) const;
  // A row of this job. Takes what is wanted of it and nothing twice; never throws: what goes wrong is in
  // `error`.
  void on_logits(int64_t position, std::span<const float> logits);
  void on_final_norm(int64_t position, std::span<const float> norms);
  std::optional<std::string> error;

  // The draw of the step at hand.
  struct Drawn {
    TokenId id = 0;
    std::optional<ScoredToken> score;
  };
  std::optional<Drawn> drawn;

  std::vector<ScoredToken> take_prompt_scores() { return std::move(scores_); }
  std::vector<float> take_embedding();  // of length 1; all zeros stay so
  bool owes_prompt_results = true;      // scores and embedding have not been handed over

  void observe(TokenId id) { sampler_->observe(id); }  // REQUIRES: a draw before
  bool complete();  // the constraint allows nothing more. Errors of the constraint

 private:
  template <typename Work>
  void by_grammar(Work work);  // end.grammar_failed says whose fault it was when it throws
  bool needs_scores() const { return job.prompt_logprobs && n_scored_ < n_prompt - 1; }
  bool needs_norms() const { return job.pooling != Pooling::none && n_pooled_ < n_prompt; }

  int64_t vocab_size_;
  std::optional<Sampler> sampler_;   // from the first draw on: its counts are as large as the vocabulary
  std::vector<ScoredToken> scores_;  // of prompt tokens from the second on
  int64_t n_scored_ = 0;             // prompt rows whose scores are done
  std::vector<double> pooled_;
  int64_t n_pooled_ = 0;  // prompt rows that went into it
};

}  // namespace lapidary::serve
