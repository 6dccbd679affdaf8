// The threads that run the handler, and the bounded queue before them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "serve/http/outbox.h"

namespace lapidary::serve {

class Workers {
 public:
  using OnThrow = std::function<void(std::string_view request_id, std::string_view what)>;
  Workers(int count, int64_t max_pending, Handler handler, OnThrow on_throw);
  ~Workers();  // stop()
  Workers(const Workers&) = delete;
  void start();
  // Any thread; false, and nothing taken, when as many wait as may.
  bool submit(HttpRequest& request, const std::shared_ptr<Outbox>& box);
  void stop();  // drops what waits, joins

 private:
  void work();
  const int count_;
  const int64_t max_pending_;
  const Handler handler_;
  const OnThrow on_throw_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::deque<std::pair<HttpRequest, std::shared_ptr<OutboxExchange>>> queue_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lapidary::serve
