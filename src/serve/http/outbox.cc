#include "serve/http/outbox.h"

#include <utility>

namespace lapidary::serve {
namespace {

// They must not throw; one that does keeps the others from nothing.
void run(const std::vector<std::function<void()>>& calls) {
  for (const auto& call : calls) {
    try {
      call();
    } catch (...) {
    }
  }
}

}  // namespace

Outbox::Outbox(AnswerForm form, size_t max_unsent, std::function<void()> wake, HttpAnswer unfinished)
    : form_(std::move(form)),
      max_unsent_(max_unsent),
      wake_(std::move(wake)),
      unfinished_(std::move(unfinished)),
      keep_alive_(form_.keep_alive) {}

void Outbox::wake_locked() {
  if (closed_ || woken_) return;
  woken_ = true;
  wake_();
}

void Outbox::append_locked(std::string_view bytes) {
  waiting_ += bytes;
  unsent_ += bytes.size();
  if (unsent_ > Exchange::kSlowReader) slow_ = true;
}

// The rest is done by the socket's thread, which closes: whoever writes here may hold a lock that the
// callbacks of when_gone want.
void Outbox::break_locked() {
  phase_ = Phase::broken;
  gone_ = true;
  woken_ = false;  // an earlier call may not have been answered yet: the peer takes nothing
  wake_locked();
}

void Outbox::leave_locked(Calls& to_run, Calls& dropped) {
  gone_ = true;
  to_run = std::exchange(when_gone_, {});
  dropped = std::exchange(when_drained_, {});
}

void Outbox::finish_locked(Calls& dropped) {
  phase_ = Phase::ended;
  for (Calls* calls : {&when_gone_, &when_drained_}) {
    for (auto& call : *calls) dropped.push_back(std::move(call));
    calls->clear();
  }
  wake_locked();
}

void Outbox::answer(HttpAnswer answer) {
  Calls dropped;  // destroyed after the lock is
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::nothing || closed_) return;
  AnswerForm form = form_;
  form.keep_alive = keep_alive_;
  append_locked(answer_head(form, answer.status, answer.content_type, answer.headers, answer.body.size()));
  if (!form_.head && answer.status != 204 && answer.status != 304) append_locked(answer.body);
  finish_locked(dropped);
}

void Outbox::begin_stream(std::string_view content_type) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::nothing || gone_) return;
  AnswerForm form = form_;
  form.keep_alive = keep_alive_;
  append_locked(answer_head(form, 200, content_type, {}, std::nullopt));
  phase_ = Phase::streaming;
  chunked_ = !form_.http_1_0;
  if (form_.http_1_0) keep_alive_ = false;
  wake_locked();
}

void Outbox::write(std::string_view piece) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::streaming || gone_ || form_.head || piece.empty()) return;
  if (unsent_ > 0 && unsent_ + piece.size() > max_unsent_) {
    break_locked();
    return;
  }
  std::string framed;
  if (chunked_) append_chunk(framed, piece);
  append_locked(chunked_ ? std::string_view(framed) : piece);
  wake_locked();
}

void Outbox::end_stream() {
  Calls dropped;
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::streaming || gone_) return;
  if (chunked_ && !form_.head) append_locked("0\r\n\r\n");
  finish_locked(dropped);
}

void Outbox::drop() {
  bool unanswered = false;
  {
    const std::lock_guard lock(mutex_);
    unanswered = phase_ == Phase::nothing && !gone_;
    if (!unanswered && phase_ != Phase::ended) {
      phase_ = Phase::broken;
      woken_ = false;
      wake_locked();
    }
  }
  if (unanswered) answer(unfinished_);
}

void Outbox::crash() {
  bool unanswered = false;
  {
    const std::lock_guard lock(mutex_);
    unanswered = phase_ == Phase::nothing && !gone_;
    if (phase_ == Phase::streaming) break_locked();
  }
  if (unanswered) answer(unfinished_);
}

void Outbox::when_gone(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    if (!gone_) {
      if (phase_ != Phase::ended) when_gone_.push_back(std::move(call));
      return;
    }
  }
  call();
}

void Outbox::when_drained(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  if (!gone_ && phase_ != Phase::ended) when_drained_.push_back(std::move(call));
}

void Outbox::keep_alive(bool keep) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::nothing) keep_alive_ = keep;
}

std::string Outbox::take() {
  const std::lock_guard lock(mutex_);
  woken_ = false;
  return std::exchange(waiting_, {});
}

void Outbox::taken(size_t bytes) {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    unsent_ -= bytes;
    if (unsent_ == 0 && slow_) {
      slow_ = false;
      calls = when_drained_;
    }
  }
  run(calls);
}

Outbox::State Outbox::state() const {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::broken) return State::broken;
  return phase_ == Phase::ended && waiting_.empty() ? State::complete : State::open;
}

bool Outbox::kept_alive() const {
  const std::lock_guard lock(mutex_);
  return keep_alive_;
}

void Outbox::half_close() {
  Calls calls, dropped;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::ended) return;
    if (phase_ == Phase::streaming) break_locked();
    leave_locked(calls, dropped);
  }
  run(calls);
}

void Outbox::close() {
  Calls calls, dropped;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    waiting_.clear();
    unsent_ = 0;
    if (phase_ != Phase::ended) leave_locked(calls, dropped);
  }
  run(calls);
}

}  // namespace lapidary::serve
