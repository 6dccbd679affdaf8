// An exchange without sockets: what was answered, piece by piece, and a reader that can be slow or gone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "serve/http/exchange.h"

namespace lapidary::serve::test {

class FakeExchange : public Exchange {
 public:
  void answer(HttpAnswer answer) override {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(answer);
    answers_++;
    done_ = true;
    changed_.notify_all();
  }
  void begin_stream(std::string content_type) override {
    const std::lock_guard lock(mutex_);
    answer_.content_type = std::move(content_type);
    streaming_ = true;
  }
  void write(std::string piece) override {
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    if (blocked_) unsent_ += piece.size();
    pieces_.push_back(std::move(piece));
    changed_.notify_all();
  }
  void end_stream() override {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  bool gone() const override {
    const std::lock_guard lock(mutex_);
    return gone_;
  }
  size_t unsent() const override {
    const std::lock_guard lock(mutex_);
    return unsent_;
  }
  void when_gone(std::function<void()> call) override {
    bool now = false;
    {
      const std::lock_guard lock(mutex_);
      now = gone_;
      if (!now) on_gone_ = call;
    }
    if (now) call();
  }
  void when_drained(std::function<void()> call) override {
    const std::lock_guard lock(mutex_);
    on_drained_ = std::move(call);
  }

  // What the test does.
  void leave() {
    std::function<void()> call;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      call = std::exchange(on_gone_, nullptr);
    }
    if (call) call();
  }
  void block(size_t unsent) {  // the reader takes nothing from now on; so many bytes wait already
    const std::lock_guard lock(mutex_);
    blocked_ = true;
    unsent_ = unsent;
  }
  void unblock() {
    std::function<void()> call;
    {
      const std::lock_guard lock(mutex_);
      blocked_ = false;
      unsent_ = 0;
      call = on_drained_;
    }
    if (call) call();
  }
  bool wait() {  // until the answer is complete
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [this] { return done_; });
  }
  bool wait_pieces(size_t n) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return pieces_.size() >= n || done_; });
  }
  bool done() const {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  bool streaming() const {
    const std::lock_guard lock(mutex_);
    return streaming_;
  }
  HttpAnswer got() const {
    const std::lock_guard lock(mutex_);
    return answer_;
  }
  int answers() const {
    const std::lock_guard lock(mutex_);
    return answers_;
  }
  std::vector<std::string> pieces() const {
    const std::lock_guard lock(mutex_);
    return pieces_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  HttpAnswer answer_;
  std::vector<std::string> pieces_;
  std::function<void()> on_gone_, on_drained_;
  size_t unsent_ = 0;
  int answers_ = 0;
  bool streaming_ = false, done_ = false, gone_ = false, blocked_ = false;
};

}  // namespace lapidary::serve::test
