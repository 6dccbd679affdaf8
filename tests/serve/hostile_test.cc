// Clients that send anything but what they should, to the whole server: sockets, API, scheduler and engine.
// It always answers in HTTP or closes, never with a 500, and serves the next one as if nothing had been.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "serve/api/api_error.h"
#include "serve/http_fixture.h"
#include "serve/served.h"

namespace lapidary::serve::test {
namespace {

using Random = std::mt19937;

size_t below(Random& random, size_t n) {
  return n == 0 ? 0 : random() % n;
}

const std::string kGood =
    R"({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "temperature": 0, "logprobs": true, "top_logprobs": 2})";

struct Sent {
  std::string method_and_path, body;
  std::string bytes(std::string_view more = "") const {
    return http_request(method_and_path, body, "Content-Type: application/json\r\n" + std::string(more));
  }
};

// One of every kind that the server knows.
const std::vector<Sent>& valid_requests() {
  static const std::vector<Sent> all = {
      {"GET /v1/models", ""},
      {"GET /health", ""},
      {"GET /v1/kv", ""},
      {"POST /v1/chat/completions", kGood},
      {"POST /v1/chat/completions",
       R"({"model": "tiny", "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}], "stream": true, "stream_options": {"include_usage": true}, "n": 2, "seed": 7, "max_tokens": 5, "stop": ["x", "yy"]})"},
      {"POST /v1/chat/completions",
       R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}}}})"},
      {"POST /v1/chat/completions",
       R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}], "tool_choice": "required"})"},
      {"POST /v1/completions",
       R"({"prompt": ["ab", "c"], "echo": true, "logprobs": 2, "max_tokens": 3, "logit_bias": {"5": -3.5}, "presence_penalty": 0.5})"},
      {"POST /v1/completions", R"({"prompt": [5, 6, 7], "max_tokens": 4, "stream": true, "top_p": 0.9})"},
      {"POST /v1/embeddings", R"({"input": ["a", "bc"], "encoding_format": "float"})"},
      {"POST /v1/responses", R"({"input": "hello", "max_output_tokens": 16, "stream": true})"},
      {"POST /tokenize", R"({"prompt": "hello"})"},
      {"POST /detokenize", R"({"tokens": [5, 6]})"},
  };
  return all;
}

// All that came is whole answers, but for a last one that may be cut; none says that the server erred.
void check_answers(std::string_view in) {
  while (!in.empty()) {
    if (in.size() < 12) break;
    ASSERT_EQ(in.substr(0, 7), "HTTP/1.") << in.substr(0, 300);
    const int status = std::atoi(std::string(in.substr(9, 3)).c_str());
    ASSERT_TRUE(status == 100 || status == 200 || status == 204 || (status >= 400 && status < 500) ||
                status == 501 || status == 505)
        << in.substr(0, 1000);
    const size_t end = in.find("\r\n\r\n");
    if (end == std::string_view::npos) break;
    const std::string_view head = in.substr(0, end + 2);
    in.remove_prefix(end + 4);
    const size_t length = head.find("Content-Length: ");
    if (length != std::string_view::npos) {
      const size_t size = std::strtoul(head.data() + length + 16, nullptr, 10);
      if (status >= 400 && in.size() >= size && size > 0) {
        boost::system::error_code ec;
        const boost::json::value body = boost::json::parse(in.substr(0, size), ec);
        ASSERT_FALSE(ec) << in.substr(0, size);
        ASSERT_TRUE(body.at("error").at("message").is_string()) << in.substr(0, size);
      }
      in.remove_prefix(std::min(size, in.size()));
    } else if (head.find("chunked") != std::string_view::npos) {
      const size_t last = in.find("0\r\n\r\n");
      in.remove_prefix(last == std::string_view::npos ? in.size() : last + 5);
    }
  }
}

class Hostile : public ::testing::Test {
 protected:
  Hostile()
      : served_(
            {.limits = {.default_max_tokens = 8, .max_tokens = 16, .max_texts = 4, .request_seconds = 15}}),
        http_(options(), [this](HttpRequest request, std::shared_ptr<Exchange> exchange) {
          served_.api().handle(std::move(request), std::move(exchange));
        }) {
    http_.start();
    expected_ = ask();
  }
  ~Hostile() override {
    http_.stop();
    const SchedulerView view = served_.scheduler().view();
    EXPECT_EQ(view.queued + view.paused, 0);
  }

  static HttpOptions options() {
    HttpOptions o = test_options();
    o.error_body = error_body;
    o.header_timeout = o.body_timeout = 1s;
    o.max_header_bytes = 8 << 10;
    o.max_body_bytes = 64 << 10;
    o.on_throw = [](std::string_view, std::string_view what) {
      ADD_FAILURE() << "a handler threw: " << what;
    };
    return o;
  }
  SocketClient client() { return SocketClient(http_.port()); }
  // The answer to a request that is as it should be, without what differs by request.
  std::string ask() {
    const SocketAnswer answer = client().ask(Sent{"POST /v1/chat/completions", kGood}.bytes());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return boost::json::serialize(boost::json::parse(answer.body).at("choices"));
  }
  void still_serves() { EXPECT_EQ(ask(), expected_); }

  Served served_;
  HttpServer http_;
  std::string expected_;
};

TEST_F(Hostile, EveryCutOfAValidRequest) {
  for (const Sent& sent : valid_requests()) {
    const std::string bytes = sent.bytes();
    for (size_t cut = 0; cut < bytes.size(); cut++) {
      SocketClient c = client();
      c.send(std::string_view(bytes).substr(0, cut));
      c.end_sending();
      // Nothing is answered that was not asked; a request is never taken for whole before it is.
      EXPECT_EQ(c.read_to_end(), "") << bytes.substr(0, cut);
    }
  }
  still_serves();
}

