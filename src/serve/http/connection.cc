#include "serve/http/connection.h"

#include <fmt/format.h>
#include <netinet/tcp.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <new>
#include <utility>

#include "serve/http/request.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // gcc 12 inlines one of Asio's pair for frames only
#endif

namespace lapidary::serve {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;
namespace {

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
// Read ahead of the parser, over the header's bound: a client that pipelines more has to wait.
constexpr size_t kReadAhead = 64 << 10;
// How long a refused peer may go on sending before the connection is closed under it: closing with bytes
// unread would reset the connection, and the answer with it.
constexpr std::chrono::seconds kLinger{2};
// More would only hide from when_drained how slow a reader is.
constexpr int kSendBuffer = 256 << 10;
// Peers that vanish without a word: asked after a minute, given up half a minute later.
constexpr int kProbeAfter = 60, kProbeEvery = 10, kProbes = 3;

std::string address_of(const asio::ip::tcp::socket& socket) {
  boost::system::error_code ec;
  const auto end = socket.remote_endpoint(ec);
  if (ec) return "unknown";
  const asio::ip::address address = end.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  return address.to_string();
}

void set_options(asio::ip::tcp::socket& socket) {
  boost::system::error_code ignored;  // a peer that is gone already shows up when it is read
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::send_buffer_size(kSendBuffer), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const int fd = socket.native_handle();
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kProbeAfter, sizeof kProbeAfter);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kProbeEvery, sizeof kProbeEvery);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof kProbes);
}

template <typename Call>
class AtExit {
 public:
  explicit AtExit(Call call) : call_(std::move(call)) {}
  ~AtExit() { call_(); }
  AtExit(const AtExit&) = delete;

 private:
  Call call_;
};

}  // namespace

void Gate::add_at_hand(int64_t n) {
  const std::lock_guard lock(mutex);
  at_hand += n;
  if (at_hand == 0) idle.notify_all();
}

HttpAnswer Gate::error(int status, std::string_view code, std::string_view message) const {
  HttpAnswer answer;
  answer.status = status;
  answer.content_type = options.error_body ? "application/json" : "text/plain; charset=utf-8";
  answer.body = options.error_body ? options.error_body(status, code, message) : std::string(message) + "\n";
  return answer;
}

Connection::Connection(Tcp::socket socket, Gate& gate)
    : socket_(std::move(socket)),
      gate_(gate),
      signal_(socket_.get_executor()),
      write_timer_(socket_.get_executor()),
      peer_(address_of(socket_)) {
  set_options(socket_);
}

void Connection::start(bool refused) {
  asio::co_spawn(
      socket_.get_executor(),
      [self = shared_from_this(), refused]() -> Task<void> { co_await self->run(refused); }, asio::detached);
}

void Connection::notify() {
  event_ = true;
  signal_.cancel();
}

void Connection::woken() {
  // Here, since its coroutine may be waiting for a peer that takes nothing.
  if (current_ && current_->state() == Outbox::State::broken) close();
  notify();
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  boost::system::error_code ignored;
  socket_.close(ignored);
  write_timer_.cancel();
  notify();
  if (current_) current_->close();
}

void Connection::drain() {
  if (idle_) close();
  else if (current_) current_->keep_alive(false);
}

// One read is always under way while there is room, so that a peer's leaving is seen whatever else goes on.
void Connection::pump() {
  if (reading_ || ended_ || closed_ || in_.size() >= gate_.options.max_header_bytes + kReadAhead) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(block_),
                          [self = shared_from_this()](boost::system::error_code ec, size_t n) {
                            Connection& c = *self;
                            c.reading_ = false;
                            try {
                              if (!c.lingering_) c.in_.append(c.block_.data(), n);
                            } catch (const std::bad_alloc&) {
                              c.close();  // what follows would be misread
                              return;
                            }
                            if (ec == asio::error::eof) {
                              c.ended_ = true;
                              if (c.current_) c.current_->half_close();
                            } else if (ec) {
                              c.close();
                            }
                            c.notify();
                            c.pump();
                          });
}

Connection::Task<bool> Connection::event(Time deadline) {
  while (!event_) {
    if (deadline != Time::max() && Clock::now() >= deadline) co_return false;
    signal_.expires_at(deadline);
    const auto [ec] = co_await signal_.async_wait(kAwait);
    (void)ec;  // cancelled: there is an event
  }
  event_ = false;
  co_return true;
}

