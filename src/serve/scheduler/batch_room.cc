// Who holds a sequence, and where the pages of a step come from.
#include <algorithm>

#include "base/error.h"
#include "serve/scheduler/batch_loop.h"

namespace lapidary::serve {

int64_t BatchLoop::n_holding() const {
  int64_t n = 0;
  for_tasks([&](const Task& task) { n += task.holds(); });
  return n;
}

Task* BatchLoop::youngest(bool paused, uint64_t after) const {
  Task* found = nullptr;
  for_tasks([&](Task& task) {
    if (task.holds() && task.paused == paused && task.started > after &&
        (!found || task.started > found->started))
      found = &task;
  });
  return found;
}

// keep: what was computed may serve others.
void BatchLoop::let_go(Task& task, bool keep) {
  if (keep && task.shares) {
    cache_.give(task.sequence);
    epoch_++;
  } else {
    engine_.close(task.sequence);
  }
  task.sequence = -1;
  task.length = 0;
}

// It goes on later from what the cache still holds then, with the same bits.
void BatchLoop::release(Task& task) {
  std::erase_if(plan_, [&](const Planned& p) { return p.task == &task; });
  let_go(task, true);
  task.pauses.clear();
  task.end.preemptions++;
  preemptions_++;
}

int64_t BatchLoop::plan_bytes() const {
  int64_t bytes = 0;
  for (const Planned& p : plan_) bytes += engine_.kv_bytes_to_feed(p.task->sequence, p.n);
  return bytes;
}

// Room for n more rows of a task beside the plan: from the cache, then from paused tasks, then from younger
// ones. So the oldest always gets on.
bool BatchLoop::secure(const Task& task, int64_t n) {
  while (!cache_.make_room(plan_bytes() + engine_.kv_bytes_to_feed(task.sequence, n))) {
    Task* victim = youngest(true, 0);
    if (!victim) victim = youngest(false, task.started);
    if (victim) {
      release(*victim);
      continue;
    }
    // Alone it fits, but for pages that it shares with the cache and would have to copy.
    if (n_holding() > 1) return false;
    cache_.clear();
    epoch_++;
    return engine_.kv_bytes_to_feed(task.sequence, n) <= engine_.kv_room().free();
  }
  return true;
}

// What is left of its prompt and of those under way, and a page for each text that grows.
bool BatchLoop::fits_beside_others(const Task& task) {
  const int64_t page = Engine::kv_page_positions();
  int64_t bytes = engine_.kv_bytes_at_length(std::min(engine_.context(), task.n_ahead() + page));
  for_tasks([&](const Task& other) {
    if (!other.holds() || other.paused) return;
    const int64_t rest = std::min(other.n_rest() + page, engine_.context() - other.length);
    bytes += std::min(engine_.kv_bytes_to_feed(other.sequence, std::max<int64_t>(rest, 0)),
                      engine_.kv_bytes_at_length(engine_.context()));
  });
  const int64_t free = engine_.kv_room().free();
  return bytes <= free || bytes <= free + cache_.stats().bytes;
}

bool BatchLoop::has_place() const {
  return n_holding() < options_.max_running || youngest(true, 0);
}

// A sequence for a task that waits. False: there is no room for it now. REQUIRES: has_place().
bool BatchLoop::admit(Task& task) {
  if (n_holding() >= options_.max_running) release(*youngest(true, 0));
  while (n_holding() > 0 && !fits_beside_others(task)) {
    Task* idle = youngest(true, 0);
    if (!idle) return false;
    release(*idle);
  }
  PrefixCache::Begin begin;
  try {
    begin = cache_.begin(task.tokens, task.shares);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::limit) throw;
    if (n_holding() == 0) finish(task, EndReason::error, error.what());
    return false;
  }
  task.sequence = begin.sequence;
  task.length = begin.cached;
  task.joined.reset();
  if (task.started > 0) return true;
  task.started = ++starts_;
  task.begun = Clock::now();
  task.end.cached_tokens = begin.cached;
  task.end.reuse = begin.reuse;
  return tell(task, [&] { task.sink->on_start(begin.cached); });
}

}  // namespace lapidary::serve
