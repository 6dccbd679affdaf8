// `lapidary serve` as it is run: flags, start, keys, log, signals, the end.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <csignal>
#include <sstream>

#include "support/golden.h"
#include "support/running_server.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

const std::string kModel = data_path("gguf/models/gemma4-e2b-tiny-F32.gguf").string();
// Takes seconds for a long answer: wide, and by plain loops.
const std::string kSlowModel = data_path("gguf/models/gemma4-e2b-wide-Q8_0.gguf").string();
constexpr const char* kTemplate = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[model]";
constexpr const char *kKey = "secret-0123456789abcdef", *kOther = "other-0123456789abcdef";

class ServeProgram : public testing::Test {
 protected:
  ServeProgram() { program_.folder().write("t.jinja", std::string_view(kTemplate)); }
  static std::string completion(const std::string& prompt, int tokens, const std::string& more = "") {
    return R"({"model":"m","prompt":")" + prompt + R"(","max_tokens":)" + std::to_string(tokens) +
           R"(,"temperature":0)" + more + "}";
  }
  Program program_;
};

std::vector<json::object> log_lines(const std::string& log, std::string_view event) {
  std::vector<json::object> lines;
  std::istringstream stream(log);
  for (std::string line; std::getline(stream, line);) {
    boost::system::error_code problem;
    const json::value value = json::parse(line, problem);
    EXPECT_TRUE(!problem && value.is_object()) << line;
    if (!problem && value.is_object() && value.get_object().at("event").as_string() == event)
      lines.push_back(value.get_object());
  }
  return lines;
}

TEST_F(ServeProgram, SaysWhereItIsAndAnswersAndStops) {
  RunningServer server(program_, {kModel, "--name", "m", "--chat-template", "t.jinja"});
  EXPECT_EQ(server.ready().at("event").as_string(), "ready");
  EXPECT_EQ(server.ready().at("model").as_string(), "m");
  EXPECT_EQ(server.ready().at("pid").as_int64(), server.process());
  EXPECT_EQ(server.request("GET", "/health").status, 200);
  EXPECT_EQ(server.request("GET", "/ready").status, 200);
  EXPECT_EQ(server.request("GET", "/v1/models").json().at("data").as_array()[0].at("id").as_string(), "m");
  const HttpResult raw = server.request("POST", "/v1/completions", completion("the end", 4));
  EXPECT_EQ(raw.status, 200) << raw.body;
  const HttpResult chat = server.request(
      "POST", "/v1/chat/completions",
      R"({"model":"m","messages":[{"role":"user","content":"the secret prompt"}],"max_tokens":4})");
  EXPECT_EQ(chat.status, 200) << chat.body;
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait_for_exit(), 0);
  const std::string log = server.log();
  EXPECT_EQ(log_lines(log, "memory").size(), 1u) << log;
  EXPECT_EQ(log_lines(log, "ready").size(), 1u);
  EXPECT_EQ(log_lines(log, "stopped").size(), 1u);
  bool seen = false;
  for (const json::object& line : log_lines(log, "request")) {
    if (line.at("endpoint").as_string() != "/v1/completions") continue;
    seen = true;
    EXPECT_EQ(line.at("status").as_int64(), 200);
    EXPECT_EQ(line.at("generated_tokens").as_int64(), 4);
  }
  EXPECT_TRUE(seen) << log;
  EXPECT_EQ(log.find("secret prompt"), std::string::npos) << log;
  EXPECT_EQ(log.find('\x1b'), std::string::npos);
}

TEST_F(ServeProgram, AModelWithoutATemplateRefusesChatByName) {
  RunningServer server(program_, {kModel, "--name", "m"});
  EXPECT_FALSE(server.ready().at("chat").as_bool());
  const HttpResult chat = server.request("POST", "/v1/chat/completions",
                                         R"({"model":"m","messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(chat.status, 400);
  EXPECT_EQ(chat.json().at("error").at("code").as_string(), "no_chat_template") << chat.body;
}

TEST_F(ServeProgram, KeysAreAskedForAndReadAgain) {
  const auto path = program_.folder().write("keys.txt", std::string_view(std::string("alice ") + kKey));
  RunningServer server(program_, {kModel, "--name", "m", "--api-keys", "keys.txt"});
  const std::string key = std::string("Authorization: Bearer ") + kKey;
  const std::string other = std::string("Authorization: Bearer ") + kOther;
  EXPECT_EQ(server.request("GET", "/health").status, 200);
  const HttpResult refused = server.request("GET", "/v1/models");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.json().at("error").at("type").as_string(), "authentication_error") << refused.body;
  EXPECT_EQ(server.request("GET", "/v1/models", "", {other}).status, 401);
  EXPECT_EQ(server.request("GET", "/v1/models", "", {key}).status, 200);

  program_.folder().write("keys.txt", std::string_view(std::string("# new\nbob ") + kOther));
  server.signal(SIGHUP);
  server.wait_for_log("API keys were read");
  EXPECT_EQ(server.request("GET", "/v1/models", "", {key}).status, 401);
  EXPECT_EQ(server.request("GET", "/v1/models", "", {other}).status, 200);

  program_.folder().write("keys.txt", std::string_view("nonsense"));
  server.signal(SIGHUP);
  server.wait_for_log("stay as they were");
  EXPECT_EQ(server.request("GET", "/v1/models", "", {other}).status, 200);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait_for_exit(), 0);
  EXPECT_NE(server.log().find(R"("client":"bob")"), std::string::npos) << server.log();
  for (const char* secret : {kKey, kOther}) EXPECT_EQ(server.log().find(secret), std::string::npos);
}