void Connection::watch_write() {
  if (watched_ || closed_) return;
  watched_ = true;
  write_timer_.expires_at(write_deadline_);
  write_timer_.async_wait([self = shared_from_this()](boost::system::error_code) {
    Connection& c = *self;
    c.watched_ = false;
    if (!c.writing_ || c.closed_) return;
    if (Clock::now() < c.write_deadline_) {
      c.watch_write();
      return;
    }
    c.gate_.timed_out++;
    c.close();
  });
}

Connection::Task<bool> Connection::send(std::string bytes, Outbox* box) {
  size_t done = 0;
  while (done < bytes.size() && !closed_) {
    writing_ = true;
    write_deadline_ = Clock::now() + gate_.options.write_timeout;
    watch_write();
    const auto [ec, n] = co_await socket_.async_write_some(asio::buffer(bytes) + done, kAwait);
    writing_ = false;
    if (ec) {
      close();
      break;
    }
    done += n;
    if (box) box->taken(n);
  }
  co_return !closed_;
}

Connection::Task<void> Connection::linger() {
  if (closed_) co_return;
  boost::system::error_code ignored;
  socket_.shutdown(Tcp::socket::shutdown_send, ignored);
  lingering_ = true;
  in_ = {};
  const Time until = Clock::now() + kLinger;
  while (!ended_ && !closed_) {
    pump();
    const bool in_time = co_await event(until);
    if (!in_time) break;
  }
}

Connection::Task<void> Connection::run(bool refused) {
  const auto self = shared_from_this();
  try {
    if (refused) {
      gate_.refused++;
      co_await refuse(AnswerForm(), overloaded("too many connections"));
    } else {
      pump();
      while (true) {
        const bool more = co_await one_request();
        if (!more) break;
      }
    }
    idle_ = true;
    co_await linger();
  } catch (const std::exception&) {
    // Out of memory, most likely: this connection ends, the others go on.
  }
  close();
  gate_.connections--;
  gate_.open.erase(self);
}

Connection::Task<bool> Connection::refuse(AnswerForm form, Refusal refusal) {
  const HttpAnswer answer = gate_.error(refusal.status, refusal.code, refusal.message);
  form.keep_alive = false;
  if (form.headers.empty()) form.headers.emplace_back("X-Request-Id", new_request_id());
  std::string bytes =
      answer_head(form, answer.status, answer.content_type, refusal.headers, answer.body.size());
  if (!form.head) bytes += answer.body;
  co_await send(std::move(bytes), nullptr);
  co_return false;
}

Connection::Task<bool> Connection::one_request() {
  if (gate_.draining) co_return false;
  idle_ = true;
  const Time begun = Clock::now();
  const auto patience = first_ ? gate_.options.header_timeout : gate_.options.idle_timeout;
  while (true) {
    // An empty line in front of a request is let pass (RFC 9112, 2.2).
    if (in_.compare(0, 2, "\r\n") == 0) in_.erase(0, 2);
    if (!in_.empty() && in_ != "\r") break;
    if (ended_ || closed_ || gate_.draining) co_return false;
    pump();
    const bool in_time = co_await event(begun + patience);
    if (!in_time) co_return false;
  }
  idle_ = first_ = false;
  gate_.add_at_hand(1);
  const AtExit leave([this] { gate_.add_at_hand(-1); });

  Parser parser;
  AnswerForm form;
  const bool header = co_await read_header(parser, form);
  if (!header) co_return false;
  gate_.requests++;

  HttpRequest request;
  std::optional<Refusal> refusal;
  try {
    refusal = check_header(parser, gate_, peer_, form, request);
  } catch (const std::exception& e) {
    if (gate_.options.on_throw) gate_.options.on_throw(request.id, e.what());
    refusal = Refusal{500, "internal_error", "the request could not be checked", {}};
  }
  const auto length = parser.content_length();
  if (!refusal && length && *length > gate_.options.max_body_bytes)
    refusal = refusal_of(http::error::body_limit, gate_.options);
  if (refusal) co_return co_await refuse(std::move(form), std::move(*refusal));

  int64_t held = 0;
  const AtExit release([this, &held] { gate_.body_bytes -= held; });
  const bool body = co_await read_body(parser, form, request, held);
  if (!body) co_return false;
  request.body = std::move(parser.get().body());

  if (gate_.draining) form.keep_alive = false;
  auto box = std::make_shared<Outbox>(
      form, gate_.options.max_unsent,
      [weak = weak_from_this(), executor = socket_.get_executor()] {
        asio::post(executor, [weak] {
          if (const auto self = weak.lock()) self->woken();
        });
      },
      gate_.error(500, "internal_error", "the server failed to answer this request"));
  current_ = box;
  const AtExit forget([this] {
    current_->close();
    current_.reset();
  });
  if (ended_) box->half_close();
  if (auto answer = answer_here(request, cors_allowed(gate_.options, request.header("origin")))) {
    box->answer(std::move(*answer));
  } else if (!gate_.dispatch(request, box)) {
    gate_.refused++;
    HttpAnswer busy = gate_.error(503, "overloaded", "too many requests are waiting");
    busy.headers.emplace_back("Retry-After", "1");
    box->answer(std::move(busy));
  }
  co_return co_await respond(box);
}

