// One HTTP request and the way back: what the API sees of HTTP.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lapidary::serve {

struct HttpRequest {
  std::string id;      // of ours, or what the client sent as X-Request-Id when that is harmless
  std::string method;  // upper case
  std::string path;    // decoded, without the query
  std::string query;   // as sent
  std::string body;
  std::string client;                                        // the name of the API key, or the peer's address
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string_view header(std::string_view name) const;      // lower case; empty when there is none
};

struct HttpAnswer {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// The answer to one request: either answer(), or begin_stream(), write()..., end_stream(). Thread-safe, never
// blocks. Once the peer is gone every call does nothing. An exchange that is dropped without an answer
// answers 500.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void answer(HttpAnswer answer) = 0;
  virtual void begin_stream(std::string content_type) = 0;  // 200, chunked, not to be buffered on the way
  virtual void write(std::string piece) = 0;
  virtual void end_stream() = 0;
  virtual bool gone() const = 0;      // the peer closed, or was too slow
  virtual size_t unsent() const = 0;  // bytes written here that the socket has not taken
  // Called once when the peer goes before answer() or end_stream(): on the sockets' thread, or within this
  // call if it has gone already. Must not throw or block; let go of once the answer is complete.
  virtual void when_gone(std::function<void()> call) = 0;
  // Called every time unsent() falls to nothing after having been above kSlowReader; likewise.
  virtual void when_drained(std::function<void()> call) = 0;
  static constexpr size_t kSlowReader = 256 << 10;
};

using Handler = std::function<void(HttpRequest, std::shared_ptr<Exchange>)>;

}  // namespace lapidary::serve
