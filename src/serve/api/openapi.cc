#include "serve/api/openapi.h"

#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "serve/api/endpoints.h"
#include "serve/api/fields.h"
#include "serve/api/openapi_parts.h"

namespace lapidary::serve {
namespace {

namespace json = boost::json;

// Statuses beside the operation's own; what they mean is in base.json.
constexpr const char* kErrors[] = {"400", "401", "404", "405", "408", "413",
                                   "415", "429", "500", "503", "504"};

// Stand in the files as "{name}", where this server's own number belongs.
std::map<std::string, int64_t, std::less<>> bounds(const Service& service) {
  const ApiLimits& limits = service.limits;
  const int64_t context = service.model.context;
  return {{"context", context},
          {"last_id", service.model.words - 1},
          {"embedding_size", service.model.spec->d_model},
          {"max_tokens", limits.max_tokens > 0 ? limits.max_tokens : context},
          {"max_texts", limits.max_texts},
          {"max_stops", limits.max_stops},
          {"max_stop_bytes", static_cast<int64_t>(limits.max_stop_bytes)},
          {"max_tools", limits.max_tools},
          {"max_messages", limits.max_messages},
          {"max_logprobs", limits.max_logprobs},
          {"max_logit_bias", limits.max_logit_bias},
          {"max_inputs", limits.max_inputs}};
}

void fill_in(json::value& value, const std::map<std::string, int64_t, std::less<>>& numbers) {
  if (json::object* object = value.if_object()) {
    for (auto& field : *object) fill_in(field.value(), numbers);
  } else if (json::array* array = value.if_array()) {
    for (json::value& item : *array) fill_in(item, numbers);
  } else if (const json::string* text = value.if_string(); text != nullptr && text->starts_with('{')) {
    const auto number = numbers.find(std::string_view(*text).substr(1, text->size() - 2));
    ensure(number != numbers.end(), ErrorCode::internal, "the OpenAPI document has an unknown bound {}",
           std::string_view(*text));
    value = number->second;
  }
}

// Adds the fields of `part` to those of `whole`, object by object.
void join(json::object& whole, const json::object& part) {
  for (const auto& field : part) {
    json::value& there = whole[field.key()];
    if (there.is_object() && field.value().is_object()) {
      join(there.get_object(), field.value().get_object());
    } else {
      ensure(there.is_null(), ErrorCode::internal, "the OpenAPI document has {} twice",
             std::string_view(field.key()));
      there = field.value();
    }
  }
}

bool names_a_type(const json::value& schema) {
  for (const char* key : {"type", "$ref", "oneOf", "enum", "const"}) {
    if (schema.as_object().contains(key)) return true;
  }
  return false;
}

// Schemas say "x-fields": the lists of fields that they have beside their own.
void add_fields(json::value& value, const json::object& lists) {
  if (json::array* array = value.if_array()) {
    for (json::value& item : *array) add_fields(item, lists);
  }
  json::object* object = value.if_object();
  if (object == nullptr) return;
  if (const json::value* wanted = object->if_contains("x-fields")) {
    json::object& own = object->at("properties").as_object();
    for (const json::value& name : wanted->as_array()) {
      for (const auto& field : lists.at(name.as_string()).as_object())
        own.emplace(field.key(), field.value());
    }
    object->erase("x-fields");
  }
  for (auto& field : *object) add_fields(field.value(), lists);
}

json::object harmless_list() {
  json::object out;
  for (const std::string_view name : harmless_fields()) {
    out[name] = {{"description", "Accepted, and without effect"}};
  }
  return out;
}

// In requests null is as good as absent: every optional field may be null. `seen`: schemas that were visited.
void allow_null(json::value& schema, json::object& schemas, std::set<std::string>& seen) {
  if (json::array* array = schema.if_array()) {
    for (json::value& item : *array) allow_null(item, schemas, seen);
  }
  json::object* object = schema.if_object();
  if (object == nullptr) return;
  constexpr std::string_view kSchemas = "#/components/schemas/";
  if (const json::value* reference = object->if_contains("$ref")) {
    const std::string name(std::string_view(reference->as_string()).substr(kSchemas.size()));
    if (seen.insert(name).second) allow_null(schemas.at(name), schemas, seen);
    return;
  }
  for (auto& part : *object) allow_null(part.value(), schemas, seen);
  const json::value* properties = object->if_contains("properties");
  if (properties == nullptr || !properties->is_object()) return;
  const json::value* required = object->if_contains("required");
  for (auto& field : object->at("properties").as_object()) {
    const bool needed = required != nullptr &&
                        std::find(required->as_array().begin(), required->as_array().end(), field.key()) !=
                            required->as_array().end();
    if (needed || !names_a_type(field.value())) continue;
    json::array choices{std::move(field.value()), json::object{{"type", "null"}}};
    field.value() = {{"anyOf", std::move(choices)}};
  }
}

void allow_null_in_requests(json::object& document) {
  json::object& schemas = document.at("components").at("schemas").as_object();
  std::set<std::string> seen;
  for (auto& path : document.at("paths").as_object()) {
    for (auto& operation : path.value().as_object()) {
      if (json::value* body = operation.value().as_object().if_contains("requestBody")) {
        allow_null(body->at("content").at("application/json").at("schema"), schemas, seen);
      }
    }
  }
}

void describe_errors(json::object& document) {
  const json::object content = {{"application/json", {{"schema", {{"$ref", "#/components/schemas/Error"}}}}}};
  for (auto& answer : document.at("components").at("responses").as_object()) {
    answer.value().as_object()["content"] = content;
  }
  for (auto& path : document.at("paths").as_object()) {
    for (auto& operation : path.value().as_object()) {
      json::object& answers = operation.value().at("responses").as_object();
      for (const char* status : kErrors) {
        if (answers.contains(status)) continue;
        answers[status] = {{"$ref", std::string("#/components/responses/") + status}};
      }
    }
  }
}

void openapi(Call& call) {
  call.reply->json(openapi_document(*call.service));
}

}  // namespace

json::object openapi_document(const Service& service) {
  json::object document;
  for (const std::string_view part :
       {kOpenapiBase, kOpenapiSampling, kOpenapiChat, kOpenapiCompletions, kOpenapiResponses,
        kOpenapiEmbeddings, kOpenapiTokens, kOpenapiModels, kOpenapiKv}) {
    join(document, json::parse(part).as_object());
  }
  json::object lists = std::move(document.at("x-fields").as_object());
  document.erase("x-fields");
  lists["harmless"] = harmless_list();
  for (const char* part : {"paths", "components"}) add_fields(document.at(part), lists);
  allow_null_in_requests(document);
  json::object& schemas = document.at("components").at("schemas").as_object();
  schemas.at("ModelName").as_object()["enum"] = json::array{service.model.name};
  document.at("info").as_object()["version"] = service.version;
  describe_errors(document);
  json::value whole(std::move(document));
  fill_in(whole, bounds(service));
  return std::move(whole.as_object());
}

std::vector<Endpoint> openapi_endpoints() {
  return {{"GET", "/openapi.json", openapi}};
}

}  // namespace lapidary::serve
