#include "serve/scheduler/batch_loop.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace lapidary::serve {
namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Final norms on their way to the tasks that pool them.
template <typename F>
class FinalNorms : public Probe {
 public:
  explicit FinalNorms(F& see) : see_(see) {}
  void on_hidden(int64_t, std::span<const RowId>, std::span<const float>) override {}
  void on_final_norm(std::span<const RowId> rows, std::span<const float> values) override {
    const size_t width = rows.empty() ? 0 : values.size() / rows.size();
    for (size_t r = 0; r < rows.size(); r++) see_(rows[r], values.subspan(r * width, width));
  }
  void on_kv(int64_t, RowId, std::span<const float>, std::span<const float>) override {}
  void on_scores(int64_t, RowId, int64_t, int64_t, std::span<const float>) override {}
  bool wants_scores() const override { return false; }

 private:
  F& see_;
};

}  // namespace

BatchLoop::BatchLoop(Engine& engine, const SchedulerOptions& options, std::atomic<int64_t>& live)
    : engine_(engine),
      options_(options),
      live_(live),
      cache_(engine, options.cache),
      pace_(options.step_seconds, options.step_rows),
      gap_counts_(std::size(kGapBounds) + 1) {}

bool BatchLoop::idle() const {
  return std::none_of(tasks_.begin(), tasks_.end(), [](const auto& task) { return task != nullptr; });
}

void BatchLoop::add(std::unique_ptr<Task> task) {
  queue_.arrive(task->job.client);
  tasks_.push_back(std::move(task));
}

void BatchLoop::cancel(Ticket ticket) {
  for_tasks([&](Task& task) {
    if (task.ticket == ticket) finish(task, EndReason::cancelled);
  });
}

// A pause is no gap.
void BatchLoop::resume(Ticket ticket) {
  for_tasks([&](Task& task) {
    if (task.ticket != ticket || !task.paused) return;
    task.paused = false;
    task.last_token.reset();
  });
}

void BatchLoop::end_all(EndReason reason, const std::string& error) {
  for_tasks([&](Task& task) { finish(task, reason, error); });
}

std::optional<Clock::time_point> BatchLoop::next_deadline() const {
  std::optional<Clock::time_point> next;
  for_tasks([&](const Task& task) {
    if (task.job.deadline && (!next || *task.job.deadline < *next)) next = task.job.deadline;
  });
  return next;
}

void BatchLoop::sweep() {
  plan_.clear();
  std::erase(tasks_, nullptr);
  ended_.clear();
}

bool BatchLoop::step() {
  sweep();
  end_late();
  plan_decodes();
  plan_prompts();
  fit_plan();
  if (!plan_.empty()) {
    run();
    return true;
  }
  if (!ended_.empty()) return true;
  for_tasks([&](const Task& task) {
    ensure(task.paused, ErrorCode::internal, "job {} of request {} waits for nothing", task.job.index,
           task.job.request);
  });
  return false;
}

void BatchLoop::forward(std::span<const Planned> plan) {
  std::vector<Feed> feeds;
  bool pools = false;
  for (const Planned& p : plan) {
    const std::span<const TokenId> tokens = p.task->tokens;
    const Want want = p.task->want(p.n);
    feeds.push_back(
        {p.task->sequence, tokens.subspan(static_cast<size_t>(p.first), static_cast<size_t>(p.n)), want});
    pools = pools || (p.task->job.pooling != Pooling::none && want != Want::none);
  }
  const auto see = [&](RowId row, std::span<const float> values) {
    for (const Planned& p : plan)
      if (p.task->sequence == row.sequence) p.task->on_final_norm(row.position, values);
  };
  FinalNorms norms(see);
  engine_.forward(
      feeds,
      [&](size_t feed, int64_t index, std::span<const float> logits) {
        plan[feed].task->on_logits(plan[feed].first + index, logits);
      },
      pools ? &norms : nullptr);
}

void BatchLoop::clear_cache() {
  cache_.clear();
  epoch_++;
}

// A step that fails leaves no trace, but for a task that cannot be told from its neighbours: each is tried
// alone then.
void BatchLoop::run() {
  const Clock::time_point start = Clock::now();
  try {
    forward(plan_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data) throw;
    for (const Planned& p : plan_) {
      try {
        forward({&p, 1});
      } catch (const Error& alone) {
        if (alone.code() != ErrorCode::data) throw;
        p.task->error = alone.what();
      }
    }
  }
  const double seconds = seconds_between(start, Clock::now());
  int64_t prompts = 0;
  for (const Planned& p : plan_) {
    (p.decodes ? decode_rows_ : prompts) += p.n;
    queue_.charge(p.task->job.client, p.n);
  }
  prompt_rows_ += prompts;
  steps_++;
  busy_seconds_ += seconds;
  pace_.measured(prompts, seconds);
  for (const Planned& p : plan_) settle(p);
}

