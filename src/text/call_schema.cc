#include "text/call_schema.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/quote.h"

namespace lapidary {
namespace json = boost::json;
namespace {

constexpr size_t kMaxRules = 2000;
constexpr int64_t kMaxRepeats = 2000;  // characters of a string, items of a list, where they are bounded

constexpr std::array<std::string_view, 11> kDescribing = {"title",      "description", "default",  "examples",
                                                          "example",    "$comment",    "$schema",  "$id",
                                                          "deprecated", "readOnly",    "writeOnly"};
constexpr std::array<std::string_view, 5> kBounds = {"minimum", "maximum", "exclusiveMinimum",
                                                     "exclusiveMaximum", "multipleOf"};
constexpr std::array<std::string_view, 16> kKnown = {
    "type",      "properties", "required", "additionalProperties",
    "items",     "minItems",   "maxItems", "minLength",
    "maxLength", "enum",       "const",    "anyOf",
    "allOf",     "$ref",       "$defs",    "definitions"};

template <size_t N>
bool among(std::string_view word, const std::array<std::string_view, N>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string literal(std::string_view text) {  // of Lark
  return json::serialize(json::string(text.data(), text.size()));
}

std::string marked(std::string_view text) {
  return text.empty() ? "<|\"|> <|\"|>" : "<|\"|> " + literal(text) + " <|\"|>";
}

// Bare where the parser of calls reads it so, between string marks else.
std::string key_of(std::string_view name) {
  const bool bare = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == '$';
  });
  return bare ? literal(name) : marked(name);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return out;
}

class Rules {
 public:
  Rules(const json::object& root, std::string name, int levels, std::string_view where)
      : root_(root), name_(std::move(name)), levels_(levels), where_(where) {}

  std::string all() {
    const std::string body = object(resolved(root_, "#"), "#", 0);
    return name_ + ": " + body + "\n" + out_;
  }

 private:
  template <typename... Args>
  [[noreturn]] void wrong(ErrorCode code, const std::string& path, fmt::format_string<Args...> format,
                          Args&&... args) const {
    fail(code, "{}, {}: {}", where_, path, fmt::format(format, std::forward<Args>(args)...));
  }

  std::string next_name() {
    if (++count_ > kMaxRules) wrong(ErrorCode::limit, "#", "more than {} rules", kMaxRules);
    return fmt::format("{}_{}", name_, count_);
  }
  std::string rule(const std::string& body) {
    std::string name = next_name();
    out_ += name + ": " + body + "\n";
    return name;
  }

  const json::object& as_object(const json::value& value, const std::string& path) const {
    if (!value.is_object()) wrong(ErrorCode::data, path, "expected a schema, which is an object");
    return value.get_object();
  }

  void check_keywords(const json::object& schema, const std::string& path) const {
    for (const auto& item : schema) {
      const std::string_view word(item.key().data(), item.key().size());
      if (among(word, kKnown) || among(word, kBounds) || among(word, kDescribing)) continue;
      wrong(ErrorCode::unsupported, path, "the keyword {} is not enforced for the arguments of calls",
            quoted(word));
    }
  }

  // Follows references and allOf of one.
  const json::object& resolved(const json::object& schema, const std::string& path) const {
    const json::object* at = &schema;
    for (int steps = 0; steps < 32; ++steps) {
      check_keywords(*at, path);
      if (const json::value* all = at->if_contains("allOf")) {
        if (!all->is_array() || all->get_array().size() != 1) {
          wrong(ErrorCode::unsupported, path, "allOf of more or less than one schema is not enforced");
        }
        at = &as_object(all->get_array()[0], path + "/allOf/0");
        continue;
      }
      const json::value* reference = at->if_contains("$ref");
      if (reference == nullptr) return *at;
      for (const char* beside : {"type", "properties", "items", "anyOf", "enum", "const", "required"}) {
        if (at->contains(beside))
          wrong(ErrorCode::unsupported, path, "{} beside $ref is not enforced", beside);
      }
      at = &target(*reference, path);
    }
    wrong(ErrorCode::data, path, "$ref leads to itself");
  }

