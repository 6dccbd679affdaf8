#include "cli/serve/signals.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>

#include "base/error.h"
#include "cli/commands.h"

namespace lapidary {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

constexpr int kWakeUp = SIGUSR1;  // of our own destructor, to our own thread

sigset_t watched(bool hang_up) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  if (!is_ignored(SIGINT)) sigaddset(&set, SIGINT);
  if (hang_up && !is_ignored(SIGHUP)) sigaddset(&set, SIGHUP);
  sigaddset(&set, kWakeUp);
  return set;
}

}  // namespace

SignalWatch::SignalWatch(bool hang_up) {
  std::signal(SIGPIPE, SIG_IGN);
  const sigset_t set = watched(hang_up);
  ensure(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0, ErrorCode::internal, "signals cannot be blocked");
  thread_ = std::thread([this, set] {
    for (;;) {
      int signal = 0;
      if (sigwait(&set, &signal) != 0) continue;
      const std::lock_guard lock(mutex_);
      if (over_) return;
      if (signal == kWakeUp) continue;
      if (signal == SIGHUP) {
        hang_up_ = true;
      } else {
        if (!soft_ || stop_) _exit(signal == SIGINT || stop_ ? kExitInterrupted : 128 + signal);
        stop_ = true;
      }
      changed_.notify_all();
    }
  });
}

SignalWatch::~SignalWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  pthread_kill(thread_.native_handle(), kWakeUp);
  thread_.join();
}

void SignalWatch::stop_softly() {
  const std::lock_guard lock(mutex_);
  soft_ = true;
}

SignalWatch::Event SignalWatch::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [this] { return stop_ || hang_up_; });
  if (stop_) return Event::stop;
  if (!hang_up_) return Event::none;
  hang_up_ = false;
  return Event::hang_up;
}

}  // namespace lapidary
