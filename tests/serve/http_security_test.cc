// Keys, CORS and the guard against names that resolve to loopback.
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "serve/http/protocol.h"
#include "serve/http_fixture.h"

namespace lapidary::serve {
namespace {

HttpOptions with_keys() {
  HttpOptions o = test_options();
  o.authenticate = [](std::string_view key) -> std::optional<std::string> {
    if (key == "Bearer good") return "alice";
    if (key == "Bearer odd") throw std::runtime_error("the key file is gone");
    return std::nullopt;
  };
  return o;
}

TEST(HttpKeys, AreAskedForEverywhereButOnOpenPaths) {
  std::atomic<int> handled = 0;
  TestServer s(with_keys(), [&](HttpRequest request, std::shared_ptr<Exchange> exchange) {
    handled++;
    echo(std::move(request), std::move(exchange));
  });
  SocketClient c = s.client();
  EXPECT_EQ(c.ask(http_request("GET /x", "", "Authorization: Bearer good\r\n")).body, "GET /x ?  by alice\n");
  EXPECT_EQ(c.ask(http_request("GET /health")).body, "GET /health ?  by 127.0.0.1\n");
  EXPECT_EQ(c.ask(http_request("GET /ready")).status, 200);
  EXPECT_EQ(handled, 3);
  for (const char* key : {"", "Authorization: Bearer bad\r\n", "Authorization: Bearer\r\n"})
    for (const char* target :
         {"GET /x", "POST /v1/completions", "GET /health/", "GET //health", "DELETE /"}) {
      SocketClient bad = s.client();
      const SocketAnswer a = bad.ask(http_request(target, "", key));
      EXPECT_EQ(a.status, 401) << target;
      EXPECT_EQ(a.header("www-authenticate"), "Bearer");
      EXPECT_NE(a.body.find("invalid_api_key"), std::string::npos);
    }
  EXPECT_EQ(handled, 3);
  SocketClient odd = s.client();
  const SocketAnswer a = odd.ask(http_request("GET /x", "", "Authorization: Bearer odd\r\n"));
  EXPECT_EQ(a.status, 500);
  EXPECT_EQ(a.body.find("key file"), std::string::npos);
}

TEST(HttpKeys, AreRefusedBeforeTheBodyHasCome) {
  TestServer s(with_keys());
  SocketClient c = s.client();
  EXPECT_EQ(c.ask("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n").status, 401);
}

TEST(HttpCors, AllowedOriginsOnly) {
  HttpOptions o = with_keys();
  o.cors_origins = {"https://app.example", "http://localhost:3000"};
  TestServer s(o);
  const std::string key = "Authorization: Bearer good\r\n";
  SocketClient c = s.client();
  SocketAnswer a = c.ask(http_request("GET /", "", key + "Origin: https://app.example\r\n"));
  EXPECT_EQ(a.header("access-control-allow-origin"), "https://app.example");
  EXPECT_EQ(a.header("vary"), "Origin");
  for (const char* origin : {"https://app.example.evil", "https://APP.example", "http://localhost", "null"}) {
    a = c.ask(http_request("GET /", "", key + "Origin: " + origin + "\r\n"));
    EXPECT_EQ(a.status, 200);
    EXPECT_EQ(a.header("access-control-allow-origin"), "") << origin;
    EXPECT_EQ(a.header("vary"), "Origin");
  }
  // A preflight carries no key.
  const std::string ask =
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-y\r\n";
  a = c.ask(http_request("OPTIONS /v1/x", "", ask + "Origin: http://localhost:3000\r\n"));
  EXPECT_EQ(a.status, 204);
  EXPECT_EQ(a.header("access-control-allow-origin"), "http://localhost:3000");
  EXPECT_NE(a.header("access-control-allow-methods").find("POST"), std::string::npos);
  EXPECT_EQ(a.header("access-control-allow-headers"), "authorization,x-y");
  EXPECT_EQ(a.header("content-length"), "");
  a = c.ask(http_request("OPTIONS /v1/x", "", ask + "Origin: http://other\r\n"));
  EXPECT_EQ(a.status, 204);
  EXPECT_EQ(a.header("access-control-allow-origin"), "");
  EXPECT_EQ(a.header("access-control-allow-methods"), "");
  // A page must be able to read why it was refused.
  a = c.ask(http_request("GET /", "", "Origin: https://app.example\r\n"));
  EXPECT_EQ(a.status, 401);
  EXPECT_EQ(a.header("access-control-allow-origin"), "https://app.example");
}

TEST(HttpCors, NoneAndAll) {
  const std::string origin = "Origin: https://any.example\r\n";
  TestServer none;
  EXPECT_EQ(none.client().ask(http_request("GET /", "", origin)).header("access-control-allow-origin"), "");
  HttpOptions o = test_options();
  o.cors_origins = {"*"};
  TestServer all(o);
  EXPECT_EQ(all.client().ask(http_request("GET /", "", origin)).header("access-control-allow-origin"),
            "https://any.example");
  EXPECT_EQ(all.client().ask(http_request("GET /")).header("access-control-allow-origin"), "");
}

TEST(HttpHosts, OnLoopbackOnlyItsNamesAreAnswered) {
  HttpOptions o = test_options();
  o.allowed_hosts = {"Llm.Example"};
  TestServer s(o);
  const auto status = [&](const std::string& host) {
    return s.client().ask("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n").status;
  };
  for (const char* good : {"localhost", "LOCALHOST:1", "localhost.:80", "a.localhost", "127.0.0.1:8080",
                           "127.8.9.1", "[::1]", "[::1]:99", "llm.example", "LLM.example:443"})
    EXPECT_EQ(status(good), 200) << good;
  for (const char* bad : {"evil.example", "evil.example:8080", "localhost.evil", "evillocalhost", "128.0.0.1",
                          "0.0.0.0", "127.0.0.1.evil.example", "[::2]", "a.llm.example", "2130706433"})
    EXPECT_EQ(status(bad), 403) << bad;
  for (const char* none : {"", "a b", "localhost:x", "localhost:123456", "[::1", "u@localhost", "[::1]x"})
    EXPECT_EQ(status(none), 400) << none;
  // What the target says counts.
  EXPECT_EQ(s.client().ask("GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 403);
}

TEST(HttpHosts, ElsewhereEveryNameIs) {
  HttpOptions o = test_options();
  o.address = "0.0.0.0";
  TestServer s(o);
  EXPECT_EQ(s.client().ask("GET / HTTP/1.1\r\nHost: any.example\r\n\r\n").status, 200);
}

TEST(HttpProtocol, Targets) {
  const auto path = [](std::string_view target) {
    const auto parsed = parse_target(target);
    return parsed ? parsed->path : "malformed";
  };
  EXPECT_EQ(path("/"), "/");
  EXPECT_EQ(path("/a%2Fb%25"), "/a/b%");
  EXPECT_EQ(path("/a+b"), "/a+b");
  EXPECT_EQ(path("http://h"), "/");
  EXPECT_EQ(path("http://h?q"), "/");
  EXPECT_EQ(path("*"), "*");
  for (const char* bad : {"", "a", "?", "http://", "http:///a", "/%", "/%1", "/%g0", "/%0a", "/%7f", "/a#b",
                          "/a?b#c", "/%c0%80", "/%ed%a0%80"})
    EXPECT_EQ(path(bad), "malformed") << bad;
}

TEST(HttpProtocol, OptionsOfTheWholeServer) {
  TestServer s;
  const SocketAnswer a = s.client().ask(http_request("OPTIONS *"));
  EXPECT_EQ(a.status, 204);
  EXPECT_NE(a.header("allow").find("POST"), std::string::npos);
}

}  // namespace
}  // namespace lapidary::serve
