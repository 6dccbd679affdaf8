// Which rows go into a step.
#include <algorithm>
#include <bit>

#include "serve/scheduler/batch_loop.h"

namespace lapidary::serve {
namespace {

// What a prompt must have in common with another one, beyond what the cache holds, to wait for it.
constexpr int64_t kWorthWaiting = 32;

int64_t common_prefix(const Task& a, const Task& b) {
  const auto end = std::mismatch(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end()).first;
  return std::min(end - a.tokens.begin(), a.n_tokens() - 1);
}

// Among prompts in order, the one that begins a step. Where the first will not be through with this step,
// every second one goes to the next whose rest is at most half as long; where that will not be either, every
// second of those to the next of at most half of that, and so on.
size_t whose_turn(const std::vector<Task*>& order, uint64_t turn, int64_t rows) {
  size_t at = 0;
  for (int levels = std::countr_one(turn); levels > 0 && order[at]->n_ahead() > rows; levels--) {
    const auto rest = order.begin() + static_cast<std::ptrdiff_t>(at) + 1;
    const auto next = std::find_if(rest, order.end(),
                                   [&](const Task* t) { return 2 * t->n_ahead() <= order[at]->n_ahead(); });
    if (next == order.end()) break;
    at = static_cast<size_t>(next - order.begin());
  }
  return at;
}

}  // namespace

void BatchLoop::end_late() {
  const Clock::time_point now = Clock::now();
  for_tasks([&](Task& task) {
    if (task.job.deadline && *task.job.deadline <= now) finish(task, EndReason::deadline);
  });
}

void BatchLoop::plan_decodes() {
  std::vector<Task*> tasks;
  for_tasks([&](Task& task) {
    if (task.decodes() && !task.paused) tasks.push_back(&task);
  });
  std::sort(tasks.begin(), tasks.end(), [](const Task* a, const Task* b) { return a->started < b->started; });
  for (Task* task : tasks) {
    if (!task->holds()) continue;  // an older one took its pages
    if (secure(*task, 1)) {
      plan_.push_back({.task = task, .first = task->length, .n = 1, .decodes = true});
    } else if (n_holding() > 1) {
      release(*task);
    } else {
      finish(*task, EndReason::error, "alone, and there is no room for its KV pages");
    }
  }
}

int64_t BatchLoop::reusable(Task& task) {
  if (task.shares && task.reusable.epoch != epoch_) task.reusable = {epoch_, cache_.would_reuse(task.tokens)};
  return task.reusable.tokens;
}

// Those under way, oldest first; then those that wait, if another one can begin.
std::vector<Task*> BatchLoop::prompts_in_order() {
  std::vector<Task*> order, waiting;
  for_tasks([&](Task& task) {
    if (task.paused || task.decodes()) return;
    (task.holds() ? order : waiting).push_back(&task);
  });
  std::sort(order.begin(), order.end(), [](const Task* a, const Task* b) { return a->started < b->started; });
  if (!has_place()) return order;
  for (Task* task : waiting) reusable(*task);
  for (Task* task : queue_.order(std::move(waiting))) order.push_back(task);
  return order;
}

void BatchLoop::plan_prompts() {
  const int64_t preempted_before = preemptions_;
  rows_left_ = options_.step_rows - static_cast<int64_t>(plan_.size());
  if (!plan_.empty()) rows_left_ = std::min(rows_left_, pace_.prompt_rows());
  std::vector<Task*> order = prompts_in_order();
  if (order.empty()) return;
  const uint64_t turn = blocked_ ? 0 : turn_++;
  blocked_ = false;
  const auto first = order.begin() + static_cast<std::ptrdiff_t>(whose_turn(order, turn, rows_left_));
  std::rotate(order.begin(), first, first + 1);
  const auto live = [&](const Task* task) {
    return std::any_of(tasks_.begin(), tasks_.end(), [&](const auto& t) { return t.get() == task; });
  };
  for (Task* task : order) {
    if (!task->holds()) {
      // Where memory is short, nobody begins in the step that took pages away, nor past the first who waits.
      if (blocked_ || preemptions_ != preempted_before || !live(task)) continue;
      if (joins(*task) || rows_left_ <= 0 || !has_place()) continue;
      blocked_ = !admit(*task) && live(task);
    }
    if (task->holds() && rows_left_ > 0) plan_prompt(*task);
  }
}

int64_t BatchLoop::next_mark(const Task& task) const {
  if (!task.shares) return task.n_tokens();
  const int64_t mark = cache_.next_mark(task.tokens, task.length);
  const auto pause = task.pauses.upper_bound(task.length);
  return pause == task.pauses.end() ? mark : std::min(mark, *pause);
}

void BatchLoop::plan_prompt(Task& task) {
  const int64_t mark = next_mark(task), n = std::min(rows_left_, mark - task.length);
  if (!secure(task, n)) return;  // older ones need the room; it waits
  plan_.push_back({.task = &task,
                   .first = task.length,
                   .n = n,
                   .decodes = false,
                   .marks = task.shares && task.length + n == mark});
  rows_left_ -= n;
}

// A copy that was kept while planning may have made pages shared that were not.
void BatchLoop::fit_plan() {
  while (!plan_.empty() && !cache_.make_room(plan_bytes())) plan_.pop_back();
}

// Whether it is better to wait for another prompt that has much in common with this one.
bool BatchLoop::joins(Task& task) {
  if (!task.shares || !options_.cache.enabled || options_.cache.max_entries == 0) return false;
  bool joined = false;
  for_tasks([&](Task& other) {
    const bool under_way =
        &other != &task && other.shares && other.holds() && !other.paused && !other.decodes();
    if (!joined && under_way) joined = join(task, other);
  });
  return joined;
}

bool BatchLoop::join(Task& task, Task& other) {
  if (task.joined && task.joined->ticket == other.ticket && other.length < task.joined->length) return true;
  const int64_t common = common_prefix(task, other);
  if (common < reusable(task) + kWorthWaiting) return false;
  if (common <= other.length) {  // it is past that point: its pages may still do
    if (common == other.length || engine_.earliest_restart(other.sequence) <= common) {
      cache_.mark(other.sequence);
      epoch_++;
    }
    return false;
  }
  other.pauses.insert(common);
  task.joined = {other.ticket, common};
  for (Planned& p : plan_) {
    if (p.task != &other || p.first + p.n < common) continue;
    rows_left_ += p.first + p.n - common;
    p.n = common - p.first;
    p.marks = true;
  }
  return true;
}

}  // namespace lapidary::serve