TEST_F(Hostile, PeersThatLeaveAnywhere) {
  Random random(1);
  for (int i = 0; i < 400; i++) {
    const Sent& sent = valid_requests()[below(random, valid_requests().size())];
    SocketClient c = client();
    c.send(sent.bytes());
    const size_t wanted = below(random, 1500);
    while (c.in().size() < wanted && below(random, 20) != 0 &&
           c.in().find("\r\n0\r\n\r\n") == std::string::npos) {
      try {
        if (!c.receive(5)) break;
      } catch (const std::runtime_error&) {  // a whole answer, and no more will come
        break;
      }
    }
    if (below(random, 2) == 0) c.reset();
  }
  still_serves();
  EXPECT_TRUE([&] {
    for (int i = 0; i < 2000; i++) {
      const SchedulerView view = served_.scheduler().view();
      if (view.running + view.queued + view.paused == 0) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }());
}

TEST_F(Hostile, Garbage) {
  Random random(2);
  const std::vector<std::string> begins = {
      "", "GET ", "POST /v1/completions HTTP/1.1\r\n",
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"};
  for (int i = 0; i < 600; i++) {
    std::string bytes = begins[below(random, begins.size())];
    const size_t n = below(random, 3000);
    for (size_t k = 0; k < n; k++) bytes += static_cast<char>(random());
    SocketClient c = client();
    c.send(bytes);
    c.end_sending();
    check_answers(c.read_to_end());
    if (HasFatalFailure()) return;
  }
  still_serves();
}

std::string mutated(std::string text, Random& random) {
  static const std::vector<std::string> kParts = {
      "\"",
      "{",
      "}",
      "[",
      "]",
      ",",
      ":",
      "null",
      "true",
      "-1",
      "1e999",
      "99999999999999999999",
      "0.5",
      "\\ud800",
      "\\u0000",
      "\\",
      "\xff",
      "\xed\xa0\x80",
      std::string(1, '\0'),
      "\r\n",
      "\r\n\r\n",
      "Content-Length: 5\r\n",
      "Transfer-Encoding: chunked\r\n",
      "%",
      "<|im_end|>",
      "<bos>",
      "{{",
      "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["};
  const size_t changes = 1 + below(random, 4);
  for (size_t i = 0; i < changes; i++) {
    const size_t at = below(random, text.size() + 1), n = below(random, 20);
    switch (below(random, 5)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      case 1: text.erase(at, n); break;
      case 2: text.insert(at, text.substr(below(random, text.size() + 1), n)); break;
      case 3: text.insert(at, kParts[below(random, kParts.size())]); break;
      case 4: {  // a number, or the start of a word, becomes something else
        const size_t digit = text.find_first_of("0123456789\"", at);
        if (digit != std::string::npos) text.replace(digit, 1, kParts[below(random, kParts.size())]);
        break;
      }
    }
  }
  return text;
}

TEST_F(Hostile, TwoThousandMutations) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; t++)
    threads.emplace_back([this, t] {
      Random random(100 + t);
      for (int i = 0; i < 500 && !HasFatalFailure(); i++) {
        Sent sent = valid_requests()[below(random, valid_requests().size())];
        SocketClient c = client();
        std::string bytes;
        if (!sent.body.empty() && below(random, 3) != 0) {
          sent.body = mutated(sent.body, random);  // arrives whole: what the API makes of it
          bytes = sent.bytes("Connection: close\r\n");
          c.send(bytes);
        } else {
          bytes = mutated(sent.bytes(), random);
          c.send(bytes);
          c.end_sending();
        }
        SCOPED_TRACE(bytes);
        check_answers(c.read_to_end());
      }
    });
  for (std::thread& thread : threads) thread.join();
  still_serves();
}

TEST_F(Hostile, JsonThatHurtsParsers) {
  const std::string deep(30'000, '['), objects = [] {
    std::string text;
    for (int i = 0; i < 5000; i++) text += "{\"a\":";
    return text;
  }();
  const auto message = [](const std::string& content) {
    return R"({"messages": [{"role": "user", "content": )" + content + "}]}";
  };
  for (
      const std::string& body :
      {deep, objects, std::string(), std::string("null"), std::string("[]"), std::string("\"a\""),
       message("\"\xff\""), message(R"("\ud800")"), message(R"("\udc00\ud800")"), message("1e400"),
       message(deep), message("\"a\"") + "x", message("\"a"), message("\"a\nb\""),
       std::string(R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1e30})"),
       std::string(
           R"({"messages": [{"role": "user", "content": "a"}], "temperature": 123456789012345678901234567890e400})"),
       std::string(R"({"messages": [{"role": "user", "content": "a"}], "seed": -99999999999999999999999})"),
       std::string(R"({"messages": [{"role": "user", "content": "a"}], "messages": []})")}) {
    const SocketAnswer a = client().ask(Sent{"POST /v1/chat/completions", body}.bytes());
    EXPECT_EQ(a.status, 400) << body.substr(0, 100) << "\n" << a.body;
    EXPECT_NE(a.body.find("invalid_request_error"), std::string::npos) << a.body;
  }
  still_serves();
}

TEST_F(Hostile, SlowOnesEndWhileOthersAreServed) {
  std::vector<SocketClient> slow;
  for (int i = 0; i < 40; i++) {
    slow.push_back(client());
    slow.back().send(
        i % 2 ? "POST /v1/completions HTTP/1.1\r\nHost: loc"
              : "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  }
  still_serves();
  for (SocketClient& c : slow) EXPECT_EQ(c.read_answer().status, 408);
  still_serves();
}

}  // namespace
}  // namespace lapidary::serve::test
