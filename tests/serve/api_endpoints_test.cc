// The endpoints beside chat and completions, on a golden model.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "serve/api/base64.h"
#include "serve/asked.h"

namespace lapidary::serve::test {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

Asking& asking() {
  static Asking one({.chat_template = kTemplate});
  return one;
}
json::value get(const std::string& path, const std::string& route = "") {
  return asking().good("GET", path, nullptr, route);
}
json::value post(const std::string& path, const json::value& body) {
  return asking().good("POST", path, body);
}

struct Refusal {
  std::string path;
  json::object body;
  std::string code, param;
};
void expect_refused(const Refusal& refusal, int status = 400) {
  asking().refused(refusal.path, refusal.body, refusal.code, refusal.param, status);
}
const ServedModel& model() {
  return asking().served.model();
}

std::vector<int64_t> ints(const json::value& array) {
  std::vector<int64_t> out;
  for (const json::value& item : array.as_array()) out.push_back(item.to_number<int64_t>());
  return out;
}

// --- the model and the state of the server

TEST(Endpoints, ModelsListsTheOneThatIsServed) {
  const json::value list = get("/v1/models");
  const json::value& one = list.at("data").at(0);
  EXPECT_EQ(one.at("id").as_string(), model().name);
  EXPECT_EQ(one.at("max_model_len").to_number<int64_t>(), model().context);
  EXPECT_EQ(one.at("numeric_mode").as_string(), model().numeric_mode);
  EXPECT_EQ(one.at("defaults").at("max_tokens"), ApiLimits().default_max_tokens);
  EXPECT_EQ(one.at("defaults").at("top_k"), model().sampling.top_k);
  EXPECT_EQ(get("/v1/models/" + model().name, "/v1/models/{model}"), one);
}

TEST(Endpoints, AnotherModelIsNotFound) {
  const Asked answer = asking().get("/v1/models/gpt-4o");
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.error().at("code").as_string(), "model_not_found");
  expect_refused({"/tokenize", {{"model", "gpt-4o"}, {"prompt", "a"}}, "model_not_found", "model"}, 404);
  expect_refused({"/v1/embeddings", {{"model", "gpt-4o"}, {"input", "a"}}, "model_not_found", "model"}, 404);
  expect_refused({"/v1/responses", {{"model", "gpt-4o"}, {"input", "a"}}, "model_not_found", "model"}, 404);
}

TEST(Endpoints, ReadyIsAnotherQuestionThanHealth) {
  EXPECT_EQ(get("/health").at("status").as_string(), "ok");
  EXPECT_EQ(get("/ready").at("status").as_string(), "ok");
  asking().served.set_ready(false);
  const Asked answer = asking().get("/ready");
  get("/health");
  asking().served.set_ready(true);
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.error().at("code").as_string(), "not_ready");
  EXPECT_TRUE(std::any_of(answer.answer.headers.begin(), answer.answer.headers.end(),
                          [](const auto& header) { return header.first == "Retry-After"; }));
}

TEST(Endpoints, VersionAndMetricsAreThePrograms) {
  EXPECT_EQ(get("/version").at("version").as_string(), "test");
  const Asked metrics = asking().get("/metrics");
  EXPECT_EQ(metrics.answer.body, "none\n");
  EXPECT_EQ(metrics.answer.content_type, "text/plain; version=0.0.4; charset=utf-8");
}

TEST(Endpoints, TokenizerInfoSpellsTheSpecialTokens) {
  const json::value info = get("/tokenizer_info");
  EXPECT_EQ(info.at("bos_token").as_string(), model().bos);
  EXPECT_EQ(info.at("chat_template").as_string(), kTemplate);
  EXPECT_EQ(info.at("vocab_size").to_number<int64_t>(), model().tokenizer->vocab_size());
}

// --- tokens

