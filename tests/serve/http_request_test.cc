// Requests: what is taken, what is refused and how, and that the connection goes on or ends as it must.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "serve/http_fixture.h"

namespace lapidary::serve {
namespace {

bool closes(SocketClient& client) {
  client.read_to_end();
  return true;  // read_to_end throws when the server keeps the connection
}

TEST(HttpRequests, BodyPathAndQueryArrive) {
  TestServer s;
  SocketClient c = s.client();
  const SocketAnswer a = c.ask(http_request("POST /a%20b/%C3%A9?x=%41&y", "the body"));
  EXPECT_EQ(a.status, 200);
  EXPECT_EQ(a.body, "POST /a b/\xC3\xA9 ? x=%41&y by 127.0.0.1\nthe body");
  EXPECT_EQ(a.header("content-type"), "text/plain");
  EXPECT_FALSE(a.header("date").empty());
}

TEST(HttpRequests, ConnectionIsKeptAndPipelinedRequestsAreAnsweredInOrder) {
  TestServer s;
  SocketClient c = s.client();
  std::string many;
  for (int i = 0; i < 200; i++)
    many += http_request("POST /" + std::to_string(i), std::string(static_cast<size_t>(i % 7), 'b'));
  c.send(many);
  for (int i = 0; i < 200; i++) {
    const SocketAnswer a = c.read_answer();
    EXPECT_EQ(a.body, "POST /" + std::to_string(i) + " ?  by 127.0.0.1\n" +
                          std::string(static_cast<size_t>(i % 7), 'b'));
  }
  EXPECT_EQ(s.server.stats().accepted, 1);
  EXPECT_EQ(s.server.stats().requests, 200);
}

TEST(HttpRequests, ByteByByte) {
  TestServer s;
  SocketClient c = s.client();
  for (const char byte : http_request("POST /slow", "body")) c.send({&byte, 1});
  EXPECT_EQ(c.read_answer().body, "POST /slow ?  by 127.0.0.1\nbody");
}

TEST(HttpRequests, ChunkedBody) {
  TestServer s;
  SocketClient c = s.client();
  const std::string head = http_request("POST /", "", "Transfer-Encoding: chunked\r\n");
  EXPECT_EQ(c.ask(head + "3\r\nabc\r\n5;name=value\r\ndefgh\r\n0\r\nTrailer: x\r\n\r\n").body,
            "POST / ?  by 127.0.0.1\nabcdefgh");
  EXPECT_EQ(c.ask(head + "0\r\n\r\n").body, "POST / ?  by 127.0.0.1\n");
  EXPECT_EQ(c.ask(head + "zz\r\n").status, 400);
  EXPECT_TRUE(closes(c));
}

TEST(HttpRequests, ChunkLineWithoutEnd) {
  HttpOptions o = test_options();
  o.max_header_bytes = 1024;
  TestServer s(o);
  SocketClient c = s.client();
  c.send(http_request("POST /", "", "Transfer-Encoding: chunked\r\n") + "5;" + std::string(200'000, 'x'));
  EXPECT_EQ(c.read_answer().status, 400);
}

TEST(HttpRequests, HeadHasNoBody) {
  TestServer s;
  SocketClient c = s.client();
  const SocketAnswer a = c.ask(http_request("HEAD /x"), true);
  EXPECT_EQ(a.status, 200);
  EXPECT_EQ(a.header("content-length"), "23");
  EXPECT_EQ(c.ask(http_request("GET /y")).body, "GET /y ?  by 127.0.0.1\n");  // nothing was left over
}

TEST(HttpRequests, Http10) {
  TestServer s;
  SocketClient c = s.client();
  SocketAnswer a = c.ask("GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(a.header("connection"), "keep-alive");
  a = c.ask("GET /old HTTP/1.0\r\n\r\n");
  EXPECT_EQ(a.header("connection"), "close");
  EXPECT_EQ(a.body, "GET /old ?  by 127.0.0.1\n");
  EXPECT_TRUE(closes(c));
}

TEST(HttpRequests, ConnectionCloseIsHeeded) {
  TestServer s;
  SocketClient c = s.client();
  EXPECT_EQ(c.ask(http_request("GET /", "", "Connection: close\r\n")).header("connection"), "close");
  EXPECT_TRUE(closes(c));
}

TEST(HttpRequests, AbsoluteTargetAndEmptyLineInFront) {
  TestServer s;
  SocketClient c = s.client();
  EXPECT_EQ(c.ask("\r\nGET http://localhost:80/p?q HTTP/1.1\r\nHost: localhost\r\n\r\n").body,
            "GET /p ? q by 127.0.0.1\n");
}

struct Bad {
  const char* what;
  std::string bytes;
  int status;
};

TEST(HttpRequests, BadOnesAreRefusedAndTheConnectionEnds) {
  const std::string host = "Host: localhost\r\n";
  const std::vector<Bad> cases = {
      {"no method", "%%%\r\n\r\n", 400},
      {"no version", "GET /\r\n\r\n", 400},
      {"another version", "GET / HTTP/3.0\r\n" + host + "\r\n", 505},
      {"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"TLS", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(60, 'x'), 400},
      {"unknown method", "BREW / HTTP/1.1\r\n" + host + "\r\n", 405},
      {"TRACE", "TRACE / HTTP/1.1\r\n" + host + "\r\n", 405},
      {"CONNECT", "CONNECT localhost:1 HTTP/1.1\r\n" + host + "\r\n", 405},
      {"no Host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two Hosts", "GET / HTTP/1.1\r\n" + host + host + "\r\n", 400},
      {"Host that is none", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
      {"space before colon", "GET / HTTP/1.1\r\n" + host + "A : b\r\n\r\n", 400},
      {"bare LF", "GET / HTTP/1.1\nHost: localhost\n\n", 505},
      {"NUL in header", std::string("GET / HTTP/1.1\r\nA: b\0c\r\n\r\n", 27), 400},
      {"length and chunked",
       "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"chunked and length",
       "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400},
      {"two lengths", "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400},
      {"one length twice", "POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
       400},
      {"list of lengths", "POST / HTTP/1.1\r\n" + host + "Content-Length: 3, 3\r\n\r\nabc", 400},
      {"length below nothing", "POST / HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n", 400},
      {"length with a plus", "POST / HTTP/1.1\r\n" + host + "Content-Length: +1\r\n\r\n", 400},
      {"length beyond 64 bits", "POST / HTTP/1.1\r\n" + host + "Content-Length: 99999999999999999999\r\n\r\n",
       400},
      {"gzip, chunked", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"unknown coding", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n", 501},
      {"chunked in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"another expectation", "POST / HTTP/1.1\r\n" + host + "Expect: tea\r\n\r\n", 417},
      {"escape cut", "GET /%4 HTTP/1.1\r\n" + host + "\r\n", 400},
      {"escape that is none", "GET /%zz HTTP/1.1\r\n" + host + "\r\n", 400},
      {"NUL escaped", "GET /a%00b HTTP/1.1\r\n" + host + "\r\n", 400},
      {"no UTF-8", "GET /%ff HTTP/1.1\r\n" + host + "\r\n", 400},
      {"relative", "GET a HTTP/1.1\r\n" + host + "\r\n", 400},
      {"star", "GET * HTTP/1.1\r\n" + host + "\r\n", 400},
      {"two keys", "GET / HTTP/1.1\r\n" + host + "Authorization: a\r\nAuthorization: b\r\n\r\n", 400},
  };
  TestServer s;
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.what);
    SocketClient c = s.client();
    c.send(bad.bytes);
    const SocketAnswer a = c.read_answer();
    EXPECT_EQ(a.status, bad.status);
    EXPECT_TRUE(a.whole);
    EXPECT_EQ(a.header("content-type"), "application/json");
    EXPECT_EQ(a.header("connection"), "close");
    EXPECT_FALSE(a.header("x-request-id").empty());
    EXPECT_TRUE(closes(c));
    EXPECT_FALSE(c.was_reset());
  }
  SocketClient c = s.client();
  EXPECT_EQ(c.ask(http_request("GET /")).status, 200);
}

TEST(HttpRequests, HeaderIsBounded) {
  HttpOptions o = test_options();
  o.max_header_bytes = 2000;
  TestServer s(o);
  SocketClient c = s.client();
  EXPECT_EQ(c.ask(http_request("GET /", "", "A: " + std::string(1500, 'a') + "\r\n")).status, 200);
  EXPECT_EQ(c.ask(http_request("GET /", "", "A: " + std::string(2500, 'a') + "\r\n")).status, 431);
  SocketClient endless = s.client();
  endless.send("GET /" + std::string(100'000, 'a'));
  EXPECT_EQ(endless.read_answer().status, 431);
}

TEST(HttpRequests, BodyIsBounded) {
  HttpOptions o = test_options();
  o.max_body_bytes = 1000;
  TestServer s(o);
  SocketClient c = s.client();
  EXPECT_EQ(c.ask(http_request("POST /", std::string(1000, 'x'))).status, 200);
  // By what the length says, before a byte of the body has come.
  EXPECT_EQ(c.ask("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n").status, 413);
  // A client that sends all of it first reads the answer all the same.
  SocketClient eager = s.client();
  EXPECT_TRUE(eager.send(http_request("POST /", std::string(4 << 20, 'x'))));
  EXPECT_EQ(eager.read_answer().status, 413);
  SocketClient chunked = s.client();
  chunked.send(http_request("POST /", "", "Transfer-Encoding: chunked\r\n") + "258\r\n" +
               std::string(600, 'x') + "\r\n258\r\n" + std::string(600, 'x') + "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.read_answer().status, 413);
}

TEST(HttpRequests, BodiesTogetherAreBounded) {
  HttpOptions o = test_options();
  o.max_body_total = 150'000;
  TestServer s(o);
  const std::string head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n";
  SocketClient held = s.client(), other = s.client();
  ASSERT_TRUE(held.send(head + std::string(100'000, 'x')));
  other.send(head + std::string(100'001, 'x'));
  const SocketAnswer a = other.read_answer();
  // Whichever of the two came over the bound was turned away; the other is served.
  if (a.status == 503) {
    EXPECT_EQ(a.header("retry-after"), "1");
    held.send("x");
    EXPECT_EQ(held.read_answer().status, 200);
  } else {
    EXPECT_EQ(a.status, 200);
    EXPECT_EQ(held.read_answer().status, 503);
  }
  SocketClient later = s.client();  // what they took is given back
  EXPECT_EQ(later.ask(head + std::string(100'001, 'x')).status, 200);
}

TEST(HttpRequests, ExpectContinue) {
  HttpOptions o = test_options();
  o.max_body_bytes = 1000;
  o.authenticate = [](std::string_view key) -> std::optional<std::string> {
    if (key == "Bearer good") return "alice";
    return std::nullopt;
  };
  TestServer s(o);
  const auto head = [](int length, const char* key) {
    return "POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: " +
           std::to_string(length) + "\r\nAuthorization: Bearer " + key + "\r\n\r\n";
  };
  SocketClient c = s.client();
  EXPECT_EQ(c.ask(head(4, "good")).status, 100);
  EXPECT_EQ(c.ask("body").body, "POST / ?  by alice\nbody");
  // One that does not wait for it needs none.
  EXPECT_EQ(c.ask(head(4, "good") + "body").status, 200);
  EXPECT_EQ(c.ask(head(1001, "good")).status, 413);
  SocketClient bad = s.client();
  EXPECT_EQ(bad.ask(head(4, "bad")).status, 401);
}

TEST(HttpRequests, Ids) {
  TestServer s;
  SocketClient c = s.client();
  const auto id = [&](const std::string& sent) {
    return c.ask(http_request("GET /", "", "X-Request-Id: " + sent + "\r\n")).header("x-request-id");
  };
  EXPECT_EQ(id("a-B_c.9"), "a-B_c.9");
  EXPECT_EQ(id(std::string(64, 'x')), std::string(64, 'x'));
  std::set<std::string> ours;
  for (const std::string& bad :
       {std::string(65, 'x'), std::string("a b"), std::string("a\"b"), std::string("")})
    ours.insert(id(bad));
  for (int i = 0; i < 20; i++) ours.insert(c.ask(http_request("GET /")).header("x-request-id"));
  EXPECT_EQ(ours.size(), 24u);
  for (const std::string& mine : ours) {
    EXPECT_EQ(mine.size(), 36u) << mine;
    EXPECT_EQ(mine.substr(0, 4), "req-");
  }
}

TEST(HttpRequests, TimeoutsOfHeaderBodyAndIdleness) {
  HttpOptions o = test_options();
  o.header_timeout = 100ms;
  o.body_timeout = 150ms;
  o.idle_timeout = 200ms;
  TestServer s(o);
  SocketClient silent = s.client();
  EXPECT_EQ(silent.read_to_end(), "");  // nothing was asked: nothing is answered
  SocketClient header = s.client();
  header.send("GET / HTTP/1.1\r\nHost: loc");
  EXPECT_EQ(header.read_answer().status, 408);
  SocketClient body = s.client();
  body.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabc");
  EXPECT_EQ(body.read_answer().status, 408);
  EXPECT_TRUE(closes(body));
  EXPECT_EQ(s.server.stats().timed_out, 2);
  SocketClient idle = s.client();
  EXPECT_EQ(idle.ask(http_request("GET /")).status, 200);
  EXPECT_EQ(idle.read_to_end(), "");
}

TEST(HttpRequests, SlowLorisIsNotHelpedByItsDrip) {
  HttpOptions o = test_options();
  o.header_timeout = 200ms;
  TestServer s(o);
  SocketClient c = s.client();
  c.send("GET / HTTP/1.1\r\n");
  bool ended = false;
  for (int i = 0; i < 1000 && !ended; i++) {  // a header line every 20 ms would go on for ever
    c.send("A: b\r\n");
    try {
      c.receive(20);
      ended = c.in().find("408") != std::string::npos;
    } catch (const std::runtime_error&) {
    }
  }
  EXPECT_TRUE(ended);
}

TEST(HttpRequests, AddressesThatAreNone) {
  HttpOptions o = test_options();
  o.address = "example.org";
  EXPECT_THROW(HttpServer(o, echo), Error);
  o.address = "127.0.0.1";
  HttpServer first(o, echo);
  o.port = first.port();
  try {
    HttpServer second(o, echo);
    FAIL() << "two servers at one port";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io);
    EXPECT_NE(std::string(e.what()).find("127.0.0.1 port " + std::to_string(o.port)), std::string::npos)
        << e.what();
  }
}

TEST(HttpRequests, LocalhostAndIPv6) {
  HttpOptions o = test_options();
  o.address = "localhost";
  TestServer s(o);
  EXPECT_EQ(s.client().ask(http_request("GET /")).status, 200);
  o.address = "::1";
  try {
    TestServer six(o);
    EXPECT_GT(six.server.port(), 0);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io);  // a machine without IPv6
  }
}

}  // namespace
}  // namespace lapidary::serve