  const json::object& target(const json::value& reference, const std::string& path) const {
    const std::string text = reference.is_string() ? std::string(reference.get_string()) : "";
    for (const std::string_view home : {"$defs", "definitions"}) {
      const std::string head = fmt::format("#/{}/", home);
      if (!text.starts_with(head)) continue;
      const json::value* definitions = root_.if_contains(json::string_view(home.data(), home.size()));
      const json::value* found = definitions != nullptr && definitions->is_object()
                                     ? definitions->get_object().if_contains(text.substr(head.size()))
                                     : nullptr;
      if (found != nullptr) return as_object(*found, text);
    }
    wrong(ErrorCode::unsupported, path, "$ref: expected a name in $defs or definitions, got {}",
          quoted(json::serialize(reference)));
  }

  // An expression for a value that stands in an object or list of this level.
  std::string value(const json::value& any, const std::string& path, int level) {
    if (any.is_bool() && any.get_bool()) return fmt::format("value_{}", level);
    const json::object& schema = resolved(as_object(any, path), path);
    if (open_.size() > static_cast<size_t>(levels_) || !open_.insert(&schema).second) {
      wrong(ErrorCode::unsupported, path, "schemas that hold themselves are not enforced");
    }
    std::string out = one_value(schema, path, level);
    open_.erase(&schema);
    return out;
  }

  std::string one_value(const json::object& schema, const std::string& path, int level) {
    if (const json::value* only = schema.if_contains("const")) return constant(*only, path + "/const");
    if (const json::value* some = schema.if_contains("enum")) return choice_of_values(*some, path + "/enum");
    for (const char* beside : {"type", "properties", "items", "required"}) {
      if (!schema.contains("anyOf") || !schema.contains(beside)) continue;
      wrong(ErrorCode::unsupported, path, "{} beside anyOf is not enforced", beside);
    }
    if (const json::value* some = schema.if_contains("anyOf")) return choice(*some, path + "/anyOf", level);
    const json::value* type = schema.if_contains("type");
    if (type == nullptr) {
      if (schema.contains("properties")) return nested_object(schema, path, level);
      if (schema.contains("items")) return list(schema, path, level);
      return fmt::format("value_{}", level);
    }
    if (type->is_string()) return typed(type->get_string(), schema, path, level);
    if (!type->is_array() || type->get_array().empty()) {
      wrong(ErrorCode::data, path + "/type", "expected a name, or some");
    }
    std::string out;
    for (const json::value& name : type->get_array()) {
      if (!name.is_string()) wrong(ErrorCode::data, path + "/type", "expected names");
      out += (out.empty() ? "" : " | ") + typed(name.get_string(), schema, path, level);
    }
    return rule(out);
  }

  std::string typed(const json::string& name, const json::object& schema, const std::string& path,
                    int level) {
    if (name == "string") return string(schema, path);
    if (name == "number" || name == "integer") return number(name, schema, path);
    if (name == "boolean") return "(\"true\" | \"false\")";
    if (name == "null") return "\"null\"";
    if (name == "array") return list(schema, path, level);
    if (name == "object") return nested_object(schema, path, level);
    wrong(ErrorCode::data, path + "/type", "there is no type {}", quoted(json::serialize(name)));
  }

  // Nothing: the keyword is absent.
  std::optional<int64_t> count(const json::object& schema, const char* keyword,
                               const std::string& path) const {
    const json::value* value = schema.if_contains(keyword);
    if (value == nullptr) return {};
    if (!value->is_int64() || value->get_int64() < 0) {
      wrong(ErrorCode::data, path, "{}: expected a number of 0 or more", keyword);
    }
    if (value->get_int64() > kMaxRepeats) {
      wrong(ErrorCode::limit, path, "{}: more than {} is not enforced", keyword, kMaxRepeats);
    }
    return value->get_int64();
  }

