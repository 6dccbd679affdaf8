#include "serve/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <set>
#include <stdexcept>

namespace lapidary::serve::test {
namespace {

namespace json = boost::json;

bool is_of(const json::value& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_bool();
  if (type == "null") return value.is_null();
  if (type == "integer") return value.is_int64() || value.is_uint64();
  if (type == "number") return value.is_number();
  throw std::logic_error("the schema names an unknown type");
}

bool is_of_type(const json::value& value, const json::value& type) {
  if (type.is_string()) return is_of(value, type.as_string());
  return std::any_of(type.as_array().begin(), type.as_array().end(),
                     [&](const json::value& one) { return is_of(value, one.as_string()); });
}

}  // namespace

const json::value& SchemaChecker::resolve(const json::value& schema) const {
  const json::value* at = &schema;
  while (const json::value* reference = at->as_object().if_contains("$ref")) {
    const std::string path(reference->as_string());
    if (!path.starts_with("#/")) throw std::logic_error("a reference to the outside: " + path);
    const json::value* target = nullptr;
    const json::object* object = &document_;
    for (size_t begin = 2; begin <= path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      target = object->if_contains(path.substr(begin, end - begin));
      if (target == nullptr) throw std::logic_error("a reference to nothing: " + path);
      object = target->if_object();
      begin = end + 1;
      if (object == nullptr) break;
    }
    at = target;
  }
  return *at;
}

std::vector<std::string> SchemaChecker::problems(const json::value& value, const json::value& raw,
                                                 const std::string& place) const {
  static const std::set<std::string, std::less<>> known = {
      "type",     "properties",    "required",      "additionalProperties",
      "items",    "enum",          "const",         "oneOf",
      "anyOf",    "minimum",       "maximum",       "exclusiveMinimum",
      "minItems", "maxItems",      "minLength",     "maxLength",
      "pattern",  "propertyNames", "maxProperties", "description",
      "default"};
  const json::object& schema = resolve(raw).as_object();
  std::vector<std::string> out;
  const auto wrong = [&](const std::string& what) {
    out.push_back(fmt::format("{}: {} (got {})", place, what, json::serialize(value).substr(0, 80)));
  };
  for (const auto& keyword : schema) {
    if (!known.contains(keyword.key()))
      throw std::logic_error("unknown keyword " + std::string(keyword.key()));
  }
  if (const auto* type = schema.if_contains("type"); type != nullptr && !is_of_type(value, *type)) {
    wrong("not of type " + json::serialize(*type));
    return out;
  }
  if (const auto* fixed = schema.if_contains("const"); fixed != nullptr && *fixed != value) {
    wrong("not " + json::serialize(*fixed));
  }
  if (const auto* choices = schema.if_contains("enum")) {
    const json::array& all = choices->as_array();
    if (std::find(all.begin(), all.end(), value) == all.end()) wrong("not one of " + json::serialize(all));
  }
  for (const char* keyword : {"oneOf", "anyOf"}) {
    const json::value* choices = schema.if_contains(keyword);
    if (choices == nullptr) continue;
    size_t fitting = 0;
    std::string first;
    for (const json::value& choice : choices->as_array()) {
      const std::vector<std::string> found = problems(value, choice, place);
      fitting += found.empty() ? 1 : 0;
      for (const std::string& one : found) first += "\n    " + one;
    }
    if (fitting == 0) wrong(fmt::format("fits none of {}:{}", keyword, first));
    if (fitting > 1 && std::string_view(keyword) == "oneOf") wrong("fits more than one of oneOf");
  }
  if (value.is_number()) {
    const auto number = value.to_number<double>();
    const auto bound = [&](const char* name) {
      const json::value* limit = schema.if_contains(name);
      return limit == nullptr ? std::optional<double>() : limit->to_number<double>();
    };
    if (const auto least = bound("minimum"); least && number < *least) wrong("below minimum");
    if (const auto most = bound("maximum"); most && number > *most) wrong("above maximum");
    if (const auto least = bound("exclusiveMinimum"); least && number <= *least) wrong("too small");
  }
  const auto size_bound = [&](const char* name, size_t otherwise) {
    const json::value* limit = schema.if_contains(name);
    return limit == nullptr ? otherwise : limit->to_number<size_t>();
  };
  if (const json::array* array = value.if_array()) {
    if (array->size() < size_bound("minItems", 0)) wrong("too few items");
    if (array->size() > size_bound("maxItems", static_cast<size_t>(-1))) wrong("too many items");
    if (const json::value* items = schema.if_contains("items")) {
      for (size_t i = 0; i < array->size(); ++i) {
        const std::vector<std::string> more = problems((*array)[i], *items, fmt::format("{}[{}]", place, i));
        out.insert(out.end(), more.begin(), more.end());
      }
    }
  }
  if (const json::string* text = value.if_string()) {
    if (text->size() < size_bound("minLength", 0)) wrong("too short");
    if (const json::value* pattern = schema.if_contains("pattern")) {
      if (!std::regex_search(text->c_str(), std::regex(pattern->as_string().c_str())))
        wrong("does not match");
    }
  }
  if (const json::object* object = value.if_object()) object_problems(*object, schema, place, out);
  return out;
}

void SchemaChecker::object_problems(const json::object& value, const json::object& schema,
                                    const std::string& place, std::vector<std::string>& out) const {
  if (const json::value* required = schema.if_contains("required")) {
    for (const json::value& name : required->as_array()) {
      if (!value.contains(name.as_string())) {
        out.push_back(fmt::format("{}: {} is missing", place, std::string_view(name.as_string())));
      }
    }
  }
  const json::value* properties = schema.if_contains("properties");
  const json::value* others = schema.if_contains("additionalProperties");
  for (const auto& field : value) {
    const std::string where = fmt::format("{}.{}", place, std::string_view(field.key()));
    const json::value* own =
        properties == nullptr ? nullptr : properties->as_object().if_contains(field.key());
    const json::value* rule = own != nullptr ? own : others;
    if (rule == nullptr || (rule->is_bool() && rule->get_bool())) continue;
    if (rule->is_bool()) {
      out.push_back(where + ": not in the schema");
      continue;
    }
    const std::vector<std::string> more = problems(field.value(), *rule, where);
    out.insert(out.end(), more.begin(), more.end());
  }
}

}  // namespace lapidary::serve::test
