// A fixed team of threads: parallel_for over an index range, caller included. Workers spin for a while, then
// sleep, so that a busy machine does not collapse; no thread is born while decoding. One caller at a time.
// Which thread takes which index never affects results.
#pragma once

#include <cstdint>
#include <memory>

#include "base/function_ref.h"

namespace lapidary {

// Physical cores that this process may use: affinity mask and cgroup CPU quota respected, hyper-threads
// counted once.
int usable_cores();

class Team {
 public:
  // `pin`: every thread, the caller's included, stays on a physical core of its own as long as the team
  // lives. Threads that the caller starts meanwhile begin on its core. Error(usage) when there are fewer
  // cores than threads; Error(limit) when the system refuses.
  explicit Team(int threads, bool pin = false);
  ~Team();
  Team(const Team&) = delete;
  int size() const;
  // Runs f(begin, end, thread) over disjoint contiguous ranges that cover [0, n); thread < size() says who
  // runs it, one range at a time. `grain`: ranges are multiples of it but for the last. noexcept bodies only.
  void parallel_for(int64_t n, int64_t grain, FunctionRef<void(int64_t begin, int64_t end, int thread)> f);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lapidary
