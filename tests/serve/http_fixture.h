// A server with a handler of the test's, and what tests wait for.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "serve/http/http_server.h"
#include "serve/socket_client.h"

namespace lapidary::serve {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

// Something that another thread does, to be waited for.
class Latch {
 public:
  void hit() {
    const std::lock_guard lock(mutex_);
    count_++;
    news_.notify_all();
  }
  bool wait(int64_t count = 1) {
    std::unique_lock lock(mutex_);
    return news_.wait_for(lock, 20s, [&] { return count_ >= count; });
  }
  int64_t count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  int64_t count_ = 0;
};

// Answers what it was asked.
inline void echo(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  HttpAnswer answer;
  answer.content_type = "text/plain";
  answer.body = request.method + " " + request.path + " ? " + request.query + " by " + request.client + "\n" +
                request.body;
  exchange->answer(std::move(answer));
}

inline HttpOptions test_options() {
  HttpOptions options;
  options.port = 0;
  options.error_body = [](int status, std::string_view code, std::string_view message) {
    return "{\"error\":{\"code\":\"" + std::string(code) + "\",\"status\":" + std::to_string(status) +
           ",\"message\":\"" + std::string(message) + "\"}}";
  };
  return options;
}

struct TestServer {
  explicit TestServer(HttpOptions options = test_options(), Handler handler = echo)
      : server(std::move(options), std::move(handler)) {
    server.start();
  }
  SocketClient client() { return SocketClient(server.port()); }
  HttpServer server;
};

}  // namespace lapidary::serve
