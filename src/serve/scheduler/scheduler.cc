#include "serve/scheduler/scheduler.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "serve/scheduler/batch_loop.h"

namespace lapidary::serve {
namespace {

const SchedulerOptions& checked(const SchedulerOptions& o, const Engine& engine) {
  ensure(o.max_running >= 1, ErrorCode::usage, "max_running: expected 1 or more jobs, got {}", o.max_running);
  ensure(o.max_queued >= 0, ErrorCode::usage, "max_queued: expected 0 or more jobs, got {}", o.max_queued);
  ensure(o.step_rows > o.max_running, ErrorCode::usage,
         "step_rows: expected more than max_running ({}), so that prompts move beside the texts, got {}",
         o.max_running, o.step_rows);
  ensure(o.step_seconds > 0, ErrorCode::usage, "step_seconds: expected more than 0, got {}", o.step_seconds);
  ensure(o.vocab_size >= 1 && o.vocab_size <= engine.spec().vocab_size, ErrorCode::usage,
         "vocab_size: expected 1 to {} (the model's), got {}", engine.spec().vocab_size, o.vocab_size);
  return o;
}

}  // namespace

struct Scheduler::Impl {
  // What waits for the thread, taken between two steps.
  struct Inbox {
    std::vector<std::unique_ptr<Task>> tasks;
    std::set<Ticket> cancelled, resumed;
    std::vector<std::function<void()>> calls;
    bool ends_rest = false;  // the drain's time is over
    bool empty() const {
      return tasks.empty() && cancelled.empty() && resumed.empty() && calls.empty() && !ends_rest;
    }
  };

  Engine& engine;
  const SchedulerOptions options;
  const int64_t kv_total;        // bytes
  std::atomic<int64_t> live{0};  // jobs taken that have not ended
  std::atomic<Ticket> tickets{0};
  std::atomic<bool> broken{false};
  BatchLoop loop;  // the thread's, once it runs

  mutable std::mutex mutex;                // guards what follows, up to `thread`
  std::condition_variable wake, is_quiet;  // of the thread; of those who drain
  Inbox inbox;
  bool draining = false, stopping = false, gone = false;
  bool quiet = true;  // the thread has no job

  std::mutex stop_mutex;  // one stop() at a time; and calls once the thread is gone
  std::thread thread;

  Impl(Engine& e, SchedulerOptions o)
      : engine(e), options(checked(o, e)), kv_total(e.kv_room().total), loop(engine, options, live) {
    if (options.store) {
      loop.cache().load(*options.store, options.model, [&](const std::string& name, const std::string& why) {
        log(fmt::format("saved state {} is left alone: {}", name, why));
      });
    }
    thread = std::thread([this] { run(); });
  }

  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }

  // ---- the thread

  Inbox next(bool can_move) {
    std::unique_lock lock(mutex);
    const auto due = [&] { return !inbox.empty() || stopping; };
    if (!can_move && !due()) {
      if (const auto deadline = loop.next_deadline()) {
        wake.wait_until(lock, *deadline, due);
      } else {
        wake.wait(lock, due);
      }
    }
    quiet = false;
    return std::exchange(inbox, {});
  }

  void run() {
    bool can_move = false;
    while (true) {
      Inbox taken = next(can_move);
      can_move = false;
      for (std::unique_ptr<Task>& task : taken.tasks) loop.add(std::move(task));
      if (broken) loop.end_all(EndReason::error, "the engine has failed before");
      try {
        for (const Ticket ticket : taken.cancelled) loop.cancel(ticket);
        for (const Ticket ticket : taken.resumed) loop.resume(ticket);
        if (taken.ends_rest) loop.end_all(EndReason::shutdown, "");
        if (!broken) can_move = loop.step();
      } catch (const std::exception& error) {
        log(fmt::format("the engine's thread has failed: {}", error.what()));
        broken = true;
        loop.end_all(EndReason::error, error.what());
      }
      for (const auto& call : taken.calls) call();
      loop.sweep();
      const std::lock_guard lock(mutex);
      quiet = loop.idle();
      if (quiet && inbox.empty()) is_quiet.notify_all();
      if (stopping && inbox.empty()) break;
    }
    loop.end_all(EndReason::shutdown, "");
    loop.sweep();
    if (options.store && !broken) {
      try {
        loop.cache().save(*options.store, options.model);
      } catch (const std::exception& error) {
        log(fmt::format("the prefix cache could not be saved: {}", error.what()));
      }
    }
    const std::lock_guard lock(mutex);
    gone = quiet = true;
    for (const auto& call : inbox.calls) call();
    inbox = {};
    is_quiet.notify_all();
  }

  // ---- the others

  // f() between two steps, on the thread; what it throws comes out here.
  template <typename F>
  void between_steps(F&& f) {
    std::exception_ptr thrown;
    bool done = false;
    std::mutex done_mutex;
    std::condition_variable is_done;
    const auto call = [&] {
      try {
        f();
      } catch (...) {
        thrown = std::current_exception();
      }
      const std::lock_guard lock(done_mutex);
      done = true;
      is_done.notify_all();
    };
    {
      std::unique_lock lock(mutex);
      if (!gone) {
        inbox.calls.emplace_back(call);
        wake.notify_all();
        lock.unlock();
        std::unique_lock waiting(done_mutex);
        is_done.wait(waiting, [&] { return done; });
      } else {
        call();
      }
    }
    if (thrown) std::rethrow_exception(thrown);
  }

