// Signals of a server: the first SIGTERM or SIGINT asks it to stop, the second ends it at once; SIGHUP asks
// it to read its files again; SIGPIPE is ignored.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace lapidary {

// One at a time. Constructed on the main thread before any other thread is started: they inherit that the
// signals are blocked, so that only the thread in here takes them. A SIGINT or SIGHUP that was ignored (a
// background job of a script, nohup) stays ignored.
class SignalWatch {
 public:
  // hang_up: take SIGHUP as "read again"; without, it ends the program as ever. A signal that arrives before
  // stop_softly() ends the program at once: there is nothing to finish yet.
  explicit SignalWatch(bool hang_up);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;

  void stop_softly();  // from now on the first signal is wait()'s
  enum class Event { none, hang_up, stop };
  Event wait(std::chrono::milliseconds most);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool soft_ = false, stop_ = false, hang_up_ = false, over_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace lapidary