void BatchLoop::settle(const Planned& planned) {
  Task& task = *planned.task;
  if (task.error) return finish(task, EndReason::error, *task.error);
  task.length += planned.n;
  if (planned.marks) {
    cache_.mark(task.sequence);
    epoch_++;
  }
  if (task.length >= task.n_prompt && task.owes_prompt_results) {
    task.owes_prompt_results = false;
    if (task.job.prompt_logprobs &&
        !tell(task, [&] { task.sink->on_prompt_scores(task.take_prompt_scores()); }))
      return;
    if (task.job.pooling != Pooling::none &&
        !tell(task, [&] { task.sink->on_embedding(task.take_embedding()); }))
      return;
  }
  if (task.n_rest() > 0) return;
  if (task.job.max_tokens == 0) return finish(task, EndReason::complete);
  deliver_token(task);
}

void BatchLoop::deliver_token(Task& task) {
  const Task::Drawn drawn = *std::exchange(task.drawn, std::nullopt);
  const std::vector<TokenId>& stops = task.job.stop_ids;
  if (std::find(stops.begin(), stops.end(), drawn.id) != stops.end()) {
    task.end.stop_id = drawn.id;
    return finish(task, EndReason::stop_token);
  }
  count_gap(task);
  task.tokens.push_back(drawn.id);
  task.end.generated_tokens++;
  JobSink::Next next{};
  bool complete = false;
  const bool told = tell(task, [&] {
    task.observe(drawn.id);
    next = task.sink->on_token(drawn.id, drawn.score ? &*drawn.score : nullptr);
    complete = next != JobSink::Next::stop && task.complete();
  });
  if (!told) return;
  if (next == JobSink::Next::stop) return finish(task, EndReason::sink);
  if (complete) return finish(task, EndReason::complete);
  if (task.n_generated() == task.job.max_tokens) return finish(task, EndReason::max_tokens);
  if (task.length == engine_.context()) return finish(task, EndReason::context);
  task.paused = next == JobSink::Next::pause;
}

void BatchLoop::count_gap(Task& task) {
  const Clock::time_point now = Clock::now();
  if (!task.first_token) task.first_token = now;
  if (task.last_token) {
    const double gap = seconds_between(*task.last_token, now);
    const auto bound = std::lower_bound(std::begin(kGapBounds), std::end(kGapBounds), gap);
    gap_counts_[static_cast<size_t>(bound - std::begin(kGapBounds))]++;
    worst_gap_ = std::max(worst_gap_, gap);
  }
  task.last_token = now;
}

// What was computed is worth keeping, unless the job went wrong or nobody wants it any more: those free their
// pages at once.
void BatchLoop::finish(Task& task, EndReason reason, std::string error) {
  const bool keeps =
      reason != EndReason::cancelled && reason != EndReason::deadline && reason != EndReason::error;
  if (task.holds()) let_go(task, keeps);
  const Clock::time_point now = Clock::now(), begun = task.begun.value_or(now),
                          first = task.first_token.value_or(now);
  task.end.reason = reason;
  task.end.error = std::move(error);
  task.end.queue_seconds = seconds_between(task.submitted, begun);
  task.end.prefill_seconds = seconds_between(begun, first);
  task.end.decode_seconds = seconds_between(first, now);
  queue_.leave(task.job.client);
  const auto place =
      std::find_if(tasks_.begin(), tasks_.end(), [&](const auto& t) { return t.get() == &task; });
  ended_.push_back(std::move(*place));
  live_--;
  try {
    task.sink->on_end(task.end);
  } catch (const std::exception& e) {
    log(fmt::format("request {}: its end could not be told: {}", task.job.request, e.what()));
  }
}

// A sink or a constraint that throws ends its own job only.
bool BatchLoop::tell(Task& task, FunctionRef<void()> call) {
  try {
    call();
    return true;
  } catch (const std::exception& e) {
    finish(task, EndReason::error, e.what());
    return false;
  }
}

void BatchLoop::log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

}  // namespace lapidary::serve
