// The work of the scheduler's thread: which rows go into a step, where their pages come from, and what
// becomes of the results. Nothing here locks; one thread calls it all.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "serve/scheduler/fair_queue.h"
#include "serve/scheduler/pace.h"
#include "serve/scheduler/scheduler.h"
#include "serve/scheduler/task.h"

namespace lapidary::serve {

class BatchLoop {
 public:
  // live: jobs that have not ended; counted down before on_end.
  BatchLoop(Engine& engine, const SchedulerOptions& options, std::atomic<int64_t>& live);

  void add(std::unique_ptr<Task> task);
  void cancel(Ticket ticket);
  void resume(Ticket ticket);
  void end_all(EndReason reason, const std::string& error);
  // One step. False: nobody can move until something comes from outside, or next_deadline().
  bool step();
  void sweep();  // lets go of what has ended
  std::optional<Clock::time_point> next_deadline() const;
  bool idle() const;
  SchedulerView view() const;
  PrefixCache& cache() { return cache_; }
  void clear_cache();

 private:
  struct Planned {
    Task* task = nullptr;
    int64_t first = 0, n = 0;  // positions [first, first + n)
    bool decodes = false;
    bool marks = false;  // the prefix cache is shown where it ends
  };

  // The plan of a step (batch_plan.cc).
  void end_late();
  void plan_decodes();
  void plan_prompts();
  void plan_prompt(Task& task);
  void fit_plan();
  std::vector<Task*> prompts_in_order();
  int64_t next_mark(const Task& task) const;
  bool joins(Task& task);
  bool join(Task& task, Task& other);
  int64_t reusable(Task& task);

  // Sequences and pages (batch_room.cc).
  bool has_place() const;
  bool admit(Task& task);
  bool fits_beside_others(const Task& task);
  bool secure(const Task& task, int64_t n);
  int64_t plan_bytes() const;
  Task* youngest(bool paused, uint64_t after) const;
  void let_go(Task& task, bool keep);
  void release(Task& task);
  int64_t n_holding() const;

  // The step, and what comes of it (batch_loop.cc).
  void run();
  void forward(std::span<const Planned> plan);
  void settle(const Planned& planned);
  void deliver_token(Task& task);
  void count_gap(Task& task);
  void finish(Task& task, EndReason reason, std::string error = "");
  bool tell(Task& task, FunctionRef<void()> call);
  void log(const std::string& line) const;
  template <typename F>
  void for_tasks(F&& f) const {
    for (size_t i = 0; i < tasks_.size(); i++)
      if (tasks_[i]) f(*tasks_[i]);
  }

  Engine& engine_;
  const SchedulerOptions options_;
  std::atomic<int64_t>& live_;
  PrefixCache cache_;
  FairQueue queue_;
  Pace pace_;
  std::vector<std::unique_ptr<Task>> tasks_;  // in order of arrival; an entry that has ended is empty
  std::vector<std::unique_ptr<Task>> ended_;  // until no plan names them
  std::vector<Planned> plan_;
  int64_t rows_left_ = 0;  // of prompts, that the plan has room for
  bool blocked_ = false;   // the next to begin had no room: nobody overtakes it
  uint64_t starts_ = 0, turn_ = 0;
  int64_t epoch_ = 0;  // of the prefix cache's contents
  int64_t steps_ = 0, prompt_rows_ = 0, decode_rows_ = 0, preemptions_ = 0;
  double busy_seconds_ = 0, worst_gap_ = 0;
  std::vector<int64_t> gap_counts_;
};

}  // namespace lapidary::serve
