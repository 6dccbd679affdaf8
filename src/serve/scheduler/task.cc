#include "serve/scheduler/task.h"

#include <cmath>
#include <utility>

#include "serve/scheduler/scores.h"

namespace lapidary::serve {

Task::Task(Ticket t, Job j, std::shared_ptr<JobSink> s, int64_t vocab_size)
    : ticket(t),
      job(std::move(j)),
      sink(std::move(s)),
      n_prompt(static_cast<int64_t>(job.prompt.size())),
      shares(job.reuse && !job.prompt_logprobs && job.pooling == Pooling::none),
      tokens(std::move(job.prompt)),
      vocab_size_(vocab_size) {
  end.prompt_tokens = n_prompt;
}

Want Task::want(int64_t n) const {
  const bool in_prompt = length < n_prompt, draws = length + n == n_tokens() && job.max_tokens > 0;
  if (in_prompt && needs_scores()) return Want::all;
  if (in_prompt && needs_norms()) return draws ? Want::all : Want::hidden;
  return draws ? Want::last : Want::none;
}

void Task::on_logits(int64_t position, std::span<const float> logits) {
  if (error) return;
  try {
    logits = logits.first(static_cast<size_t>(vocab_size_));
    if (needs_scores() && position == n_scored_) {
      scores_.push_back(score_token(logits, tokens[static_cast<size_t>(position + 1)], *job.prompt_logprobs));
      n_scored_++;
    }
    if (position != n_tokens() - 1 || job.max_tokens == 0) return;
    if (!sampler_) {
      sampler_.emplace(job.sampling, vocab_size_);
      for (const TokenId id : tokens) sampler_->observe(id);
    }
    std::span<const uint32_t> mask;
<<<<<<< HEAD
    if (job.constraint) mask = job.constraint->mask();
    Drawn draw{sampler_->sample(logits, static_cast<uint64_t>(n_generated()), mask), {}};
=======
    if (job.constraint) {
      end.grammar_failed = true;  // should it throw
      mask = job.constraint->mask();
      end.grammar_failed = false;
    }
    Drawn draw{sampler_.sample(logits, static_cast<uint64_t>(n_generated()), mask), {}};
>>>>>>> api
    if (job.constraint) job.constraint->take(draw.id);
    if (job.logprobs) draw.score = score_token(logits, draw.id, *job.logprobs);
    drawn = std::move(draw);
  } catch (const std::exception& e) {
    error = e.what();
  }
}

void Task::on_final_norm(int64_t position, std::span<const float> norms) {
  if (!needs_norms() || position != n_pooled_) return;
  if (pooled_.empty()) pooled_.resize(norms.size());
  for (size_t i = 0; i < norms.size(); i++) {
    const auto x = static_cast<double>(norms[i]);
    pooled_[i] = job.pooling == Pooling::mean ? pooled_[i] + x : x;
  }
  n_pooled_++;
}

// The mean has the direction of the sum.
std::vector<float> Task::take_embedding() {
  double squares = 0;
  for (const double x : pooled_) squares += x * x;
  const double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
  std::vector<float> embedding;
  embedding.reserve(pooled_.size());
  for (const double x : pooled_) embedding.push_back(static_cast<float>(x * scale));
  return embedding;
}

}  // namespace lapidary::serve