TEST(Tokens, ATextIsTokenizedAsCompletionsFeedIt) {
  const Tokenizer& tokenizer = *model().tokenizer;
  const std::string text = "Hello, world";
  const std::vector<TokenId> with = tokenizer.prompt_ids(text), without = tokenizer.encode(text, true);
  const json::value answer = post("/tokenize", {{"prompt", text}});
  EXPECT_EQ(ints(answer.at("tokens")), std::vector<int64_t>(with.begin(), with.end()));
  EXPECT_EQ(answer.at("count").to_number<size_t>(), with.size());
  EXPECT_EQ(post("/tokenize", {{"content", text}}), answer);
  const json::value bare = post("/tokenize", {{"prompt", text}, {"add_special_tokens", false}});
  EXPECT_EQ(ints(bare.at("tokens")), std::vector<int64_t>(without.begin(), without.end()));
  EXPECT_NE(with, without);
}

TEST(Tokens, SpecialTokensAreParsedUnlessTold) {
  const json::object body{{"prompt", model().bos}, {"add_special_tokens", false}};
  EXPECT_EQ(post("/tokenize", body).at("count").to_number<int64_t>(), 1);
  json::object plain = body;
  plain["parse_special"] = false;
  EXPECT_GT(post("/tokenize", plain).at("count").to_number<int64_t>(), 1);
}

TEST(Tokens, PiecesJoinToTheText) {
  const std::string text = "na\xC3\xAFve \xF0\x9F\x98\x80";
  const json::value answer =
      post("/tokenize", {{"prompt", text}, {"add_special_tokens", false}, {"with_pieces", true}});
  std::string bytes;
  bool hidden = false;
  for (const json::value& piece : answer.at("pieces").as_array()) {
    hidden = hidden || piece.at("piece").is_null();
    for (const int64_t byte : ints(piece.at("bytes"))) bytes += static_cast<char>(byte);
  }
  EXPECT_NE(bytes.find(text), std::string::npos);
  EXPECT_TRUE(hidden);  // this vocabulary spells the emoji byte by byte
  EXPECT_EQ(post("/tokenize", {{"prompt", text}}).as_object().contains("pieces"), false);
}

TEST(Tokens, DetokenizeIsTheWayBack) {
  const std::string text = "Hello, world \xC3\xA9";
  const json::value tokens =
      post("/tokenize", {{"prompt", text}, {"add_special_tokens", false}}).at("tokens");
  const json::value back = post("/detokenize", {{"tokens", tokens}});
  EXPECT_EQ(back.at("prompt"), back.at("content"));
  EXPECT_NE(std::string(back.at("prompt").as_string()).find(text), std::string::npos);
  EXPECT_EQ(post("/detokenize", {{"tokens", json::array()}}).at("prompt").as_string(), "");
  const json::array bos{*model().tokenizer->bos_id()};
  EXPECT_EQ(post("/detokenize", {{"tokens", bos}}).at("prompt").as_string(), model().bos);
  EXPECT_EQ(post("/detokenize", {{"tokens", bos}, {"skip_special_tokens", true}}).at("prompt").as_string(),
            "");
}

TEST(Tokens, WhatIsNoTokenIsRefused) {
  expect_refused({"/detokenize", {{"tokens", json::array{1, 320}}}, "out_of_range", "tokens[1]"});
  expect_refused({"/detokenize", {{"tokens", json::array{-1}}}, "out_of_range", "tokens[0]"});
  expect_refused({"/detokenize", {{"tokens", json::array{1.5}}}, "invalid_type", "tokens[0]"});
  expect_refused({"/detokenize", {{"tokens", json::array{"1"}}}, "invalid_type", "tokens[0]"});
  expect_refused({"/detokenize", {}, "missing_field", "tokens"});
  expect_refused({"/tokenize", {}, "missing_field", "prompt"});
  expect_refused({"/tokenize", {{"prompt", "a"}, {"content", "b"}}, "missing_field", "prompt"});
  expect_refused({"/tokenize", {{"prompt", 7}}, "invalid_type", "prompt"});
  expect_refused({"/tokenize", {{"prompt", "a"}, {"with_peices", true}}, "unknown_field", "with_peices"});
}

