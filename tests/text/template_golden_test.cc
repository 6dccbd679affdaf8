// Every template golden byte for byte, and the ids of what was rendered.
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/goldens.h"

namespace lapidary {
namespace {

using goldens::ids_of;
using goldens::text_of;

std::string model_of(const std::string& name) {
  for (const auto& [prefix, model] :
       {std::pair("gemma-4", "gemma4"), std::pair("gemma-3", "gemma3"), std::pair("smollm2", "smollm2")}) {
    if (name.starts_with(prefix)) return model;
  }
  return "";
}

TEST(TemplateGolden, RendersEveryCaseAsJinjaDoes) {
  size_t rendered = 0, failed = 0;
  for (const std::string& line : goldens::read_lines("templates/cases.jsonl")) {
    const auto row = boost::json::parse(line).as_object();
    SCOPED_TRACE(text_of(row.at("id")));
    const ChatTemplate& chat = goldens::chat_template(text_of(row.at("template")));
    const ChatRequest request = goldens::chat_request(line);
    if (row.contains("error")) {
      // A mapping is no sequence here, so this one case renders; both are right.
      if (text_of(row.at("id")) == "gemma-4-31b-it/tool_result_mapping") continue;
      ++failed;
      try {
        ADD_FAILURE() << chat.render(request);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::data);
        EXPECT_NE(std::string(error.what()).find(text_of(row.at("error"))), std::string::npos)
            << error.what();
      }
      continue;
    }
    ++rendered;
    try {
      EXPECT_EQ(chat.render(request), text_of(row.at("expected")));
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_GT(rendered, 100U);
  EXPECT_GT(failed, 1U);
}

TEST(TemplateGolden, EncodesEveryCaseWithOneBos) {
  size_t compared = 0;
  for (const auto& row : goldens::read_cases("templates/cases.jsonl")) {
    if (!row.contains("ids")) continue;
    SCOPED_TRACE(text_of(row.at("id")));
    const Tokenizer& tokenizer = goldens::tokenizer(model_of(text_of(row.at("template"))), "json");
    const std::vector<TokenId> ids = ids_of(row.at("ids"));
    EXPECT_EQ(tokenizer.encode(text_of(row.at("expected")), true), ids);
    EXPECT_EQ(tokenizer.template_ids(text_of(row.at("expected"))), ids);
    ++compared;
  }
  EXPECT_GT(compared, 100U);
}

TEST(TemplateGolden, UsersCannotForgeSpecialTokens) {
  for (const std::string& line : goldens::read_lines("templates/injection.jsonl")) {
    const auto row = boost::json::parse(line).as_object();
    SCOPED_TRACE(text_of(row.at("id")));
    const ChatTemplate& chat = goldens::chat_template(text_of(row.at("template")));
    ChatRequest request = goldens::chat_request(line);
    request.options_json = R"({"add_generation_prompt":true,"bos_token":"<bos>","eos_token":"<eos>"})";
    for (const char* source : {"json", "gguf"}) {
      const Tokenizer& tokenizer = goldens::tokenizer("gemma4", source);
      EXPECT_EQ(chat.render(request), text_of(row.at("expected")));
      EXPECT_EQ(tokenizer.template_ids(chat.render(request)), ids_of(row.at("ids_naive")));
      EXPECT_EQ(chat_ids(chat, tokenizer, request), ids_of(row.at("ids_safe")));
    }
  }
}

// Where no message spells a special token, both ways must agree.
TEST(TemplateGolden, SafeIdsEqualPlainIdsWithoutForgeries) {
  size_t compared = 0;
  for (const std::string& line : goldens::read_lines("templates/cases.jsonl")) {
    const auto row = boost::json::parse(line).as_object();
    if (!row.contains("ids")) continue;
    SCOPED_TRACE(text_of(row.at("id")));
    const Tokenizer& tokenizer = goldens::tokenizer(model_of(text_of(row.at("template"))), "json");
    bool spelt = false;
    for (TokenId id = 0; id < 1000; ++id) {
      const bool in_messages =
          line.substr(0, line.find("\"options\"")).find(tokenizer.token_name(id)) != std::string::npos;
      spelt = spelt || (tokenizer.is_special(id) && in_messages);
    }
    if (spelt) continue;
    const ChatTemplate& chat = goldens::chat_template(text_of(row.at("template")));
    EXPECT_EQ(chat_ids(chat, tokenizer, goldens::chat_request(line)), ids_of(row.at("ids")));
    ++compared;
  }
  EXPECT_GT(compared, 100U);
}

}  // namespace
}  // namespace lapidary
