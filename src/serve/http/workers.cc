#include "serve/http/workers.h"

#include <exception>
#include <string>

namespace lapidary::serve {

Workers::Workers(int count, int64_t max_pending, Handler handler, OnThrow on_throw)
    : count_(count),
      max_pending_(max_pending),
      handler_(std::move(handler)),
      on_throw_(std::move(on_throw)) {}

Workers::~Workers() {
  stop();
}

void Workers::start() {
  for (int i = 0; i < count_; i++) threads_.emplace_back([this] { work(); });
}

bool Workers::submit(HttpRequest& request, const std::shared_ptr<Outbox>& box) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || static_cast<int64_t>(queue_.size()) >= max_pending_) return false;
  queue_.emplace_back(std::move(request), std::make_shared<OutboxExchange>(box));
  news_.notify_one();
  return true;
}

void Workers::stop() {
  decltype(queue_) dropped;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(queue_);
  }
  news_.notify_all();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void Workers::work() {
  while (true) {
    std::unique_lock lock(mutex_);
    news_.wait(lock, [this] { return stopped_ || !queue_.empty(); });
    if (stopped_) return;
    auto [request, exchange] = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (exchange->box().closed()) continue;  // its peer left while it waited
    const std::string id = request.id;
    try {
      handler_(std::move(request), exchange);
    } catch (const std::exception& e) {
      exchange->box().crash();
      if (on_throw_) on_throw_(id, e.what());
    } catch (...) {
      exchange->box().crash();
      if (on_throw_) on_throw_(id, "something that is no std::exception");
    }
  }
}

}  // namespace lapidary::serve
