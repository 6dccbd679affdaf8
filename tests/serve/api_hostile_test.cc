// Bodies that nobody should send: each gets an answer in OpenAI's shape, and the next request is as good as
// ever.
#include <gtest/gtest.h>

#include <random>

#include "serve/served.h"

namespace lapidary::serve::test {
namespace {

const char* const kSeeds[] = {
    R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":4,"temperature":0.5,"seed":1,"logprobs":true,"top_logprobs":2})",
    R"({"messages":[{"role":"system","content":[{"type":"text","text":"a"}]},{"role":"user","content":"b"},{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"c","content":"x"}],"max_tokens":2})",
    R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":4,"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}}],"tool_choice":"required"})",
    R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":4,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object","properties":{"a":{"enum":[1,"b"]}}}}}})",
    R"({"prompt":["a","b"],"max_tokens":2,"logit_bias":{"40":-5},"stop":["x","yz"],"echo":true,"logprobs":1,"n":2})",
    R"({"prompt":[[5,6,7],[8]],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}})"};

class ApiHostile : public testing::Test {
 protected:
  // Whatever came: an answer of ours. Its status.
  int probe(const std::string& path, const std::string& body) {
    const auto exchange = served_.send("POST", path, body);
    EXPECT_TRUE(exchange->wait()) << body;
    const HttpAnswer got = exchange->got();
    if (exchange->streaming()) {
      EXPECT_TRUE(Served::read_stream(*exchange).done) << body;
      return 200;
    }
    EXPECT_TRUE(got.status == 200 || got.status == 400 || got.status == 404) << got.status << got.body << "\n"
                                                                             << body;
    const json::value answer = json::parse(got.body);
    EXPECT_TRUE(got.status == 200 || answer.at("error").at("message").is_string()) << got.body;
    return got.status;
  }
  void expect_well() { EXPECT_EQ(probe(kTextPath, R"({"prompt":"hello","max_tokens":3})"), 200); }
  Served served_;
};

TEST_F(ApiHostile, DamagedBodies) {
  std::mt19937 random(7);
  const auto any = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  constexpr std::string_view kPieces[] = {"\"",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          ":",
                                          ",",
                                          "null",
                                          "true",
                                          "-1",
                                          "1e308",
                                          "1e309",
                                          "\\u",
                                          "\\ud800",
                                          "\xff",
                                          "\xc3",
                                          "99999999999999999999",
                                          "\"model\":",
                                          "0.5",
                                          "\n"};
  int sound = 0;
  for (int round = 0; round < 600; ++round) {
    const size_t seed = any(std::size(kSeeds));
    std::string body = kSeeds[seed];
    for (size_t edits = 1 + any(3); edits > 0; --edits) {
      const size_t at = any(body.size());
      switch (any(4)) {
        case 0: body.erase(at, 1 + any(4)); break;
        case 1: body.insert(at, kPieces[any(std::size(kPieces))]); break;
        case 2: body[at] = static_cast<char>(any(256)); break;
        case 3: body.insert(at, body.substr(any(body.size()), any(20))); break;
      }
      if (body.empty()) body = "{";
    }
    const char* path = any(8) == 0 ? kTextPath : seed < 4 ? kChatPath : kTextPath;
    sound += probe(path, body) == 200 ? 1 : 0;
  }
  EXPECT_GT(sound, 20) << "some damage is none";
  expect_well();
}

TEST_F(ApiHostile, DeepWideAndLong) {
  const auto nested = [](const std::string& open, const std::string& close, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += open;
    out += "1";
    for (int i = 0; i < n; ++i) out += close;
    return out;
  };
  for (const int depth : {60, 70, 100'000}) {
    EXPECT_EQ(probe(kTextPath, "{\"prompt\":" + nested("[", "]", depth) + "}"), 400);
    EXPECT_EQ(probe(kChatPath, R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":)" +
                                   nested("{\"a\":", "}", depth) + "}"),
              depth == 60 ? 200 : 400);
  }
  const std::string schema = nested(R"({"type":"array","items":)", "}", 50);
  probe(
      kChatPath,
      R"({"messages":[{"role":"user","content":"a"}],"max_tokens":1,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":)" +
          schema + "}}}");
  std::string keys = "{\"prompt\":\"a\"";
  for (int i = 0; i < 20'000; ++i) keys += ",\"k" + std::to_string(i) + "\":1";
  EXPECT_EQ(probe(kTextPath, keys + "}"), 400);
  std::string messages = R"({"messages":[)";
  for (int i = 0; i < 5000; ++i)
    messages += std::string(i > 0 ? "," : "") + R"({"role":"user","content":""})";
  EXPECT_EQ(probe(kChatPath, messages + "]}"), 400);
  EXPECT_EQ(probe(kTextPath, "{\"prompt\":\"" + std::string(4 << 20, 'a') + "\"}"), 400);
  EXPECT_EQ(
      probe(kChatPath, R"({"messages":[{"role":"user","content":")" + std::string(4 << 20, 'a') + "\"}]}"),
      400);
  EXPECT_EQ(probe(kTextPath, "{\"prompt\":\"a\",\"" + std::string(1 << 20, 'k') + "\":1}"), 400);
  EXPECT_EQ(probe(kChatPath, R"({"messages":[{"role":"user","content":"a"}],"regex":"(a{1000}){1000}"})"),
            400);
  expect_well();
}

TEST_F(ApiHostile, TemplatesThatNeverEnd) {
  Served endless(
      {.chat_template = "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}"});
  endless.refused(kChatPath, R"({"messages":[{"role":"user","content":"a"}]})", 400, "messages", "");
  Served deep({.chat_template = "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}"});
  deep.refused(kChatPath, R"({"messages":[{"role":"user","content":"a"}]})", 400, "messages", "");
}

}  // namespace
}  // namespace lapidary::serve::test