TEST(Tokens, InvalidUtf8IsRefusedBeforeAnybodySeesIt) {
  for (const char* body :
       {"{\"prompt\":\"a\xFF\"}", "{\"prompt\":\"\\ud800\"}", "{\"prompt\":\"a\"", "[]", ""}) {
    const Asked answer = asking().ask("POST", "/tokenize", body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_TRUE(answer.error().at("message").is_string());
  }
}

TEST(Tokens, TheTemplateIsAppliedAsChatDoes) {
  const json::array messages{json::object{{"role", "system"}, {"content", "be"}},
                             json::object{{"role", "user"}, {"content", "hi"}}};
  const json::value answer = post("/apply-template", {{"messages", messages}});
  EXPECT_EQ(answer.at("prompt").as_string(), "[system]be[user]hi[assistant]");
  EXPECT_EQ(answer.at("count").to_number<size_t>(), answer.at("tokens").as_array().size());
  EXPECT_EQ(post("/tokenize", {{"messages", messages}}).at("tokens"), answer.at("tokens"));
  const json::value chat =
      asking().post("/v1/chat/completions", {{"messages", messages}, {"max_tokens", 1}}).body();
  EXPECT_EQ(chat.at("usage").at("prompt_tokens"), answer.at("count"));
}

TEST(Tokens, AModelWithoutATemplateRefusesChatsByName) {
  Asking bare({.chat = false});
  const json::array messages{json::object{{"role", "user"}, {"content", "hi"}}};
  for (const char* path : {"/apply-template", "/tokenize"}) {
    const Asked answer = bare.post(path, {{"messages", messages}});
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.error().at("code").as_string(), "no_chat_template");
  }
  const Asked answer = bare.post("/v1/responses", {{"input", "hi"}});
  EXPECT_EQ(answer.error().at("code").as_string(), "no_chat_template");
  EXPECT_EQ(answer.error().at("param").as_string(), "input");
}

// --- embeddings

std::vector<double> vector_of(const json::value& answer, size_t index = 0) {
  std::vector<double> out;
  for (const json::value& number : answer.at("data").at(index).at("embedding").as_array()) {
    out.push_back(number.to_number<double>());
  }
  return out;
}

TEST(Embeddings, OneOfEachTextAndItsLengthIsOne) {
  const json::value answer = post("/v1/embeddings", {{"input", "a small text"}});
  const std::vector<double> vector = vector_of(answer);
  EXPECT_EQ(static_cast<int64_t>(vector.size()), model().spec->d_model);
  double square = 0;
  for (const double x : vector) square += x * x;
  EXPECT_NEAR(square, 1, 1e-5);
  const std::vector<TokenId> ids = model().tokenizer->prompt_ids("a small text", false);
  EXPECT_EQ(answer.at("usage").at("prompt_tokens").to_number<size_t>(), ids.size());
  EXPECT_EQ(vector_of(post("/v1/embeddings", {{"input", json::array(ids.begin(), ids.end())}})), vector);
}

TEST(Embeddings, ABatchHasTheBitsOfItsTexts) {
  const std::vector<std::string> texts = {"one", "a second, longer text of some words", "three"};
  const json::value batch = post("/v1/embeddings", {{"input", json::array(texts.begin(), texts.end())}});
  ASSERT_EQ(batch.at("data").as_array().size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(batch.at("data").at(i).at("index").to_number<size_t>(), i);
    EXPECT_EQ(vector_of(batch, i), vector_of(post("/v1/embeddings", {{"input", texts[i]}})));
  }
  EXPECT_NE(vector_of(batch, 0), vector_of(batch, 2));
  const json::value ids = post("/v1/embeddings", {{"input", json::array{json::array{5, 6}, json::array{7}}}});
  EXPECT_EQ(ids.at("data").as_array().size(), 2u);
}

TEST(Embeddings, Base64IsTheSameFloats) {
  const json::value plain = post("/v1/embeddings", {{"input", "x y"}, {"encoding_format", "float"}});
  const json::value coded = post("/v1/embeddings", {{"input", "x y"}, {"encoding_format", "base64"}});
  std::vector<float> floats;
  for (const double x : vector_of(plain)) floats.push_back(static_cast<float>(x));
  EXPECT_EQ(coded.at("data").at(0).at("embedding").as_string(), base64(std::as_bytes(std::span(floats))));
}

TEST(Embeddings, Base64IsTheOneOfTheRfc) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", ""},        {"f", "Zg=="},        {"fo", "Zm8="},
      {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xFF\xFE\xFD", "//79"}};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(base64(std::as_bytes(std::span(bytes.data(), bytes.size()))), text);
  }
}

