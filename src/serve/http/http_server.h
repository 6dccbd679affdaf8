// HTTP/1.1 by Boost.Beast: one thread for all sockets, a few for the handler. Every bound that keeps one
// client from hurting the others is here; what the paths mean is the handler's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/exchange.h"

namespace lapidary::serve {

struct HttpOptions {
  std::string address = "127.0.0.1";  // IPv4, IPv6 or "localhost" (127.0.0.1)
  uint16_t port = 8080;               // 0: any free one
  int workers = 2;                    // threads that run the handler
  int64_t max_connections = 512;
  int64_t max_pending = 256;  // requests that wait for a worker; more get 503
  size_t max_header_bytes = 32 << 10;
  size_t max_body_bytes = 16 << 20;
  int64_t max_body_total = 256 << 20;  // bytes of all bodies at hand; a request that takes more gets 503
  // From the first byte of a request (of a new connection: from its beginning) to the last header.
  std::chrono::milliseconds header_timeout{10'000};
  std::chrono::milliseconds body_timeout{60'000};   // to the last byte of the body
  std::chrono::milliseconds idle_timeout{120'000};  // between requests of one connection
  std::chrono::milliseconds write_timeout{60'000};  // a peer that takes nothing for so long is gone
  size_t max_unsent = 4 << 20;  // bytes that a stream may have waiting; a peer that lets more pile up is gone
  std::vector<std::string> cors_origins;  // allowed; "*": all; empty: none
  // Names that a Host header may carry beside those of loopback, when `address` is a loopback one; others get
  // 403, or a page of another site could reach the server by a name of its own that resolves to 127.0.0.1.
  // Bound to another address every name is taken.
  std::vector<std::string> allowed_hosts;
  // The name of the key that an Authorization header carries; nothing: 401. Absent: no keys are needed.
  // Called for every path but those of open_paths, on the sockets' thread: it must be quick.
  std::function<std::optional<std::string>(std::string_view authorization)> authenticate;
  std::vector<std::string> open_paths = {"/health", "/ready"};
  // The body of an error that HTTP itself finds (too large, timed out, malformed, unauthorised, overloaded).
  // Absent: the message as plain text.
  std::function<std::string(int status, std::string_view code, std::string_view message)> error_body;
  // What a handler threw, for the log; the client gets a bare 500. On a worker's thread.
  std::function<void(std::string_view request_id, std::string_view what)> on_throw;
};

// refused: connections and requests that were one too many; timed_out: in a header, a body or a write.
struct HttpStats {
  int64_t connections = 0, accepted = 0, refused = 0, timed_out = 0, requests = 0;
};

// What reaches the handler: GET, POST, PUT, PATCH, DELETE, and OPTIONS for a path. HEAD arrives as GET, and
// the body of its answer is left out; CORS preflights and OPTIONS * are answered here. A peer that ends its
// sending side counts as gone (a client that leaves looks no different): work for it is to stop, but an
// answer() that comes all the same is still sent, so that a shell pipe into nc works for what takes no time.
class HttpServer {
 public:
  // Listens. Error(io) naming address and port when it cannot.
  HttpServer(HttpOptions options, Handler handler);
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  uint16_t port() const;
  void start();  // its threads run from now on
  // Accepts nothing more and closes idle connections; those with a request at hand get their answers.
  void close_listener();
  bool wait_idle(
      std::chrono::steady_clock::time_point deadline);  // until no connection has a request at hand
  void stop();                                          // closes everything, joins; idempotent
  HttpStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lapidary::serve
