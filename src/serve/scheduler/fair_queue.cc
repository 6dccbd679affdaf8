#include "serve/scheduler/fair_queue.h"

#include <algorithm>

namespace lapidary::serve {

void FairQueue::arrive(const std::string& client) {
  const auto found = accounts_.find(client);
  if (found != accounts_.end()) {
    found->second.tasks++;
    return;
  }
  Account fresh{1, 0};
  if (!accounts_.empty()) {
    fresh.rows = std::min_element(accounts_.begin(), accounts_.end(), [](const auto& a, const auto& b) {
                   return a.second.rows < b.second.rows;
                 })->second.rows;
  }
  accounts_.emplace(client, fresh);
}

void FairQueue::leave(const std::string& client) {
  const auto found = accounts_.find(client);
  if (--found->second.tasks == 0) accounts_.erase(found);
}

void FairQueue::charge(const std::string& client, int64_t rows) {
  accounts_.at(client).rows += static_cast<double>(rows);
}

std::vector<Task*> FairQueue::order(std::vector<Task*> waiting) const {
  const auto begun_end =
      std::stable_partition(waiting.begin(), waiting.end(), [](const Task* t) { return t->started > 0; });
  std::sort(waiting.begin(), begun_end, [](const Task* a, const Task* b) { return a->started < b->started; });
  std::vector<Task*> ordered(waiting.begin(), begun_end);

  struct Line {
    double rows = 0;
    std::vector<Task*> tasks;  // the next one last
  };
  std::map<std::string, Line> lines;
  for (auto it = begun_end; it != waiting.end(); ++it) lines[(*it)->job.client].tasks.push_back(*it);
  for (auto& [client, line] : lines) {
    line.rows = accounts_.at(client).rows;
    std::sort(line.tasks.begin(), line.tasks.end(), [](const Task* a, const Task* b) {
      return a->job.priority != b->job.priority ? a->job.priority < b->job.priority : a->ticket > b->ticket;
    });
  }
  while (!lines.empty()) {
    const auto next = std::min_element(lines.begin(), lines.end(), [](const auto& a, const auto& b) {
      if (a.second.rows != b.second.rows) return a.second.rows < b.second.rows;
      return a.second.tasks.back()->ticket < b.second.tasks.back()->ticket;
    });
    Task* task = next->second.tasks.back();
    next->second.tasks.pop_back();
    next->second.rows += static_cast<double>(task->n_ahead());
    ordered.push_back(task);
    if (next->second.tasks.empty()) lines.erase(next);
  }
  return ordered;
}

}  // namespace lapidary::serve