  // What never changes of the engine may be asked by any thread.
  void check(const Order& order) const {
    const Job& job = order.job;
    ensure(order.sink != nullptr, ErrorCode::usage, "a job without a sink");
    const int64_t n = static_cast<int64_t>(job.prompt.size()), context = engine.context();
    ensure(n > 0, ErrorCode::usage, "the prompt is empty: expected at least one token");
    ensure(job.max_tokens >= 0, ErrorCode::usage, "max_tokens: expected 0 or more, got {}", job.max_tokens);
    const int64_t known = job.prompt_logprobs ? options.vocab_size : engine.spec().vocab_size;
    for (size_t i = 0; i < job.prompt.size(); i++)
      ensure(job.prompt[i] >= 0 && job.prompt[i] < known, ErrorCode::usage,
             "prompt token {}: expected an id from 0 to {}, got {}", i, known - 1, job.prompt[i]);
    for (const std::optional<int64_t>& best : {job.logprobs, job.prompt_logprobs})
      ensure(best.value_or(0) >= 0, ErrorCode::usage, "logprobs: expected 0 or more, got {}",
             best.value_or(0));
    job.sampling.validate(options.vocab_size);
    const int64_t least = n + std::min<int64_t>(job.max_tokens, 1);
    ensure(least <= context, ErrorCode::limit, "the prompt has {} tokens{}, the context holds {}", n,
           job.max_tokens > 0 ? " and at least one is to be generated" : "", context);
    const int64_t longest = std::min(context, n + std::max<int64_t>(job.max_tokens, 1) - 1);
    const int64_t bytes = engine.kv_bytes_at_length(longest);
    ensure(bytes <= kv_total, ErrorCode::limit,
           "{} prompt tokens and up to {} generated ones take {} bytes of KV pages, there are {} in all", n,
           job.max_tokens, bytes, kv_total);
  }
};

Scheduler::Scheduler(Engine& engine, SchedulerOptions options)
    : impl_(std::make_unique<Impl>(engine, std::move(options))) {}

Scheduler::~Scheduler() {
  stop();
}

std::vector<Ticket> Scheduler::submit(std::vector<Order> orders) {
  Impl& i = *impl_;
  std::vector<std::unique_ptr<Task>> tasks;
  std::vector<Ticket> tickets;
  for (Order& order : orders) {
    i.check(order);
    tickets.push_back(++i.tickets);
    tasks.push_back(std::make_unique<Task>(tickets.back(), std::move(order.job), std::move(order.sink),
                                           i.options.vocab_size));
  }
  const std::lock_guard lock(i.mutex);
  ensure(!i.broken, ErrorCode::limit, "the engine has failed: no job is taken");
  ensure(!i.draining && !i.stopping, ErrorCode::limit, "the server is going down: no job is taken");
  const int64_t most = i.options.max_running + i.options.max_queued, live = i.live;
  ensure(live + std::ssize(tasks) <= most, ErrorCode::limit,
         "{} jobs are running or waiting, {} more would exceed {} (max_running and max_queued)", live,
         tasks.size(), most);
  i.live += std::ssize(tasks);
  std::move(tasks.begin(), tasks.end(), std::back_inserter(i.inbox.tasks));
  i.wake.notify_all();
  return tickets;
}

bool Scheduler::has_room_for(size_t jobs) const {
  const std::lock_guard lock(impl_->mutex);
  return !impl_->draining && !impl_->stopping && !impl_->broken &&
         impl_->live + static_cast<int64_t>(jobs) <= impl_->options.max_running + impl_->options.max_queued;
}

void Scheduler::cancel(Ticket ticket) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->gone) return;
  impl_->inbox.cancelled.insert(ticket);
  impl_->wake.notify_all();
}

void Scheduler::resume(Ticket ticket) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->gone) return;
  impl_->inbox.resumed.insert(ticket);
  impl_->wake.notify_all();
}

bool Scheduler::drain(Clock::time_point deadline) {
  Impl& i = *impl_;
  std::unique_lock lock(i.mutex);
  i.draining = true;
  const auto quiet = [&] { return i.gone || (i.quiet && i.inbox.tasks.empty()); };
  if (i.is_quiet.wait_until(lock, deadline, quiet)) return true;
  i.inbox.ends_rest = true;
  i.wake.notify_all();
  i.is_quiet.wait(lock, quiet);
  return false;
}

void Scheduler::stop() {
  Impl& i = *impl_;
  const std::lock_guard one(i.stop_mutex);
  {
    const std::lock_guard lock(i.mutex);
    i.stopping = true;
    i.wake.notify_all();
  }
  if (i.thread.joinable()) i.thread.join();
}

int64_t Scheduler::save_cache() {
  Impl& i = *impl_;
  ensure(i.options.store != nullptr, ErrorCode::usage, "there is no place to save the prefix cache to");
  int64_t tokens = 0;
  i.between_steps([&] { tokens = i.loop.cache().save(*i.options.store, i.options.model); });
  return tokens;
}

void Scheduler::clear_cache() {
  impl_->between_steps([&] { impl_->loop.clear_cache(); });
}

SchedulerView Scheduler::view() const {
  SchedulerView view;
  impl_->between_steps([&] { view = impl_->loop.view(); });
  return view;
}

bool Scheduler::failed() const {
  return impl_->broken;
}

}  // namespace lapidary::serve