Connection::Task<bool> Connection::read_header(Parser& parser, AnswerForm& form) {
  parser.header_limit(static_cast<uint32_t>(gate_.options.max_header_bytes));
  parser.body_limit(boost::none);  // checked when the key has been
  parser.eager(false);
  const Time deadline = Clock::now() + gate_.options.header_timeout;
  while (true) {
    boost::beast::error_code ec;
    const size_t used = parser.put(asio::buffer(in_), ec);
    in_.erase(0, used);
    if (parser.is_header_done()) co_return true;
    if (ec && ec != http::error::need_more) {
      co_return co_await refuse(std::move(form), refusal_of(ec, gate_.options));
    }
    if (!ec) continue;
    if (ended_ || closed_) co_return false;
    pump();
    const bool in_time = co_await event(deadline);
    if (in_time) continue;
    gate_.timed_out++;
    co_return co_await refuse(std::move(form), timed_out("the request's header took too long"));
  }
}

Connection::Task<bool> Connection::read_body(Parser& parser, AnswerForm& form, HttpRequest& request,
                                             int64_t& held) {
  const HttpOptions& o = gate_.options;
  parser.body_limit(o.max_body_bytes);
  parser.eager(true);
  bool expects = !form.http_1_0 && !request.header("expect").empty();
  const Time deadline = Clock::now() + o.body_timeout;
  while (!parser.is_done()) {
    boost::beast::error_code ec = http::error::need_more;
    if (!in_.empty()) {
      const size_t used = parser.put(asio::buffer(in_), ec);
      in_.erase(0, used);
      const auto size = static_cast<int64_t>(parser.get().body().size());
      gate_.body_bytes += size - held;
      held = size;
      expects = false;
    }
    if (parser.is_done()) break;
    if (ec && ec != http::error::need_more) {
      co_return co_await refuse(std::move(form), refusal_of(ec, o));
    }
    if (gate_.body_bytes > o.max_body_total) {
      gate_.refused++;
      gate_.body_bytes -= std::exchange(held, 0);  // at once, so that it is the last one only that is refused
      parser.get().body() = {};
      co_return co_await refuse(std::move(form), overloaded("too many bytes of requests at once"));
    }
    if (!ec) continue;
    if (ended_ || closed_) co_return false;
    if (in_.size() >= o.max_header_bytes)  // a line of the chunked coding that has no end
      co_return co_await refuse(std::move(form), refusal_of(http::error::bad_chunk_extension, o));
    if (expects) {
      expects = false;
      const bool sent = co_await send("HTTP/1.1 100 Continue\r\n\r\n", nullptr);
      if (!sent) co_return false;
    }
    pump();
    const bool in_time = co_await event(deadline);
    if (in_time) continue;
    gate_.timed_out++;
    co_return co_await refuse(std::move(form), timed_out("the request's body took too long"));
  }
  co_return true;
}

Connection::Task<bool> Connection::respond(std::shared_ptr<Outbox> box) {
  pump();
  while (!closed_) {
    std::string bytes = box->take();
    if (!bytes.empty()) {
      co_await send(std::move(bytes), box.get());
      continue;
    }
    const Outbox::State state = box->state();
    if (state == Outbox::State::complete) co_return box->kept_alive();
    if (state == Outbox::State::broken) {
      close();
      break;
    }
    co_await event(Time::max());
  }
  co_return false;
}

}  // namespace lapidary::serve