TEST(Embeddings, PoolingIsMeanUnlessLastIsAskedFor) {
  const json::value mean = post("/v1/embeddings", {{"input", "a b c d"}, {"pooling", "mean"}});
  EXPECT_EQ(vector_of(post("/v1/embeddings", {{"input", "a b c d"}})), vector_of(mean));
  EXPECT_NE(vector_of(post("/v1/embeddings", {{"input", "a b c d"}, {"pooling", "last"}})), vector_of(mean));
}

TEST(Embeddings, WhatCannotBeEmbeddedIsRefused) {
  const std::string path = "/v1/embeddings";
  expect_refused({path, {}, "missing_field", "input"});
  expect_refused({path, {{"input", ""}}, "empty_input", "input"});
  expect_refused({path, {{"input", json::array()}}, "empty_input", "input"});
  expect_refused({path, {{"input", json::array{"a", ""}}}, "empty_input", "input[1]"});
  expect_refused({path, {{"input", json::array{"a", 3}}}, "invalid_type", "input[1]"});
  expect_refused({path, {{"input", json::array{3, "a"}}}, "invalid_type", "input[1]"});
  expect_refused({path, {{"input", json::array{320}}}, "out_of_range", "input[0]"});
  expect_refused({path, {{"input", json::array{json::array{1, 999}}}}, "out_of_range", "input[0][1]"});
  expect_refused({path, {{"input", "a"}, {"dimensions", 8}}, "unsupported_value", "dimensions"});
  expect_refused({path, {{"input", "a"}, {"encoding_format", "int8"}}, "invalid_value", "encoding_format"});
  expect_refused({path, {{"input", "a"}, {"pooling", "max"}}, "invalid_value", "pooling"});
  expect_refused({path, {{"input", "a"}, {"poolng", "mean"}}, "unknown_field", "poolng"});
  json::array many(257, json::value("a"));
  expect_refused({path, {{"input", many}}, "too_many", "input"});
  json::array longest(static_cast<size_t>(model().context) + 1, json::value(5));
  expect_refused({path, {{"input", longest}}, "context_length_exceeded", "input"});
  const int64_t size = model().spec->d_model;
  EXPECT_EQ(asking().post(path, {{"input", "a"}, {"dimensions", size}}).status, 200);
}

// --- the KV state

TEST(Kv, TheStateHasThePublishedShape) {
  post("/v1/kv/clear", json::object());
  asking().post("/v1/completions", {{"prompt", "some words that stay in the cache"}, {"max_tokens", 4}});
  const json::value state = get("/v1/kv");
  EXPECT_EQ(state.at("model").as_string(), model().name);
  EXPECT_GT(state.at("totals").at("steps").to_number<int64_t>(), 0);
  EXPECT_GT(state.at("room").at("total_bytes").to_number<int64_t>(), 0);
  EXPECT_FALSE(state.at("pools").as_array().empty());
  EXPECT_EQ(state.at("gaps").at("counts").as_array().size(),
            state.at("gaps").at("bounds_seconds").as_array().size() + 1);
  EXPECT_GE(state.at("cache").at("entries").as_array().size(), 1u);
  EXPECT_EQ(post("/v1/kv/clear", json::object()).at("cleared"), json::value(true));
  EXPECT_TRUE(get("/v1/kv").at("cache").at("entries").as_array().empty());
}

TEST(Kv, SavingNeedsAFolder) {
  expect_refused({"/v1/kv/save", {}, "no_kv_dir", ""});
  expect_refused({"/v1/kv/save", {{"path", "/tmp/x"}}, "unknown_field", "path"});
  EXPECT_EQ(asking().ask("POST", "/v1/kv/clear", "").status, 200);
}

TEST(Kv, PathsHaveTheirMethods) {
  for (const char* path : {"/v1/kv/save", "/v1/embeddings", "/tokenize"}) {
    const Asked answer = asking().get(path);
    EXPECT_EQ(answer.status, 405) << path;
    EXPECT_EQ(answer.answer.headers.at(0), (std::pair<std::string, std::string>("Allow", "POST")));
  }
}

}  // namespace
}  // namespace lapidary::serve::test