  std::string string(const json::object& schema, const std::string& path) {
    const std::optional<int64_t> least = count(schema, "minLength", path),
                                 most = count(schema, "maxLength", path);
    if (!least && !most) return "string";
    if (most && least.value_or(0) > *most) wrong(ErrorCode::data, path, "minLength is above maxLength");
    if (most == 0) return marked("");
    const std::string name = next_name();
    std::string terminal = name;
    std::transform(name.begin(), name.end(), terminal.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
    out_ += fmt::format("{}: /(?s:.{{{},{}}})/\n", terminal, std::max<int64_t>(least.value_or(0), 1),
                        most ? std::to_string(*most) : "");
    out_ += fmt::format("{}: <|\"|> {}{} <|\"|>\n", name, terminal, least.value_or(0) == 0 ? "?" : "");
    return name;
  }

  // Numbers are spelt as JSON has them, so the grammar engine's own reading of bounds serves.
  std::string number(const json::string& type, const json::object& schema, const std::string& path) {
    json::object bounds;
    for (const std::string_view keyword : kBounds) {
      const json::value* bound = schema.if_contains(json::string_view(keyword.data(), keyword.size()));
      if (bound == nullptr) continue;
      if (!bound->is_number()) wrong(ErrorCode::data, path, "{}: expected a number", keyword);
      bounds[json::string_view(keyword.data(), keyword.size())] = *bound;
    }
    if (bounds.empty()) return type == "integer" ? "INTEGER" : "NUMBER";
    bounds["type"] = type;
    return rule("%json " + json::serialize(bounds));
  }

  std::string constant(const json::value& value, const std::string& path) const {
    if (value.is_string()) return marked({value.get_string().data(), value.get_string().size()});
    if (value.is_object() || value.is_array()) {
      wrong(ErrorCode::unsupported, path, "objects and lists are not enforced here");
    }
    return literal(json::serialize(value));
  }

  std::string choice_of_values(const json::value& some, const std::string& path) {
    if (!some.is_array() || some.get_array().empty()) wrong(ErrorCode::data, path, "expected some values");
    std::string out;
    for (const json::value& one : some.get_array()) out += (out.empty() ? "" : " | ") + constant(one, path);
    return rule(out);
  }

  std::string choice(const json::value& some, const std::string& path, int level) {
    if (!some.is_array() || some.get_array().empty()) wrong(ErrorCode::data, path, "expected some schemas");
    std::string out;
    for (const json::value& one : some.get_array()) {
      out += (out.empty() ? "" : " | ") + value(one, path, level);
    }
    return rule(out);
  }

  int deeper(const std::string& path, int level) const {
    if (level + 2 >= levels_) wrong(ErrorCode::limit, path, "nested deeper than {} levels", levels_);
    return level + 1;
  }

  std::string list(const json::object& schema, const std::string& path, int level) {
    const int inner = deeper(path, level);
    const json::value* items = schema.if_contains("items");
    const std::string item =
        items != nullptr ? value(*items, path + "/items", inner) : fmt::format("value_{}", inner);
    const int64_t least = count(schema, "minItems", path).value_or(0);
    const std::optional<int64_t> most = count(schema, "maxItems", path);
    if (most && least > *most) wrong(ErrorCode::data, path, "minItems is above maxItems");
    if (most == 0) return rule("\"[\" \"]\"");
    const int64_t after = std::max<int64_t>(least - 1, 0);  // of those after the first
    std::string some = item + " (\",\" " + item + ")";
    if (most) {
      some += fmt::format("{{{},{}}}", after, *most - 1);
    } else {
      some += after == 0 ? "*" : fmt::format("{{{},}}", after);
    }
    return rule(least > 0 ? "\"[\" " + some + " \"]\"" : "\"[\" (" + some + ")? \"]\"");
  }

  std::string nested_object(const json::object& schema, const std::string& path, int level) {
    const int inner = deeper(path, level);
    return rule(object(schema, path, inner));
  }

  std::set<std::string> required_of(const json::object& schema, const std::string& path) const {
    std::set<std::string> out;
    const json::value* required = schema.if_contains("required");
    if (required == nullptr) return out;
    if (!required->is_array()) wrong(ErrorCode::data, path + "/required", "expected names");
    for (const json::value& name : required->get_array()) {
      if (!name.is_string()) wrong(ErrorCode::data, path + "/required", "expected names");
      out.insert(std::string(name.get_string()));
    }
    return out;
  }

  // With its braces.
  std::string object(const json::object& schema, const std::string& path, int level) {
    const json::value* type = schema.if_contains("type");
    const json::value* more = schema.if_contains("additionalProperties");
    if (more != nullptr && !more->is_bool()) {
      wrong(ErrorCode::unsupported, path + "/additionalProperties", "schemas are not enforced here");
    }
    const bool closed = more != nullptr && !more->get_bool();
    const bool names_type = type != nullptr && type->is_string() && *type != "object";
    if (level == 0 && (names_type || schema.contains("anyOf"))) {
      wrong(ErrorCode::data, path, "the arguments of a call are an object");
    }
    const json::value* properties = schema.if_contains("properties");
    const std::set<std::string> required = required_of(schema, path);
    if (properties == nullptr) {
      if (!required.empty())
        wrong(ErrorCode::unsupported, path, "required without properties is not enforced");
      return closed ? "\"{\" \"}\"" : fmt::format("object_{}", level);
    }
    std::vector<std::string> names;
    for (const auto& item : as_object(*properties, path + "/properties")) names.emplace_back(item.key());
    std::stable_sort(names.begin(), names.end(),
                     [](const auto& a, const auto& b) { return lower(a) < lower(b); });
    for (const std::string& name : required) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        wrong(ErrorCode::unsupported, path, "{} is required and no property", quoted(name));
      }
    }
    return "\"{\" " + members(properties->get_object(), names, required, path, level) + " \"}\"";
  }

