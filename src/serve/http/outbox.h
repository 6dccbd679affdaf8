// What waits to be sent as the answer to one request: filled by whoever answers, emptied by the socket's
// thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serve/http/exchange.h"
#include "serve/http/protocol.h"

namespace lapidary::serve {

class Outbox {
 public:
  // `wake` tells the socket's thread that there is news; it is called under the outbox's lock, so it must
  // only post, and never after close(). `unfinished` is sent for an exchange that was dropped.
  Outbox(AnswerForm form, size_t max_unsent, std::function<void()> wake, HttpAnswer unfinished);

  // From any thread: the calls of Exchange.
  void answer(HttpAnswer answer);
  void begin_stream(std::string_view content_type);
  void write(std::string_view piece);
  void end_stream();
  void drop();   // nobody will answer any more: 500 when nothing has been, else the stream breaks off
  void crash();  // the handler threw: likewise
  bool gone() const { return gone_; }
  bool closed() const { return closed_; }
  size_t unsent() const { return unsent_; }
  void when_gone(std::function<void()> call);
  void when_drained(std::function<void()> call);
  void keep_alive(bool keep);  // false: the connection ends with this answer, unless that has begun

  // From the socket's thread.
  std::string take();        // all that waits
  void taken(size_t bytes);  // the socket has them
  enum class State { open, complete, broken };
  State state() const;  // complete: all has been taken; broken: close the connection
  bool kept_alive() const;
  // The peer ended its side of the connection. It is gone, but may still read: an answer that comes whole is
  // sent, a stream is not.
  void half_close();
  void close();  // nothing can be sent any more

 private:
  using Calls = std::vector<std::function<void()>>;
  void wake_locked();
  void break_locked();
  void append_locked(std::string_view bytes);
  // Both move callbacks out, so that what they hold is let go of after the lock: it may be the exchange
  // itself.
  void leave_locked(Calls& to_run, Calls& dropped);
  void finish_locked(Calls& dropped);

  const AnswerForm form_;
  const size_t max_unsent_;
  const std::function<void()> wake_;
  const HttpAnswer unfinished_;
  mutable std::mutex mutex_;
  enum class Phase { nothing, streaming, ended, broken } phase_ = Phase::nothing;
  bool keep_alive_, chunked_ = false, woken_ = false, slow_ = false;
  std::string waiting_;
  Calls when_gone_, when_drained_;
  std::atomic<bool> gone_ = false, closed_ = false;
  std::atomic<size_t> unsent_ = 0;
};

// The handle that handlers hold; the outbox is told when the last one is dropped.
class OutboxExchange : public Exchange {
 public:
  explicit OutboxExchange(std::shared_ptr<Outbox> box) : box_(std::move(box)) {}
  ~OutboxExchange() override { box_->drop(); }
  void answer(HttpAnswer answer) override { box_->answer(std::move(answer)); }
  void begin_stream(std::string content_type) override { box_->begin_stream(content_type); }
  void write(std::string piece) override { box_->write(piece); }
  void end_stream() override { box_->end_stream(); }
  bool gone() const override { return box_->gone(); }
  size_t unsent() const override { return box_->unsent(); }
  void when_gone(std::function<void()> call) override { box_->when_gone(std::move(call)); }
  void when_drained(std::function<void()> call) override { box_->when_drained(std::move(call)); }
  Outbox& box() { return *box_; }

 private:
  const std::shared_ptr<Outbox> box_;
};

}  // namespace lapidary::serve
