#include "base/team.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace lapidary {
namespace {

constexpr int kSpins = 4000;  // about 100 microseconds of pauses before a thread goes to sleep

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// "max 100000" or "150000 100000" in cgroup v2's cpu.max; 0 when there is no quota.
int cgroup_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  try {
    return std::max(1, static_cast<int>(std::stod(quota) / period));
  } catch (const std::exception&) {
    return 0;  // not a number: no quota that we can read
  }
}

// The first hyper-thread of each core stands for the core.
std::string core_key(int cpu) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
  std::string siblings;
  return std::getline(file, siblings) ? siblings : std::to_string(cpu);
}

}  // namespace

int usable_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::set<std::string> cores;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
      if (CPU_ISSET(cpu, &allowed)) cores.insert(core_key(cpu));
  }
  int count = cores.empty() ? static_cast<int>(std::thread::hardware_concurrency()) : static_cast<int>(cores.size());
  if (const int quota = cgroup_quota(); quota > 0) count = std::min(count, quota);
  return std::max(1, count);
}

using Body = FunctionRef<void(int64_t, int64_t, int)>;

struct Team::Impl {
  std::vector<std::jthread> workers;
  std::atomic<uint32_t> epoch{0};     // grows by one a job; workers wait for it to change
  std::atomic<int> sleepers{0};
  std::atomic<int> unfinished{0};
  std::atomic<bool> stop{false};
  const Body* body = nullptr;
  int64_t n = 0, share = 0;

  void run_share(int thread) {
    const int64_t begin = std::min(n, share * thread), end = std::min(n, begin + share);
    if (begin < end) (*body)(begin, end, thread);
  }

  uint32_t wait_for_job(uint32_t seen) {
    for (int spin = 0; spin < kSpins; spin++) {
      if (const uint32_t now = epoch.load(std::memory_order_acquire); now != seen) return now;
      pause_cpu();
    }
    sleepers.fetch_add(1);
    epoch.wait(seen);
    sleepers.fetch_sub(1);
    return epoch.load(std::memory_order_acquire);
  }

  void work(int thread) {
    uint32_t seen = 0;
    for (;;) {
      seen = wait_for_job(seen);
      if (stop.load(std::memory_order_relaxed)) return;
      run_share(thread);
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
    }
  }

  void start(int64_t count, int64_t per_thread, const Body& f) {
    body = &f;
    n = count;
    share = per_thread;
    unfinished.store(static_cast<int>(workers.size()), std::memory_order_relaxed);
    epoch.fetch_add(1);  // sequentially consistent: pairs with the sleeper count
    if (sleepers.load() > 0) epoch.notify_all();
  }

  void finish() {
    for (int spin = 0; spin < kSpins; spin++) {
      if (unfinished.load(std::memory_order_acquire) == 0) return;
      pause_cpu();
    }
    for (int left; (left = unfinished.load(std::memory_order_acquire)) != 0;) unfinished.wait(left);
  }
};

Team::Team(int threads) : impl_(std::make_unique<Impl>()) {
  ensure(threads >= 1 && threads <= 4096, ErrorCode::usage, "threads: expected 1 to 4096, got {}", threads);
  for (int i = 1; i < threads; i++) impl_->workers.emplace_back([impl = impl_.get(), i] { impl->work(i); });
}

Team::~Team() {
  impl_->stop.store(true);
  impl_->epoch.fetch_add(1);
  impl_->epoch.notify_all();
}

int Team::size() const { return static_cast<int>(impl_->workers.size()) + 1; }

void Team::parallel_for(int64_t n, int64_t grain, Body f) {
  if (n <= 0) return;
  const int64_t pieces = (n + grain - 1) / grain, threads = std::min<int64_t>(size(), pieces);
  if (threads == 1) {
    f(0, n, 0);
    return;
  }
  impl_->start(n, (pieces + threads - 1) / threads * grain, f);
  impl_->run_share(0);
  impl_->finish();
}

}  // namespace lapidary
