// POST /v1/responses: what becomes a chat, what comes back, and how it is streamed.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "serve/asked.h"

namespace lapidary::serve::test {
namespace {

const char* const kPath = "/v1/responses";

Asking& asking() {
  static Asking one;
  return one;
}
json::object respond(json::object body) {
  return asking().good("POST", kPath, body).as_object();
}
void expect_refused(const json::object& body, const std::string& code, const std::string& param) {
  asking().refused(kPath, body, code, param);
}

struct Event {
  std::string name;  // of the line "event: "
  json::object data;
};
std::vector<Event> streamed(json::object body) {
  body["stream"] = true;
  const auto exchange = asking().served.send("POST", kPath, json::serialize(body));
  EXPECT_TRUE(exchange->wait());
  EXPECT_TRUE(exchange->streaming()) << exchange->got().body;
  std::string all;
  for (const std::string& piece : exchange->pieces()) all += piece;
  std::vector<Event> events;
  while (!all.empty()) {
    const size_t line = all.find('\n'), end = all.find("\n\n");
    if (!all.starts_with("event: ") || end == std::string::npos || all.compare(line + 1, 6, "data: ") != 0) {
      ADD_FAILURE() << all.substr(0, 200);
      break;
    }
    events.push_back(
        {all.substr(7, line - 7), json::parse(all.substr(line + 7, end - line - 7)).as_object()});
    all.erase(0, end + 2);
  }
  return events;
}

// The parts of a response that do not differ from one request to the next.
json::object lasting(json::object response) {
  for (const char* name : {"id", "created_at"}) response.erase(name);
  for (json::value& item : response.at("output").as_array()) {
    item.as_object().erase("id");
    if (item.as_object().contains("call_id")) item.as_object().erase("call_id");
  }
  if (response.at("usage").is_object()) response.at("usage").as_object().erase("input_tokens_details");
  return response;
}

std::string text_of(const json::object& response) {
  std::string out;
  for (const json::value& item : response.at("output").as_array()) {
    if (item.at("type") != "message") continue;
    for (const json::value& part : item.at("content").as_array()) out += part.at("text").as_string();
  }
  return out;
}

json::object user(std::string_view text) {
  return {{"role", "user"}, {"content", text}};
}
const json::array kTools{json::object{{"type", "function"},
                                      {"name", "look"},
                                      {"description", "Looks"},
                                      {"parameters", {{"type", "object"}, {"properties", json::object()}}}}};

TEST(Responses, TheTextIsThatOfTheChatThatMeansTheSame) {
  const json::object mine = respond({{"input", "tell"},
                                     {"instructions", "be brief"},
                                     {"max_output_tokens", 12},
                                     {"temperature", 1},
                                     {"seed", 7}});
  const json::array messages{json::object{{"role", "system"}, {"content", "be brief"}}, user("tell")};
  const json::value chat =
      asking()
          .post("/v1/chat/completions",
                {{"messages", messages}, {"max_tokens", 12}, {"temperature", 1}, {"seed", 7}})
          .body();
  const json::value& message = chat.at("choices").at(0).at("message");
  EXPECT_EQ(text_of(mine), std::string(message.at("content").as_string()));
  EXPECT_EQ(mine.at("usage").at("input_tokens"), chat.at("usage").at("prompt_tokens"));
  EXPECT_EQ(mine.at("usage").at("output_tokens"), chat.at("usage").at("completion_tokens"));
  EXPECT_EQ(mine.at("instructions"), json::value("be brief"));
  EXPECT_EQ(mine.at("seed"), json::value(7));
}

TEST(Responses, ATextThatReachesItsLimitIsIncomplete) {
  const json::object cut = respond({{"input", "tell"}, {"max_output_tokens", 3}});
  EXPECT_EQ(cut.at("status").as_string(), "incomplete");
  EXPECT_EQ(cut.at("incomplete_details").at("reason").as_string(), "max_output_tokens");
  EXPECT_EQ(cut.at("usage").at("output_tokens"), json::value(3));
}

TEST(Responses, TheStreamAddsUpToTheAnswer) {
  for (const int64_t seed : {1, 2, 3, 4}) {
    const json::object body{{"input", "tell"},
                            {"max_output_tokens", 24},
                            {"temperature", 1.5},
                            {"seed", seed},
                            {"include", json::array{"message.output_text.logprobs"}},
                            {"top_logprobs", 2}};
    const json::object whole = respond(body);
    const std::vector<Event> events = streamed(body);
    ASSERT_GE(events.size(), 6u);
    EXPECT_EQ(events[0].name, "response.created");
    EXPECT_EQ(events[1].name, "response.in_progress");
    EXPECT_TRUE(events[0].data.at("response").at("output").as_array().empty());
    std::string text;
    int64_t number = 0;
    for (const Event& event : events) {
      EXPECT_EQ(event.data.at("type").as_string(), event.name);
      EXPECT_EQ(event.data.at("sequence_number"), json::value(number++));
      if (event.name == "response.output_text.delta") text += event.data.at("delta").as_string();
    }
    EXPECT_EQ(text, text_of(whole));
    EXPECT_EQ(events.back().name, "response." + std::string(whole.at("status").as_string()));
    EXPECT_EQ(lasting(events.back().data.at("response").as_object()), lasting(whole));
  }
}

TEST(Responses, LogprobsComeWithTheTokensOfTheText) {
  const json::object with = respond({{"input", "tell"},
                                     {"max_output_tokens", 6},
                                     {"include", json::array{"message.output_text.logprobs"}},
                                     {"top_logprobs", 3}});
  size_t tokens = 0;
  for (const json::value& item : with.at("output").as_array()) {
    if (item.at("type") != "message") continue;
    for (const json::value& token : item.at("content").at(0).at("logprobs").as_array()) {
      EXPECT_EQ(token.at("top_logprobs").as_array().size(), 3u);
      ++tokens;
    }
  }
  EXPECT_GT(tokens, 0u);
  const json::object without = respond({{"input", "tell"}, {"max_output_tokens", 6}});
  EXPECT_EQ(text_of(without), text_of(with));
}

TEST(Responses, ASchemaBindsTheText) {
  const json::object body{{"input", "tell"},
                          {"max_output_tokens", 100},
                          {"text",
                           {{"format",
                             {{"type", "json_schema"},
                              {"name", "answer"},
                              {"strict", true},
                              {"schema",
                               {{"type", "object"},
                                {"properties", {{"yes", {{"type", "boolean"}}}}},
                                {"required", json::array{"yes"}},
                                {"additionalProperties", false}}}}}}}};
  const json::object got = respond(body);
  EXPECT_EQ(got.at("status").as_string(), "completed");
  EXPECT_TRUE(json::parse(text_of(got)).at("yes").is_bool()) << text_of(got);
  EXPECT_EQ(got.at("text").at("format"), body.at("text").at("format"));
}

TEST(Responses, ARequiredCallIsAnItemAndGoesBackAsOne) {
  const json::object wish{{std::to_string(kCall), 100},
                          {std::to_string(kFirstByte + '}'), 95},
                          {std::to_string(kCallEnd), 90},
                          {std::to_string(kEos), -100}};
  const json::object body{{"input", "tell"},    {"tools", kTools},          {"tool_choice", "required"},
                          {"logit_bias", wish}, {"max_output_tokens", 200}, {"parallel_tool_calls", false},
                          {"seed", 1}};
  const json::object got = respond(body);
  const json::array& output = got.at("output").as_array();
  ASSERT_FALSE(output.empty());
  const json::value& call = output.back();
  ASSERT_EQ(call.at("type").as_string(), "function_call") << json::serialize(got);
  EXPECT_EQ(call.at("name").as_string(), "look");
  EXPECT_TRUE(json::parse(call.at("arguments").as_string()).is_object());
  EXPECT_EQ(got.at("tools"), json::value(kTools));
  EXPECT_EQ(got.at("tool_choice"), json::value("required"));

  std::vector<std::string> names;
  const std::vector<Event> events = streamed(body);
  for (const Event& event : events) names.push_back(event.name);
  ASSERT_GE(names.size(), 5u);
  const std::vector<std::string> tail(names.end() - 5, names.end());
  EXPECT_EQ(tail,
            (std::vector<std::string>{"response.output_item.added", "response.function_call_arguments.delta",
                                      "response.function_call_arguments.done", "response.output_item.done",
                                      "response.completed"}));
  EXPECT_EQ(lasting(events.back().data.at("response").as_object()), lasting(got));

  // The conversation goes on with everything that was said, as it came.
  json::array input{user("tell")};
  for (const json::value& item : output) input.push_back(item);
  input.push_back(json::object{
      {"type", "function_call_output"}, {"call_id", call.at("call_id")}, {"output", "it is blue"}});
  const json::object next = respond({{"input", input}, {"tools", kTools}, {"max_output_tokens", 4}});
  EXPECT_GT(next.at("usage").at("input_tokens").to_number<int64_t>(),
            got.at("usage").at("input_tokens").to_number<int64_t>());
}

TEST(Responses, ItemsOfOneTurnAreOneMessageOfTheChat) {
  const json::array input{
      user("one"),
      json::object{{"type", "reasoning"},
                   {"id", "rs_1"},
                   {"summary", json::array()},
                   {"content", json::array{json::object{{"type", "reasoning_text"}, {"text", "hm"}}}}},
      json::object{{"type", "message"},
                   {"id", "msg_1"},
                   {"status", "completed"},
                   {"role", "assistant"},
                   {"content", json::array{json::object{{"type", "output_text"},
                                                        {"text", "two"},
                                                        {"annotations", json::array()},
                                                        {"logprobs", json::array()}}}}},
      json::object{{"role", "user"},
                   {"content", json::array{json::object{{"type", "input_text"}, {"text", "three"}}}}}};
  const json::array messages{
      user("one"), json::object{{"role", "assistant"}, {"content", "two"}, {"reasoning_content", "hm"}},
      user("three")};
  const json::object mine = respond({{"input", input}, {"max_output_tokens", 2}});
  EXPECT_EQ(mine.at("usage").at("input_tokens"),
            asking().good("POST", "/apply-template", {{"messages", messages}}).at("count"));
}

TEST(Responses, WhatTheRequestSaidComesBack) {
  const json::object got = respond({{"input", "a"},
                                    {"max_output_tokens", 1},
                                    {"metadata", {{"who", "me"}}},
                                    {"temperature", 0.5},
                                    {"top_p", 0.25},
                                    {"store", false},
                                    {"truncation", "disabled"},
                                    {"parallel_tool_calls", false}});
  EXPECT_EQ(got.at("metadata").at("who").as_string(), "me");
  EXPECT_EQ(got.at("temperature").to_number<double>(), 0.5);
  EXPECT_EQ(got.at("top_p").to_number<double>(), 0.25);
  EXPECT_EQ(got.at("parallel_tool_calls"), json::value(false));
  EXPECT_EQ(got.at("max_output_tokens"), json::value(1));
  EXPECT_EQ(got.at("tool_choice"), json::value("auto"));
}

TEST(Responses, WhatNeedsAStoreIsRefusedByName) {
  expect_refused({{"input", "a"}, {"store", true}}, "unsupported_value", "store");
  expect_refused({{"input", "a"}, {"background", true}}, "unsupported_value", "background");
  expect_refused({{"input", "a"}, {"previous_response_id", "resp_1"}}, "unsupported_field",
                 "previous_response_id");
  expect_refused({{"input", "a"}, {"conversation", "c"}}, "unsupported_field", "conversation");
  expect_refused({{"input", "a"}, {"truncation", "auto"}}, "invalid_value", "truncation");
  expect_refused({{"input", "a"}, {"include", json::array{"file_search_call.results"}}}, "unsupported_value",
                 "include[0]");
}

TEST(Responses, RefusalsUseTheNamesOfTheRequest) {
  const auto item = [](json::object one) {
    return json::object{{"input", json::array{user("a"), std::move(one)}}};
  };
  expect_refused({}, "missing_field", "input");
  expect_refused({{"input", json::array()}}, "empty_input", "input");
  expect_refused({{"input", "a"}, {"max_outputtokens", 3}}, "unknown_field", "max_outputtokens");
  expect_refused({{"input", "a"}, {"max_output_tokens", 0}}, "out_of_range", "max_output_tokens");
  expect_refused({{"input", "a"}, {"max_output_tokens", 5000}}, "context_length_exceeded", "input");
  expect_refused({{"input", "a"}, {"temperature", -1}}, "out_of_range", "temperature");
  expect_refused({{"input", "a"}, {"reasoning", {{"effort", "huge"}}}}, "invalid_value", "reasoning.effort");
  expect_refused({{"input", "a"}, {"reasoning", {{"efort", "low"}}}}, "unknown_field", "reasoning.efort");
  expect_refused({{"input", "a"}, {"tools", json::array{json::object{{"type", "web_search"}}}}},
                 "unsupported_value", "tools[0].type");
  expect_refused(
      {{"input", "a"}, {"tools", json::array{json::object{{"type", "function"}, {"name", "a b"}}}}},
      "invalid_value", "tools[0].name");
  expect_refused({{"input", "a"}, {"tools", kTools}, {"tool_choice", {{"type", "function"}, {"name", "no"}}}},
                 "invalid_value", "tool_choice.name");
  expect_refused({{"input", "a"}, {"text", {{"format", {{"type", "xml"}}}}}}, "invalid_value",
                 "text.format.type");
  expect_refused(
      {{"input", "a"},
       {"text", {{"format", {{"type", "json_schema"}, {"name", "x"}, {"schema", {{"type", "pink"}}}}}}}},
      "invalid_schema", "text.format.schema");
  expect_refused(item({{"type", "item_reference"}, {"id", "msg_1"}}), "invalid_value", "input[1].type");
  expect_refused(item({{"role", "oracle"}, {"content", "b"}}), "invalid_value", "input[1].role");
  expect_refused(item({{"role", "user"}}), "missing_field", "input[1].content");
  expect_refused(item({{"role", "user"}, {"content", json::array{json::object{{"type", "input_image"}}}}}),
                 "unsupported_value", "input[1].content[0].type");
  expect_refused(item({{"type", "function_call_output"}, {"call_id", "c"}, {"output", "x"}}), "invalid_value",
                 "input[1].call_id");
  expect_refused(item({{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{"}}),
                 "invalid_value", "input[1].arguments");
  expect_refused(item({{"role", "user"}, {"content", "b"}, {"nmae", "x"}}), "unknown_field", "input[1].nmae");
}

TEST(Responses, AReaderThatGoesFreesThePages) {
  const auto good =
      asking().served.send("POST", kPath, R"({"input":"tell","stream":true,"max_output_tokens":400})");
  EXPECT_TRUE(good->wait_pieces(3));
  good->leave();
  for (int i = 0; i < 1000 && asking().served.scheduler().view().running > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(asking().served.scheduler().view().running, 0);
}

TEST(Responses, AFailureAfterTheFirstByteEndsTheStreamWithResponseFailed) {
  Asking doomed;
  // Its reader takes nothing, so that the text waits after its first token until the server goes down.
  const auto exchange = std::make_shared<FakeExchange>();
  exchange->block(Exchange::kSlowReader + 1);
  doomed.served.send("POST", kPath, R"({"input":"tell","stream":true,"max_output_tokens":400})", exchange);
  ASSERT_TRUE(exchange->wait_pieces(2));
  EXPECT_FALSE(doomed.served.scheduler().drain(Clock::now()));
  ASSERT_TRUE(exchange->wait());
  const std::string last = exchange->pieces().back();
  ASSERT_TRUE(last.starts_with("event: response.failed\n")) << last;
  const json::value event = json::parse(last.substr(last.find("data: ") + 6));
  EXPECT_EQ(event.at("response").at("status").as_string(), "failed");
  EXPECT_EQ(event.at("response").at("error").at("code").as_string(), "shutting_down");
}

}  // namespace
}  // namespace lapidary::serve::test