  std::string members(const json::object& properties, const std::vector<std::string>& names,
                      const std::set<std::string>& required, const std::string& path, int level) {
    const size_t n = names.size();
    std::vector<std::string> member(n), rest(n + 1);  // rest: what may follow after one before i
    for (size_t i = n; i-- > 0;) {
      const std::string at = path + "/properties/" + names[i];
      member[i] = fmt::format("{} \":\" {}", key_of(names[i]), value(properties.at(names[i]), at, level));
      const bool must = required.count(names[i]) > 0;
      rest[i] = rule((must ? "\",\" " + member[i] : "(\",\" " + member[i] + ")?") + " " + rest[i + 1]);
    }
    // The first that is there: nothing before it is required.
    std::string out;
    size_t i = 0;
    for (; i < n; ++i) {
      out += fmt::format("{}{} {}", i == 0 ? "" : " | ", member[i], rest[i + 1]);
      if (required.count(names[i]) > 0) break;
    }
    if (n == 0) return "";
    return i < n ? "(" + out + ")" : "(" + out + ")?";
  }

  const json::object& root_;
  const std::string name_;
  const int levels_;
  const std::string_view where_;
  std::set<const json::object*> open_;  // schemas that are being written
  std::string out_;
  size_t count_ = 0;
};

}  // namespace

std::string call_rules(std::string_view schema, const std::string& rule, int levels, std::string_view where) {
  json::error_code problem;
  json::parse_options options;
  options.max_depth = 256;  // deeper than the levels, which are counted by name
  const json::value value =
      json::parse(json::string_view(schema.data(), schema.size()), problem, {}, options);
  ensure(!problem && value.is_object(), ErrorCode::data, "{}: its schema is no JSON object", where);
  return Rules(value.get_object(), rule, levels, where).all();
}

}  // namespace lapidary
