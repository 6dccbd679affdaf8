// The published document: whole, strict, and about the very fields that the readers know.
#include "serve/api/openapi.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>
#include <set>
#include <string>

#include "serve/api/endpoints.h"
#include "serve/asked.h"

namespace lapidary::serve::test {
namespace {

Asking& asking() {
  static Asking one;
  return one;
}
const json::object& document() {
  return asking().document();
}

using Visit = std::function<void(const json::object& schema, const std::string& place)>;
void visit_objects(const json::value& value, const std::string& place, const Visit& visit) {
  if (const json::array* array = value.if_array()) {
    for (size_t i = 0; i < array->size(); ++i) {
      visit_objects((*array)[i], place + "/" + std::to_string(i), visit);
    }
  }
  if (const json::object* object = value.if_object()) {
    visit(*object, place);
    for (const auto& field : *object) {
      visit_objects(field.value(), place + "/" + std::string(field.key()), visit);
    }
  }
}

TEST(Openapi, EveryRouteIsDescribedAndNoOther) {
  std::set<std::pair<std::string, std::string>> routes, described;
  for (const Endpoint& endpoint : all_endpoints()) {
    if (endpoint.path == "/" || endpoint.path.starts_with("/page")) continue;  // the web page
    std::string method = endpoint.method;
    std::transform(method.begin(), method.end(), method.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    routes.emplace(endpoint.path, method);
  }
  for (const auto& path : document().at("paths").as_object()) {
    for (const auto& operation : path.value().as_object()) described.emplace(path.key(), operation.key());
  }
  EXPECT_EQ(routes, described);
}

TEST(Openapi, EveryReferenceLeadsSomewhereAndEverySchemaIsUsed) {
  const SchemaChecker checker(document());
  std::set<std::string> used;
  visit_objects(document(), "", [&](const json::object& object, const std::string& place) {
    const json::value* reference = object.if_contains("$ref");
    if (reference == nullptr || !reference->is_string()) return;
    EXPECT_NO_THROW(checker.resolve(object)) << place;
    used.insert(std::string(reference->as_string()));
  });
  for (const auto& schema : document().at("components").at("schemas").as_object()) {
    EXPECT_TRUE(used.contains("#/components/schemas/" + std::string(schema.key()))) << schema.key();
  }
}

TEST(Openapi, ObjectsAreClosed) {
  visit_objects(document(), "", [&](const json::object& object, const std::string& place) {
    if (place.ends_with("/properties") || !object.contains("properties")) return;
    EXPECT_TRUE(object.contains("additionalProperties")) << place;
    EXPECT_FALSE(object.contains("x-fields")) << place;
  });
}

TEST(Openapi, EveryOperationSaysWhatMayGoWrong) {
  std::set<std::string> ids;
  for (const auto& path : document().at("paths").as_object()) {
    for (const auto& operation : path.value().as_object()) {
      const json::object& one = operation.value().as_object();
      EXPECT_TRUE(ids.insert(std::string(one.at("operationId").as_string())).second) << path.key();
      for (const char* status :
           {"200", "400", "401", "404", "405", "408", "413", "415", "429", "500", "503", "504"}) {
        EXPECT_TRUE(one.at("responses").as_object().contains(status)) << path.key() << " " << status;
      }
    }
  }
}

TEST(Openapi, TheServersOwnBoundsAreInIt) {
  const json::object& schemas = document().at("components").at("schemas").as_object();
  EXPECT_EQ(schemas.at("ModelName").at("enum").at(0).as_string(), asking().served.model().name);
  EXPECT_EQ(schemas.at("TokenId").at("maximum").to_number<int64_t>(), asking().served.model().words - 1);
  EXPECT_EQ(json::serialize(document()).find("\"{"), std::string::npos);
}

// A body that every reader takes as far as its last check, by route.
const std::map<std::string, json::object>& good_bodies() {
  static const json::array messages{json::object{{"role", "user"}, {"content", "a"}}};
  static const std::map<std::string, json::object> bodies = {
      {"/v1/chat/completions", {{"messages", messages}}},
      {"/v1/completions", {{"prompt", "a"}}},
      {"/v1/responses", {{"input", "a"}}},
      {"/v1/embeddings", {{"input", "a"}}},
      {"/tokenize", {{"prompt", "a"}}},
      {"/detokenize", {{"tokens", json::array{5}}}},
      {"/apply-template", {{"messages", messages}}},
      {"/v1/kv/save", {}},
      {"/v1/kv/clear", {}},
  };
  return bodies;
}

// All fields that the schema of a request has, of all its forms.
std::set<std::string> fields_of(const SchemaChecker& checker, const json::value& raw) {
  const json::object& schema = checker.resolve(raw).as_object();
  std::set<std::string> out;
  if (const json::value* properties = schema.if_contains("properties")) {
    for (const auto& field : properties->as_object()) out.insert(std::string(field.key()));
  }
  if (const json::value* forms = schema.if_contains("oneOf")) {
    for (const json::value& form : forms->as_array()) out.merge(fields_of(checker, form));
  }
  return out;
}

// Names that some request has, and such as OpenAI's interface or other servers have.
std::set<std::string> names_to_try(const SchemaChecker& checker) {
  std::set<std::string> names = {"audio",
                                 "modalities",
                                 "prediction",
                                 "function_call",
                                 "functions",
                                 "suffix",
                                 "best_of",
                                 "echo",
                                 "temprature",
                                 "typical_p",
                                 "mirostat",
                                 "n_predict",
                                 "ignore_eos",
                                 "guided_json",
                                 "conversation",
                                 "prompt",
                                 "background",
                                 "max_tool_calls",
                                 "previous_response_id",
                                 "web_search_options",
                                 "cache_prompt",
                                 "min_tokens",
                                 "skip_special_tokens",
                                 "structured_outputs",
                                 "return_tokens_as_token_ids",
                                 "dimensions"};
  for (const auto& [path, body] : good_bodies()) {
    const json::value& operation = document().at("paths").at(path).at("post");
    names.merge(
        fields_of(checker, operation.at("requestBody").at("content").at("application/json").at("schema")));
  }
  return names;
}

// A field is known to a reader when, being null, it is not what the refusal is about.
TEST(Openapi, TheFieldsOfEveryRequestAreThoseThatItsReaderKnows) {
  // Read only to be refused by name, whatever they hold; the schema leaves them out.
  const std::map<std::string, std::set<std::string>> refused = {
      {"/v1/chat/completions",
       {"audio", "function_call", "functions", "modalities", "prediction", "web_search_options"}},
      {"/v1/completions", {"suffix"}},
      {"/v1/responses", {"conversation", "max_tool_calls", "previous_response_id", "prompt"}},
      {"/apply-template", {"function_call", "functions"}},
      {"/tokenize", {"function_call", "functions"}},
  };
  const SchemaChecker checker(document());
  const std::set<std::string> names = names_to_try(checker);
  for (const auto& [path, good] : good_bodies()) {
    const json::value& operation = document().at("paths").at(path).at("post");
    std::set<std::string> known =
        fields_of(checker, operation.at("requestBody").at("content").at("application/json").at("schema"));
    if (const auto more = refused.find(path); more != refused.end()) {
      known.insert(more->second.begin(), more->second.end());
    }
    for (const std::string& name : names) {
      if (good.contains(name)) continue;
      json::object body = good;
      // A text has other fields than a chat; which are asked for depends on what is there.
      const json::value& schemas = document().at("components").at("schemas");
      if (path == "/tokenize" && !fields_of(checker, schemas.at("TokenizePrompt")).contains(name)) {
        if (name == "content" || name == "messages") continue;
        body = {{"messages", good_bodies().at("/apply-template").at("messages")}};
      }
      body[name] = nullptr;
      body["surely_no_field"] = 1;
      const Asked answer = asking().post(path, body);
      ASSERT_EQ(answer.status, 400) << path << " " << name << answer.answer.body;
      ASSERT_EQ(answer.error().at("code").as_string(), "unknown_field") << path << " " << answer.answer.body;
      const bool read = answer.error().at("param").as_string() == "surely_no_field";
      EXPECT_EQ(read, known.contains(name)) << path << " " << name << ": " << answer.answer.body;
    }
  }
}

}  // namespace
}  // namespace lapidary::serve::test