TEST_F(ServeProgram, ARunningRequestIsDrained) {
  RunningServer server(program_, {kSlowModel, "--name", "m"}, {{"LAPIDARY_ISA", "scalar"}});
  const int socket =
      server.open_request("POST", "/v1/completions", completion("the", 12, R"(,"stream":true)"));
  ASSERT_GE(socket, 0);
  std::string text;
  char buffer[4096];
  while (text.find("data: ") == std::string::npos) {  // it runs
    const ssize_t n = recv(socket, buffer, sizeof buffer, 0);
    ASSERT_GT(n, 0) << text;
    text.append(buffer, static_cast<size_t>(n));
  }
  server.signal(SIGTERM);
  server.wait_for_log("\"draining\"");
  EXPECT_EQ(server.request("GET", "/health").status, 0);  // nobody listens any more
  for (ssize_t n; (n = recv(socket, buffer, sizeof buffer, 0)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(socket);
  EXPECT_NE(text.find("data: [DONE]"), std::string::npos) << text;
  EXPECT_EQ(server.wait_for_exit(), 0);
}

TEST_F(ServeProgram, TheDrainHasAnEnd) {
  RunningServer server(program_, {kSlowModel, "--name", "m", "--drain-seconds", "0.2"},
                       {{"LAPIDARY_ISA", "scalar"}});
  const int socket =
      server.open_request("POST", "/v1/completions", completion("the", 400, R"(,"stream":true)"));
  char buffer[4096];
  ASSERT_GT(recv(socket, buffer, sizeof buffer, 0), 0);
  server.signal(SIGINT);
  EXPECT_EQ(server.wait_for_exit(), 0);
  close(socket);
}

TEST_F(ServeProgram, ASecondSignalEndsAtOnce) {
  RunningServer server(program_, {kSlowModel, "--name", "m", "--drain-seconds", "600"},
                       {{"LAPIDARY_ISA", "scalar"}});
  const int socket =
      server.open_request("POST", "/v1/completions", completion("the", 400, R"(,"stream":true)"));
  char buffer[4096];
  ASSERT_GT(recv(socket, buffer, sizeof buffer, 0), 0);
  server.signal(SIGTERM);
  server.wait_for_log("\"draining\"");
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait_for_exit(), 130);
  close(socket);
}

TEST_F(ServeProgram, TheCacheOutlivesTheServer) {
  const std::vector<std::string> arguments{kModel, "--name", "m", "--kv-dir", "kv"};
  std::string prompt;
  for (int i = 0; i < 40; ++i) prompt += "the end of it ";
  json::object first, second;
  {
    RunningServer server(program_, arguments);
    first = server.request("POST", "/v1/completions", completion(prompt, 8)).json();
    const Outcome other = program_.run({"serve", kModel, "--port", "0", "--kv-dir", "kv"});
    expect_refusal(other, 2, "kv");  // one server at a time
    server.signal(SIGTERM);
    EXPECT_EQ(server.wait_for_exit(), 0);
  }
  RunningServer server(program_, arguments);
  second = server.request("POST", "/v1/completions", completion(prompt, 8)).json();
  EXPECT_EQ(first.at("choices").as_array()[0].at("text"), second.at("choices").as_array()[0].at("text"));
  const json::object& usage = second.at("usage").as_object();
  EXPECT_GT(usage.at("prompt_tokens_details").at("cached_tokens").as_int64(),
            usage.at("prompt_tokens").as_int64() / 2);
}

TEST_F(ServeProgram, WhatCannotBeIsRefusedAtOnce) {
  const auto serve = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"serve", kModel});
    return program_.run(arguments);
  };
  expect_refusal(serve({"--port", "70000"}), 2, "--port");
  expect_refusal(serve({"--kv-byte", "1GiB"}), 2, "did you mean --kv-bytes?");
  expect_refusal(serve({"--kv-bytes", "1G"}), 2, "--kv-bytes");
  expect_refusal(serve({"--kv-bytes", "900TiB"}), 1, "are missing");
  expect_refusal(serve({"--max-body", "0B"}), 2, "--max-body");
  expect_refusal(serve({"--log-format", "xml"}), 2, "--log-format");
  expect_refusal(serve({"--context", "99999999"}), 2, "--context");
  expect_refusal(serve({"--api-keys", "none.txt"}), 1, "none.txt");
  expect_refusal(serve({"--chat-template", "none.jinja"}), 1, "none.jinja");
  expect_refusal(serve({"--parallel", "300"}), 2, "--chunk 256");
  program_.folder().write("bad.txt", std::string_view("one"));
  expect_refusal(serve({"--api-keys", "bad.txt"}), 1, "line 1");
  expect_refusal(program_.run({"serve", "no-such-model"}), 1, "no-such-model");
}

TEST_F(ServeProgram, AnAddressThatIsNotOursIsNamed) {
  const Outcome outcome = program_.run({"serve", kModel, "--host", "192.0.2.1", "--port", "0"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("lapidary: error: "), std::string::npos);
  EXPECT_NE(outcome.err.find("192.0.2.1"), std::string::npos) << outcome.err;
}

TEST_F(ServeProgram, APortThatIsTakenIsNamed) {
  RunningServer server(program_, {kModel});
  const std::string port = std::to_string(server.port());
  const Outcome second = program_.run({"serve", kModel, "--port", port});
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_NE(second.err.find(port), std::string::npos) << second.err;
}

TEST_F(ServeProgram, StandardErrorThatNobodyReadsHoldsUpNothing) {
  RunningServer server(program_, {kModel, "--name", "m"});
  for (int i = 0; i < 600; ++i) {  // some hundred bytes of log each: more than a pipe holds
    ASSERT_EQ(server.request("GET", "/v1/models").status, 200);
  }
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait_for_exit(), 0);
}

}  // namespace
}  // namespace lapidary::test
