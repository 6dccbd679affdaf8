// Answers: streams, slow readers, peers that leave, handlers that fail, too much at once, the end of a
// server.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "serve/http_fixture.h"

namespace lapidary::serve {
namespace {

// Hands the exchanges of requests to the test's thread.
class Inbox {
 public:
  Handler handler() {
    return [this](HttpRequest request, std::shared_ptr<Exchange> exchange) {
      const std::lock_guard lock(mutex_);
      (void)request;
      waiting_.push_back(std::move(exchange));
      came_.hit();
    };
  }
  std::shared_ptr<Exchange> next() {
    if (!came_.wait(++taken_)) throw std::runtime_error("no request came");
    const std::lock_guard lock(mutex_);
    auto exchange = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    return exchange;
  }

 private:
  std::mutex mutex_;
  Latch came_;
  int64_t taken_ = 0;
  std::vector<std::shared_ptr<Exchange>> waiting_;
};

TEST(HttpAnswers, StatusHeadersAndBody) {
  TestServer s(test_options(), [](HttpRequest, std::shared_ptr<Exchange> exchange) {
    exchange->answer({429, "text/x", "wait", {{"Retry-After", "7"}, {"X-Split", "a\r\nSet-Cookie: b"}}});
    exchange->answer({200, "text/x", "a second one is not sent", {}});
  });
  SocketClient c = s.client();
  for (int i = 0; i < 2; i++) {
    const SocketAnswer a = c.ask(http_request("GET /"));
    EXPECT_EQ(a.status, 429);
    EXPECT_EQ(a.body, "wait");
    EXPECT_EQ(a.header("retry-after"), "7");
    EXPECT_EQ(a.header("x-split"), "a  Set-Cookie: b");  // no header of a client's making
    EXPECT_EQ(a.header("set-cookie"), "");
  }
}

TEST(HttpAnswers, StreamArrivesAsItIsWritten) {
  Inbox inbox;
  TestServer s(test_options(), inbox.handler());
  SocketClient c = s.client();
  c.send(http_request("GET /"));
  const auto exchange = inbox.next();
  exchange->begin_stream("text/event-stream");
  exchange->write("data: 1\n\n");
  const std::string head = c.read_head();
  EXPECT_NE(head.find("Content-Type: text/event-stream\r\n"), std::string::npos);
  EXPECT_NE(head.find("Cache-Control: no-cache\r\n"), std::string::npos);
  EXPECT_NE(head.find("X-Accel-Buffering: no\r\n"), std::string::npos);
  EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  while (c.in().size() < 14) ASSERT_TRUE(c.receive());
  EXPECT_EQ(c.in(), "9\r\ndata: 1\n\n\r\n");
  exchange->write("");  // would look like the end
  exchange->write("data: [DONE]\n\n");
  exchange->end_stream();
  while (c.in().size() < 14 + 19 + 5) ASSERT_TRUE(c.receive());
  EXPECT_EQ(c.in().substr(14), "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  EXPECT_FALSE(exchange->gone());
}

TEST(HttpAnswers, StreamToHttp10EndsByClosing) {
  Inbox inbox;
  TestServer s(test_options(), inbox.handler());
  SocketClient c = s.client();
  c.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto exchange = inbox.next();
  exchange->begin_stream("text/event-stream");
  exchange->write("one");
  exchange->write("two");
  exchange->end_stream();
  const SocketAnswer a = c.read_answer();
  EXPECT_EQ(a.header("connection"), "close");
  EXPECT_EQ(a.header("transfer-encoding"), "");
  EXPECT_EQ(a.body, "onetwo");
}

TEST(HttpAnswers, FiftyThousandPiecesFromFourThreadsOfWriters) {
  TestServer s(test_options(), [](HttpRequest, std::shared_ptr<Exchange> exchange) {
    exchange->begin_stream("text/plain");
    std::thread([exchange] {
      for (int i = 0; i < 50'000; i++) exchange->write(std::to_string(i) + "\n");
      exchange->end_stream();
    }).detach();
  });
  std::string expected;
  for (int i = 0; i < 50'000; i++) expected += std::to_string(i) + "\n";
  std::vector<std::thread> readers;
  std::atomic<int> good = 0;
  for (int r = 0; r < 4; r++)
    readers.emplace_back([&] {
      SocketClient c = s.client();
      const SocketAnswer a = c.ask(http_request("GET /"));
      if (a.whole && a.body == expected && c.ask(http_request("GET /")).body == expected) good++;
    });
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(good, 4);
}

TEST(HttpAnswers, LargeAnswerIsNotTakenForASlowReader) {
  HttpOptions o = test_options();
  o.max_unsent = 1 << 20;
  const std::string large(20 << 20, 'z');
  TestServer s(o, [&](HttpRequest, std::shared_ptr<Exchange> exchange) {
    exchange->answer({200, "text/plain", large, {}});
  });
  EXPECT_TRUE(s.client().ask(http_request("GET /")).body == large);
}

TEST(HttpAnswers, ReaderThatNeverReadsIsGoneAndItsMemoryBounded) {
  HttpOptions o = test_options();
  o.max_unsent = 1 << 20;
  Inbox inbox;
  TestServer s(o, inbox.handler());
  SocketClient c(s.server.port(), 4096);
  c.send(http_request("GET /"));
  const auto exchange = inbox.next();
  Latch gone;
  exchange->when_gone([&] { gone.hit(); });
  exchange->begin_stream("text/plain");
  size_t written = 0, most = 0;
  const std::string piece(10'000, 'x');
  while (!exchange->gone() && written < (size_t{1} << 30)) {
    exchange->write(piece);
    written += piece.size();
    most = std::max(most, exchange->unsent());
  }
  EXPECT_TRUE(gone.wait());
  EXPECT_LE(most, o.max_unsent + 100);
  EXPECT_LT(written, size_t{64} << 20);
  exchange->write(piece);  // does nothing
  c.read_to_end();         // the server has closed
  EXPECT_EQ(exchange->unsent(), 0u);
  EXPECT_EQ(gone.count(), 1);
}

TEST(HttpAnswers, WriteTimeout) {
  HttpOptions o = test_options();
  o.write_timeout = 150ms;
  o.max_unsent = 64 << 20;
  Inbox inbox;
  TestServer s(o, inbox.handler());
  SocketClient c(s.server.port(), 4096);
  c.send(http_request("GET /"));
  const auto exchange = inbox.next();
  Latch gone;
  exchange->when_gone([&] { gone.hit(); });
  exchange->begin_stream("text/plain");
  exchange->write(std::string(16 << 20, 'x'));
  EXPECT_TRUE(gone.wait());
  EXPECT_TRUE(exchange->gone());
  EXPECT_EQ(s.server.stats().timed_out, 1);
}

TEST(HttpAnswers, StreamThatIsDroppedEndsThoughItsReaderStalls) {
  Inbox inbox;
  TestServer s(test_options(), inbox.handler());
  SocketClient c(s.server.port(), 4096);
  c.send(http_request("GET /"));
  auto exchange = inbox.next();
  exchange->begin_stream("text/plain");
  while (exchange->unsent() < (1 << 20)) exchange->write(std::string(100'000, 'x'));
  exchange.reset();  // long before write_timeout
  EXPECT_TRUE(s.server.wait_idle(std::chrono::steady_clock::now() + 20s));
  EXPECT_FALSE(c.read_answer().whole);
}

TEST(HttpAnswers, DrainedIsSaidWhenASlowReaderCatchesUp) {
  HttpOptions o = test_options();
  o.max_unsent = 64 << 20;
  Inbox inbox;
  TestServer s(o, inbox.handler());
  SocketClient c(s.server.port(), 4096);
  c.send(http_request("GET /"));
  const auto exchange = inbox.next();
  Latch drained;
  exchange->when_drained([&] { drained.hit(); });
  exchange->begin_stream("text/plain");
  exchange->write("little");  // never above the bound: not said
  std::thread reader([&] { EXPECT_EQ(c.read_answer().body.size(), 6 + (size_t{16} << 20)); });
  for (int i = 1; i <= 2; i++) {
    exchange->write(std::string(8 << 20, 'x'));
    EXPECT_TRUE(drained.wait(i));
    EXPECT_EQ(exchange->unsent(), 0u);
  }
  exchange->end_stream();
  reader.join();
  EXPECT_EQ(drained.count(), 2);
}

TEST(HttpAnswers, LeavingIsNoticedWhileTheHandlerWorks) {
  Inbox inbox;
  TestServer s(test_options(), inbox.handler());
  for (const bool by_reset : {false, true})
    for (const bool streaming : {false, true}) {
      SocketClient c = s.client();
      c.send(http_request("GET /"));
      const auto exchange = inbox.next();
      Latch gone;
      exchange->when_gone([&] { gone.hit(); });
      if (streaming) {
        exchange->begin_stream("text/event-stream");
        exchange->write("data: x\n\n");
        c.read_head();
      }
      by_reset ? c.reset() : c.close();
      EXPECT_TRUE(gone.wait());
      EXPECT_TRUE(exchange->gone());
      exchange->write("more");
      exchange->end_stream();
      exchange->answer({200, "text/plain", "late", {}});
      Latch late;
      exchange->when_gone([&] { late.hit(); });
      EXPECT_EQ(late.count(), 1);
      EXPECT_EQ(gone.count(), 1);
    }
  EXPECT_TRUE(s.server.wait_idle(std::chrono::steady_clock::now() + 20s));
}

TEST(HttpAnswers, PeerThatEndsItsSendingStillGetsWhatTakesNoTime) {
  Inbox inbox;
  TestServer s(test_options(), inbox.handler());
  SocketClient c = s.client();
  c.send(http_request("GET /1") + http_request("GET /2"));
  c.end_sending();
  for (const char* text : {"one", "two"}) {
    const auto exchange = inbox.next();
    Latch gone;
    exchange->when_gone([&] { gone.hit(); });
    EXPECT_TRUE(gone.wait());
    exchange->answer({200, "text/plain", text, {}});
    EXPECT_EQ(c.read_answer().body, text);
  }
  EXPECT_EQ(c.read_to_end(), "");
}

TEST(HttpAnswers, HandlerThatThrowsOrDropsAnswers500) {
  HttpOptions o = test_options();
  std::mutex mutex;
  std::vector<std::string> thrown;
  o.on_throw = [&](std::string_view id, std::string_view what) {
    const std::lock_guard lock(mutex);
    thrown.push_back(std::string(id) + ": " + std::string(what));
  };
  TestServer s(o, [](HttpRequest request, std::shared_ptr<Exchange> exchange) {
    if (request.path == "/throw") throw std::runtime_error("a secret");
    if (request.path == "/int") throw 1;
    if (request.path == "/stream") {
      exchange->begin_stream("text/plain");
      exchange->write("begun");
      throw std::runtime_error("broke");
    }
    if (request.path == "/drop") return;
    echo(std::move(request), std::move(exchange));
  });
  SocketClient c = s.client();
  for (const char* path : {"GET /throw", "GET /int", "GET /drop"}) {
    const SocketAnswer a = c.ask(http_request(path, "", "X-Request-Id: t\r\n"));
    EXPECT_EQ(a.status, 500) << path;
    EXPECT_EQ(a.body.find("secret"), std::string::npos);
    EXPECT_NE(a.body.find("internal_error"), std::string::npos);
  }
  EXPECT_EQ(c.ask(http_request("GET /fine")).status, 200);
  // Broken off: a client must not take it for the whole.
  c.send(http_request("GET /stream", "", "X-Request-Id: u\r\n"));
  try {
    EXPECT_FALSE(c.read_answer().whole);
  } catch (const std::runtime_error&) {  // closed before the header was out
  }
  EXPECT_EQ(s.client().ask(http_request("GET /fine")).status, 200);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(thrown,
            (std::vector<std::string>{"t: a secret", "t: something that is no std::exception", "u: broke"}));
}

TEST(HttpAnswers, CallbackThatHoldsItsExchangeIsLetGo) {
  std::weak_ptr<Exchange> left;
  Inbox inbox;
  TestServer s(test_options(), inbox.handler());
  for (const bool leaves : {false, true}) {
    SocketClient c = s.client();
    c.send(http_request("GET /"));
    {
      auto exchange = inbox.next();
      left = exchange;
      exchange->when_gone([exchange] {});
      exchange->when_drained([exchange] {});
      if (leaves) {
        c.close();
      } else {
        exchange->answer({});
        EXPECT_EQ(c.read_answer().status, 200);
      }
    }
    for (int i = 0; i < 2000 && !left.expired(); i++) std::this_thread::sleep_for(10ms);
    EXPECT_TRUE(left.expired());
  }
}

TEST(HttpAnswers, ThreeHundredIdleConnectionsAndABusyOne) {
  TestServer s;
  std::vector<SocketClient> idle;
  for (int i = 0; i < 300; i++) idle.push_back(s.client());
  for (SocketClient& c : idle) EXPECT_EQ(c.ask(http_request("GET /")).status, 200);
  EXPECT_EQ(s.client().ask(http_request("GET /busy")).status, 200);
  EXPECT_GE(s.server.stats().connections, 300);
  for (SocketClient& c : idle) EXPECT_EQ(c.ask(http_request("GET /again")).status, 200);
}

TEST(HttpAnswers, ConnectionsAreBounded) {
  HttpOptions o = test_options();
  o.max_connections = 3;
  TestServer s(o);
  std::vector<SocketClient> held;
  for (int i = 0; i < 3; i++) held.push_back(s.client());
  for (SocketClient& c : held) EXPECT_EQ(c.ask(http_request("GET /")).status, 200);
  for (int i = 0; i < 5; i++) {
    SocketClient more = s.client();
    more.send(http_request("GET /"));
    const SocketAnswer a = more.read_answer();
    EXPECT_EQ(a.status, 503);
    EXPECT_EQ(a.header("retry-after"), "1");
    EXPECT_EQ(more.read_to_end(), "");
  }
  EXPECT_EQ(s.server.stats().refused, 5);
  held.clear();
  int status = 0;
  for (int i = 0; i < 2000 && status != 200; i++) {  // until the server has seen them leave
    SocketClient c = s.client();
    status = c.ask(http_request("GET /")).status;
  }
  EXPECT_EQ(status, 200);
}

TEST(HttpAnswers, WaitingRequestsAreBounded) {
  HttpOptions o = test_options();
  o.workers = 1;
  o.max_pending = 2;
  Latch entered, go;
  TestServer s(o, [&](HttpRequest, std::shared_ptr<Exchange> exchange) {
    entered.hit();
    go.wait();
    exchange->answer({});
  });
  std::vector<SocketClient> clients;
  clients.push_back(s.client());
  clients.back().send(http_request("GET /"));
  ASSERT_TRUE(entered.wait());
  for (int i = 0; i < 6; i++) {
    clients.push_back(s.client());
    clients.back().send(http_request("GET /"));
  }
  while (s.server.stats().refused < 4) std::this_thread::sleep_for(1ms);
  go.hit();
  int served = 0, refused = 0;
  for (SocketClient& c : clients) {
    const SocketAnswer a = c.read_answer();
    served += a.status == 200;
    refused += a.status == 503 && a.header("retry-after") == "1";
  }
  EXPECT_EQ(served, 3);
  EXPECT_EQ(refused, 4);
}

TEST(HttpAnswers, OutOfDescriptorsTheServerWaitsAndGoesOn) {
  TestServer s;
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  SocketClient c = s.client();  // accepted by its first answer
  EXPECT_EQ(c.ask(http_request("GET /")).status, 200);
  SocketClient waits = [&] {
    const int free = dup(0);
    rlimit tight = old;
    tight.rlim_cur = static_cast<rlim_t>(free) + 1;  // room for the client's socket alone
    close(free);
    setrlimit(RLIMIT_NOFILE, &tight);
    return s.client();
  }();
  waits.send(http_request("GET /late"));
  EXPECT_EQ(c.ask(http_request("GET /meanwhile")).status, 200);
  EXPECT_THROW(waits.receive(50), std::runtime_error);
  setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_EQ(waits.read_answer().status, 200);
}

TEST(HttpAnswers, DrainAnswersWhatIsAtHandAndNoMore) {
  Inbox inbox;
  TestServer s(test_options(), inbox.handler());
  SocketClient idle = s.client(), busy = s.client(), reading = s.client();
  idle.send(http_request("GET /"));
  inbox.next()->answer({});
  EXPECT_EQ(idle.read_answer().status, 200);
  busy.send(http_request("GET /"));
  const auto exchange = inbox.next();
  reading.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nab");
  while (s.server.stats().requests < 3) std::this_thread::sleep_for(1ms);
  s.server.close_listener();
  EXPECT_EQ(idle.read_to_end(), "");
  EXPECT_THROW(s.client(), std::runtime_error);
  EXPECT_FALSE(s.server.wait_idle(std::chrono::steady_clock::now() + 20ms));
  exchange->answer({200, "text/plain", "the last", {}});
  const SocketAnswer a = busy.read_answer();
  EXPECT_EQ(a.body, "the last");
  EXPECT_EQ(a.header("connection"), "close");
  reading.send("cd");
  inbox.next()->answer({});
  EXPECT_EQ(reading.read_answer().status, 200);
  EXPECT_TRUE(s.server.wait_idle(std::chrono::steady_clock::now() + 20s));
}

int64_t own_threads() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.compare(0, 8, "Threads:") == 0) return std::stoll(line.substr(8));
  return -1;
}

TEST(HttpAnswers, StopLeavesNothing) {
  const int64_t threads = own_threads();
  std::shared_ptr<Exchange> left;
  Latch gone;
  SocketClient* c = nullptr;
  std::unique_ptr<SocketClient> client;
  {
    Inbox inbox;
    TestServer s(test_options(), inbox.handler());
    client = std::make_unique<SocketClient>(s.server.port());
    c = client.get();
    c->send(http_request("GET /"));
    left = inbox.next();
    left->when_gone([&] { gone.hit(); });
    left->begin_stream("text/plain");
    s.server.stop();
    EXPECT_EQ(s.server.stats().connections, 0);
    s.server.stop();
  }
  EXPECT_EQ(gone.count(), 1);
  EXPECT_TRUE(left->gone());
  left->write("to nobody");  // an exchange may outlive its server
  left.reset();
  c->read_to_end();
  for (int i = 0; i < 2000 && own_threads() > threads; i++) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(own_threads(), threads);
}

TEST(HttpAnswers, AServerThatNeverStartedStops) {
  HttpServer server(test_options(), echo);
  EXPECT_GT(server.port(), 0);
  server.close_listener();
  EXPECT_TRUE(server.wait_idle(std::chrono::steady_clock::now()));
  server.stop();
}

}  // namespace
}  // namespace lapidary::serve
