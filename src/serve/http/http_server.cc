#include "serve/http/http_server.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <future>
#include <thread>
#include <utility>

#include "base/error.h"
#include "serve/http/connection.h"
#include "serve/http/workers.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // gcc 12 inlines one of Asio's pair for frames only
#endif

namespace lapidary::serve {
namespace asio = boost::asio;
using asio::ip::tcp;
namespace {

// Connections over the bound that are being told so; more are closed without a word.
constexpr int64_t kTold = 64;
// After an error of accept(), of which most (no descriptors left) stay for a while.
constexpr std::chrono::milliseconds kAcceptPause{100};

asio::ip::address address_of(const std::string& text) {
  if (text == "localhost") return asio::ip::make_address("127.0.0.1");
  boost::system::error_code ec;
  auto address = asio::ip::make_address(text, ec);
  ensure(!ec, ErrorCode::usage,
         "address to listen at: expected an IPv4 or IPv6 address or localhost, got '{}'", text);
  return address;
}

void check(const HttpOptions& o) {
  const auto positive = [](bool good, std::string_view name) {
    ensure(good, ErrorCode::usage, "{} of the HTTP server: expected more than nothing", name);
  };
  positive(o.workers > 0, "workers");
  positive(o.max_connections > 0, "max_connections");
  positive(o.max_pending > 0, "max_pending");
  positive(o.max_header_bytes > 0, "max_header_bytes");
  ensure(o.max_header_bytes <= (16 << 20), ErrorCode::usage,
         "max_header_bytes of the HTTP server: expected at most 16 MiB, got {}", o.max_header_bytes);
}

}  // namespace

struct HttpServer::Impl {
  Impl(HttpOptions o, Handler handler)
      : options(std::move(o)),
        gate(options),
        acceptor(io),
        pause(io),
        workers(options.workers, options.max_pending, std::move(handler), options.on_throw) {
    gate.dispatch = [this](HttpRequest& request, const std::shared_ptr<Outbox>& box) {
      return workers.submit(request, box);
    };
  }

  void listen() {
    check(options);
    const tcp::endpoint end(address_of(options.address), options.port);
    gate.loopback = end.address().is_loopback();
    boost::system::error_code ec;
    const auto good = [&](const char* what) {
      ensure(!ec, ErrorCode::io, "cannot {} at {} port {}: {}", what, options.address, options.port,
             ec.message());
    };
    acceptor.open(end.protocol(), ec);
    good("open a socket to listen");
    acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
    good("open a socket to listen");
    acceptor.bind(end, ec);
    good("listen");
    acceptor.listen(asio::socket_base::max_listen_connections, ec);
    good("listen");
    port = acceptor.local_endpoint(ec).port();
    good("listen");
  }

  asio::awaitable<void> accept() {
    constexpr auto wait = asio::as_tuple(asio::use_awaitable);
    while (acceptor.is_open()) {
      tcp::socket socket(io);
      const auto [ec] = co_await acceptor.async_accept(socket, wait);
      if (!acceptor.is_open()) break;
      if (ec) {
        if (ec == asio::error::connection_aborted) continue;
        pause.expires_after(kAcceptPause);
        const auto [cancelled] = co_await pause.async_wait(wait);
        (void)cancelled;
        continue;
      }
      try {
        admit(std::move(socket));
      } catch (const std::exception&) {
        // Out of memory: this peer is turned away, later ones may find some.
        gate.refused++;
      }
    }
  }

  void admit(tcp::socket socket) {
    const auto open = static_cast<int64_t>(gate.open.size());
    gate.accepted++;
    if (open >= options.max_connections + kTold) {
      gate.refused++;
      return;
    }
    auto connection = std::make_shared<Connection>(std::move(socket), gate);
    gate.open.insert(connection);
    gate.connections++;
    connection->start(open >= options.max_connections);
  }

  // On the sockets' thread, and waits for it; at once when there is none.
  template <typename Call>
  void on_sockets(Call call) {
    if (!thread.joinable()) {
      call();
      return;
    }
    std::promise<void> done;
    asio::post(io, [&] {
      call();
      done.set_value();
    });
    done.get_future().wait();
  }

  void close_listener() {
    if (gate.draining) return;
    gate.draining = true;
    boost::system::error_code ignored;
    acceptor.close(ignored);
    pause.cancel();
    for (const auto& connection : std::vector(gate.open.begin(), gate.open.end())) connection->drain();
  }

  HttpOptions options;
  Gate gate;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  Workers workers;
  uint16_t port = 0;
  std::thread thread;
  std::mutex stopping;
  bool started = false, stopped = false;
};

HttpServer::HttpServer(HttpOptions options, Handler handler)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handler))) {
  impl_->listen();
}

HttpServer::~HttpServer() {
  stop();
}

uint16_t HttpServer::port() const {
  return impl_->port;
}

void HttpServer::start() {
  Impl& s = *impl_;
  const std::lock_guard lock(s.stopping);
  ensure(!s.started, ErrorCode::internal, "an HTTP server is started once");
  s.started = true;
  s.workers.start();
  asio::co_spawn(s.io, s.accept(), asio::detached);
  s.thread = std::thread([&s] { s.io.run(); });
}

void HttpServer::close_listener() {
  Impl& s = *impl_;
  const std::lock_guard lock(s.stopping);
  if (!s.stopped) s.on_sockets([&s] { s.close_listener(); });
}

bool HttpServer::wait_idle(std::chrono::steady_clock::time_point deadline) {
  Impl& s = *impl_;
  std::unique_lock lock(s.gate.mutex);
  return s.gate.idle.wait_until(lock, deadline, [&s] { return s.gate.at_hand == 0; });
}

void HttpServer::stop() {
  Impl& s = *impl_;
  const std::lock_guard lock(s.stopping);
  if (s.stopped) return;
  s.on_sockets([&s] {
    s.close_listener();
    for (const auto& connection : std::vector(s.gate.open.begin(), s.gate.open.end())) connection->close();
    s.work.reset();
  });
  s.workers.stop();
  if (s.thread.joinable()) s.thread.join();
  s.stopped = true;
}

HttpStats HttpServer::stats() const {
  const Gate& g = impl_->gate;
  return {g.connections, g.accepted, g.refused, g.timed_out, g.requests};
}

}  // namespace lapidary::serve
