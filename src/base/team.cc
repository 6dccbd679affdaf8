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

namespace {

// One allowed CPU of each physical core, in ascending order.
std::vector<int> allowed_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::set<std::string> seen;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &allowed) && seen.insert(core_key(cpu)).second) cpus.push_back(cpu);
  return cpus;
}

}  // namespace

int usable_cores() {
  const auto cores = static_cast<int>(allowed_cores().size());
  int count = cores ? cores : static_cast<int>(std::thread::hardware_concurrency());
  if (const int quota = cgroup_quota(); quota > 0) count = std::min(count, quota);
  return std::max(1, count);
}

using Body = FunctionRef<void(int64_t, int64_t, int)>;

constexpr int64_t kPiecesPerThread = 4;  // a late or slow thread leaves the rest to the others

// A job is cut into pieces that threads claim one by one, the caller among them, so that nobody ever waits
// for a thread that the machine has not let run: only for one that is at work on a piece.
struct Team::Impl {
  // Number of the job (32 bits), how many pieces it has (16), the next one to claim (16): claimed by
  // compare-and-swap, so that a claim can only succeed while the job is unfinished and what describes it
  // below is valid.
  std::atomic<uint64_t> ticket{0};
  std::atomic<uint32_t> epoch{0};  // grows by one a job; workers sleep on it
  std::atomic<int> sleepers{0};
  std::atomic<uint32_t> done{0};  // pieces finished
  std::atomic<bool> stop{false};
  const Body* body = nullptr;
  int64_t n = 0, share = 0;
  std::vector<int> pin_to;            // CPU of each thread; empty: wherever the system puts them
  cpu_set_t before;                   // where the caller was allowed, when threads are pinned
  std::vector<std::jthread> workers;  // last, so that they end before what they use

  void run_pieces(int thread) {
    uint64_t seen = ticket.load(std::memory_order_acquire);
    while ((seen & 0xffff) < (seen >> 16 & 0xffff)) {
      if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire))
        continue;
      const int64_t begin = share * static_cast<int64_t>(seen & 0xffff);
      (*body)(begin, std::min(n, begin + share), thread);
      const auto pieces = static_cast<uint32_t>(seen >> 16 & 0xffff);
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces) done.notify_one();
      seen = ticket.load(std::memory_order_acquire);
    }
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

  bool pin(int thread) const {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(pin_to[static_cast<size_t>(thread)]), &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
  }

  void work(int thread) {
    if (!pin_to.empty()) pin(thread);  // where it is refused, the system places the thread
    for (uint32_t seen = 0; !stop.load(std::memory_order_acquire); run_pieces(thread))
      seen = wait_for_job(seen);
  }

  void start(int64_t count, int64_t piece, uint64_t pieces, const Body& f) {
    body = &f;
    n = count;
    share = piece;
    done.store(0, std::memory_order_relaxed);
    const uint64_t job = (ticket.load(std::memory_order_relaxed) >> 32) + 1;
    ticket.store(job << 32 | pieces << 16, std::memory_order_release);
    epoch.fetch_add(1);  // sequentially consistent: pairs with the sleeper count
    if (sleepers.load() > 0) epoch.notify_all();
  }

  void finish(uint32_t pieces) {
    for (int spin = 0; spin < kSpins; spin++) {
      if (done.load(std::memory_order_acquire) == pieces) return;
      pause_cpu();
    }
    for (uint32_t so_far; (so_far = done.load(std::memory_order_acquire)) != pieces;) done.wait(so_far);
  }
};

Team::Team(int threads, bool pin) : impl_(std::make_unique<Impl>()) {
  ensure(threads >= 1 && threads <= 4096, ErrorCode::usage, "threads: expected 1 to 4096, got {}", threads);
  if (pin) impl_->pin_to = allowed_cores();
  ensure(!pin || threads <= static_cast<int>(impl_->pin_to.size()), ErrorCode::usage,
         "threads: expected at most {} when they are pinned (one for each core), got {}",
         impl_->pin_to.size(), threads);
  if (pin) {
    CPU_ZERO(&impl_->before);
    sched_getaffinity(0, sizeof(cpu_set_t), &impl_->before);
    ensure(impl_->pin(0), ErrorCode::limit, "cannot pin a thread to CPU {}", impl_->pin_to[0]);
  }
  for (int i = 1; i < threads; i++) impl_->workers.emplace_back([impl = impl_.get(), i] { impl->work(i); });
}

Team::~Team() {
  impl_->stop.store(true);
  impl_->epoch.fetch_add(1);
  impl_->epoch.notify_all();
  if (!impl_->pin_to.empty()) sched_setaffinity(0, sizeof(cpu_set_t), &impl_->before);
}

int Team::size() const {
  return static_cast<int>(impl_->workers.size()) + 1;
}

void Team::parallel_for(int64_t n, int64_t grain, Body f) {
  if (n <= 0) return;
  const int64_t grains = (n + grain - 1) / grain;
  if (size() == 1 || grains == 1) {
    f(0, n, 0);
    return;
  }
  const int64_t most = std::min<int64_t>(size() * kPiecesPerThread, 0xffff);
  const int64_t share = (grains + most - 1) / most * grain, pieces = (n + share - 1) / share;
  impl_->start(n, share, static_cast<uint64_t>(pieces), f);
  impl_->run_pieces(0);
  impl_->finish(static_cast<uint32_t>(pieces));
}

}  // namespace lapidary
