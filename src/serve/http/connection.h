// One connection: reads requests one after the other, hands them on, sends the answers. Everything here runs
// on the sockets' thread, but for what Gate says.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

#include "serve/http/http_server.h"
#include "serve/http/outbox.h"

namespace lapidary::serve {

class Connection;
class Parser;
struct Refusal;

// What the connections of a server share.
struct Gate {
  explicit Gate(const HttpOptions& o) : options(o) {}
  const HttpOptions& options;
  bool loopback = false;  // bound to such an address
  // Puts a request into the workers' queue; false, and nothing taken, when that is full.
  std::function<bool(HttpRequest& request, const std::shared_ptr<Outbox>& box)> dispatch;
  bool draining = false;
  int64_t body_bytes = 0;
  std::unordered_set<std::shared_ptr<Connection>> open;
  // Any thread.
  std::atomic<int64_t> connections = 0, accepted = 0, refused = 0, timed_out = 0, requests = 0;
  std::mutex mutex;
  std::condition_variable idle;
  int64_t at_hand = 0;  // under mutex: connections with a request at hand

  void add_at_hand(int64_t n);
  HttpAnswer error(int status, std::string_view code, std::string_view message) const;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Tcp = boost::asio::ip::tcp;
  Connection(Tcp::socket socket, Gate& gate);
  // `refused`: one connection too many, which gets 503 and no more.
  void start(bool refused);
  void drain();  // closes now when it is idle, else after the request at hand
  void close();
  void notify();  // something happened that its coroutine may wait for
  void woken();   // by the outbox of the request at hand

 private:
  using Time = std::chrono::steady_clock::time_point;
  template <typename T>
  using Task = boost::asio::awaitable<T>;

  Task<void> run(bool refused);
  Task<bool> one_request();  // whether another may follow
  Task<bool> read_header(Parser& parser, AnswerForm& form);
  Task<bool> read_body(Parser& parser, AnswerForm& form, HttpRequest& request, int64_t& held);
  Task<bool> respond(std::shared_ptr<Outbox> box);
  // Answers what HTTP itself refuses. The rest of the request is unknown, so the connection ends with it.
  Task<bool> refuse(AnswerForm form, Refusal refusal);
  Task<bool> send(std::string bytes, Outbox* box);
  Task<bool> event(Time deadline);  // waits for notify(); false when the deadline came first
  Task<void> linger();
  void pump();
  void watch_write();

  Tcp::socket socket_;
  Gate& gate_;
  boost::asio::steady_timer signal_, write_timer_;
  std::string peer_;
  std::string in_;  // read and not yet parsed
  std::array<char, 16 << 10> block_;
  bool reading_ = false, ended_ = false, closed_ = false, event_ = false, idle_ = true, first_ = true;
  bool lingering_ = false, writing_ = false, watched_ = false;
  Time write_deadline_;
  std::shared_ptr<Outbox> current_;
};

}  // namespace lapidary::serve
