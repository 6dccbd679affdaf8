// The API on a real model: SmolLM2 as it comes, its own vocabulary and template.
#include <gtest/gtest.h>

#include "cli/text_assets.h"
#include "engine/real_models.h"
#include "serve/served.h"
#include "text/utf8.h"

namespace lapidary::serve::test {
namespace {

class RealApi : public testing::Test {
 protected:
  static Served& served() {
    static Served made = [] {
      Checkpoint checkpoint = open_checkpoint(cached_model(kSmol.name));
      Tokenizer tokenizer = make_tokenizer(checkpoint.text);
      Served::Options options;
      options.context = 2048;
      options.chat_template = checkpoint.text.chat_template.value();
      return Served(std::move(checkpoint), std::move(tokenizer), options);
    }();
    return made;
  }
  static json::object chat(json::object more) {
    json::object body{{"messages", json::array{json::object{{"role", "user"},
                                                            {"content", "What is the capital of France?"}}}},
                      {"max_tokens", 24},
                      {"temperature", 0}};
    for (auto& field : more) body[field.key()] = field.value();
    return body;
  }
  static std::string content(const json::object& answer) {
    return std::string(answer.at("choices").at(0).at("message").at("content").as_string());
  }
};

TEST_F(RealApi, AnswersAndStreamsTheSame) {
  const json::object whole = served().ask(kChatPath, chat({}));
  EXPECT_NE(content(whole).find("Paris"), std::string::npos) << content(whole);
  EXPECT_EQ(whole.at("choices").at(0).at("finish_reason"), "stop");
  const Stream pieces = served().stream(kChatPath, chat({}));
  EXPECT_GT(pieces.events.size(), 5u);
  EXPECT_EQ(pieces.joined("content"), content(whole));
}

TEST_F(RealApi, ASecondTurnBeginsWithTheFirst) {
  const json::object first = served().ask(kChatPath, chat({}));
  json::array messages = chat({}).at("messages").as_array();
  messages.push_back({{"role", "assistant"}, {"content", content(first)}});
  messages.push_back({{"role", "user"}, {"content", "And of Italy?"}});
  const json::object second = served().ask(kChatPath, chat({{"messages", messages}}));
  const json::object& usage = second.at("usage").as_object();
  EXPECT_GE(usage.at("prompt_tokens_details").at("cached_tokens").as_int64(),
            first.at("usage").at("prompt_tokens").as_int64());
}

TEST_F(RealApi, ASchemaIsKept) {
  const json::object got = served().ask(
      kChatPath, chat({{"response_format",
                        json::parse(
                            R"({"type":"json_schema","json_schema":{"name":"city","schema":{"type":"object",
                     "properties":{"city":{"type":"string","maxLength":20},"people":{"type":"integer"}},
                     "required":["city","people"],"additionalProperties":false}}})")},
                       {"max_tokens", 60}}));
  const json::object value = json::parse(content(got)).as_object();
  EXPECT_TRUE(value.at("city").is_string());
  EXPECT_TRUE(value.at("people").is_int64());
}

TEST_F(RealApi, LogprobsSpellTheAnswer) {
  const json::object got = served().ask(kChatPath, chat({{"logprobs", true}, {"top_logprobs", 2}}));
  std::string bytes;
  for (const json::value& score : got.at("choices").at(0).at("logprobs").at("content").as_array()) {
    for (const json::value& byte : score.at("bytes").as_array()) bytes += static_cast<char>(byte.as_int64());
  }
  EXPECT_EQ(bytes, content(got));
}

TEST_F(RealApi, ToolsAreRefusedByTheTemplate) {
  served().refused(
      kChatPath,
      json::serialize(chat({{"tools", json::parse(R"([{"type":"function","function":{"name":"f"}}])")}})),
      400, "tools", "declares no tools");
}

TEST_F(RealApi, EchoScoresAPromptOfIds) {
  json::array ids;
  for (const TokenId id : served().tokenizer().prompt_ids("The capital of France is Paris"))
    ids.push_back(id);
  const json::object got = served().ask(kTextPath, {{"prompt", json::array{ids, ids}},
                                                    {"echo", true},
                                                    {"logprobs", 1},
                                                    {"max_tokens", 1},
                                                    {"temperature", 0},
                                                    {"seed", 1234}});
  ASSERT_EQ(got.at("choices").as_array().size(), 2u);
  EXPECT_EQ(json::serialize(got.at("choices").at(0).at("logprobs")),
            json::serialize(got.at("choices").at(1).at("logprobs")));
  const json::object& logprobs = got.at("choices").at(0).at("logprobs").as_object();
  ASSERT_EQ(logprobs.at("tokens").as_array().size(), ids.size() + 1);
  EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
  const json::array& best = logprobs.at("top_logprobs").as_array();
  const json::array& scores = logprobs.at("token_logprobs").as_array();
  EXPECT_GT(scores.at(ids.size() - 1).to_number<double>(), -1.5) << "Paris";
  for (size_t i = 1; i < scores.size(); ++i) {
    double most = -1e9;
    for (const auto& item : best[i].as_object()) most = std::max(most, item.value().to_number<double>());
    EXPECT_GE(most, scores[i].to_number<double>());
  }
  std::string text;
  for (const json::value& token : logprobs.at("tokens").as_array()) text += token.as_string();
  EXPECT_EQ(text, std::string(got.at("choices").at(0).at("text").as_string()));
}

}  // namespace
}  // namespace lapidary::serve::test
