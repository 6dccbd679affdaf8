#include "spec/json_fields.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value_stack.hpp>
#include <charconv>
#include <cmath>
#include <system_error>
#include <vector>

#include "base/quote.h"

namespace lapidary {
namespace {

namespace json = boost::json;

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxContainer = size_t{1} << 24;

// Receives the events of Boost's parser and builds the value, converting numbers with std::from_chars.
struct ExactHandler {
  static constexpr size_t max_object_size = kMaxContainer;
  static constexpr size_t max_array_size = kMaxContainer;
  static constexpr size_t max_key_size = size_t{1} << 16;
  static constexpr size_t max_string_size = size_t{1} << 28;

  json::value_stack stack;
  std::string number, key;
  std::vector<std::set<std::string>> keys;  // of the objects that are open, to see repetitions
  std::string repeated, bad_number;

  bool on_document_begin(json::error_code&) { return stack.reset(), true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t n, json::error_code&) { return stack.push_array(n), true; }
  bool on_object_begin(json::error_code&) { return keys.emplace_back(), true; }
  bool on_object_end(size_t n, json::error_code&) { return keys.pop_back(), stack.push_object(n), true; }
  bool on_string_part(json::string_view s, size_t, json::error_code&) { return stack.push_chars(s), true; }
  bool on_string(json::string_view s, size_t, json::error_code&) { return stack.push_string(s), true; }
  bool on_key_part(json::string_view s, size_t, json::error_code&) {
    key.append(s.data(), s.size());
    return stack.push_chars(s), true;
  }
  bool on_key(json::string_view s, size_t, json::error_code& error) {
    key.append(s.data(), s.size());
    stack.push_key(s);
    if (!keys.back().insert(key).second) {
      repeated = key;
      error = make_error_code(json::error::syntax);
      return false;
    }
    key.clear();
    return true;
  }
  bool on_number_part(json::string_view s, json::error_code&) {
    return number.append(s.data(), s.size()), true;
  }
  bool on_int64(int64_t value, json::string_view, json::error_code&) {
    number.clear();
    return stack.push_int64(value), true;
  }
  bool on_uint64(uint64_t value, json::string_view, json::error_code&) {
    number.clear();
    return stack.push_uint64(value), true;
  }
  bool on_double(double, json::string_view s, json::error_code& error) {
    number.append(s.data(), s.size());
    double value = 0;
    const char* const end = number.data() + number.size();
    const auto [at, failure] = std::from_chars(number.data(), end, value);
    if (failure != std::errc() || at != end) {
      bad_number = number;
      error = make_error_code(json::error::exponent_overflow);
      return false;
    }
    number.clear();
    return stack.push_double(value), true;
  }
  bool on_bool(bool value, json::error_code&) { return stack.push_bool(value), true; }
  bool on_null(json::error_code&) { return stack.push_null(), true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }
};

// Line and column, counted from 1, of a byte of the text.
std::string place(std::string_view text, size_t offset) {
  size_t line = 1, start = 0;
  for (size_t i = 0; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n') line++, start = i + 1;
  }
  return fmt::format("line {}, column {}", line, offset - start + 1);
}

[[noreturn]] void fail_type(const std::string& path, std::string_view expected, const json::value& got) {
  fail(ErrorCode::data, "{}: expected {}, got {}", path, expected, describe_json(got));
}

}  // namespace

json::value parse_json(std::string_view text, const std::string& where) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::basic_parser<ExactHandler> parser(options);
  json::error_code error;
  const size_t used = parser.write_some(false, text.data(), text.size(), error);
  ExactHandler& handler = parser.handler();
  ensure(handler.repeated.empty(), ErrorCode::data, "{}: {}: expected each key once, got {} twice", where,
         place(text, used), quoted(handler.repeated));
  ensure(handler.bad_number.empty(), ErrorCode::data,
         "{}: {}: expected a number within the range of a double, got {}", where, place(text, used),
         handler.bad_number);
  ensure(!error, ErrorCode::data, "{}: {}: expected valid JSON, got {}", where, place(text, used),
         error.message());
  const size_t rest = text.find_first_not_of(" \t\r\n", used);
  ensure(rest == std::string_view::npos, ErrorCode::data,
         "{}: {}: expected the end of the JSON text, got more", where, place(text, rest));
  return handler.stack.release();
}

std::string json_number(double value, std::string_view where) {
  ensure(std::isfinite(value), ErrorCode::data, "{}: expected a finite number, got {}", where, value);
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, result.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string describe_json(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null: return "null";
    case json::kind::bool_: return value.get_bool() ? "true" : "false";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_: return fmt::format("the number {}", json::serialize(value));
    case json::kind::string:
      return fmt::format("the string {}", quoted({value.get_string().data(), value.get_string().size()}, 80));
    case json::kind::array: return fmt::format("an array of {}", value.get_array().size());
    case json::kind::object: return fmt::format("an object of {} fields", value.get_object().size());
  }
  return "nothing";
}

JsonFields::JsonFields(const json::value& value, std::string where) : where_(std::move(where)) {
  if (!value.is_object()) fail_type(where_, "an object", value);
  object_ = &value.get_object();
}

std::string JsonFields::path(std::string_view key) const {
  // "config.json" + "x" is "config.json: x"; "config.json: x" + "y" is "config.json: x.y"
  return where_.find(": ") == std::string::npos ? fmt::format("{}: {}", where_, key)
                                                : fmt::format("{}.{}", where_, key);
}

bool JsonFields::present(std::string_view key) const {
  return object_->contains(json::string_view(key.data(), key.size()));
}

bool JsonFields::has(std::string_view key) const {
  const json::value* value = object_->if_contains(json::string_view(key.data(), key.size()));
  return value != nullptr && !value->is_null();
}

const json::value* JsonFields::find(std::string_view key) {
  asked_.emplace(key);
  const json::value* value = object_->if_contains(json::string_view(key.data(), key.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

const json::value& JsonFields::get(std::string_view key) {
  asked_.emplace(key);
  const json::value* value = object_->if_contains(json::string_view(key.data(), key.size()));
  if (value == nullptr) fail(ErrorCode::data, "{}: expected a value, got no such field", path(key));
  return *value;
}

namespace {

int64_t as_int(const json::value& value, const std::string& path) {
  if (!value.is_int64()) fail_type(path, "an integer of 64 bits", value);
  return value.get_int64();
}

double as_double(const json::value& value, const std::string& path) {
  if (value.is_int64()) return static_cast<double>(value.get_int64());
  if (value.is_uint64()) return static_cast<double>(value.get_uint64());
  if (!value.is_double()) fail_type(path, "a number", value);
  return value.get_double();
}

bool as_bool(const json::value& value, const std::string& path) {
  if (!value.is_bool()) fail_type(path, "true or false", value);
  return value.get_bool();
}

std::string as_string(const json::value& value, const std::string& path) {
  if (!value.is_string()) fail_type(path, "a string", value);
  return {value.get_string().data(), value.get_string().size()};
}

}  // namespace

int64_t JsonFields::get_int(std::string_view key) {
  return as_int(get(key), path(key));
}
double JsonFields::get_double(std::string_view key) {
  return as_double(get(key), path(key));
}
bool JsonFields::get_bool(std::string_view key) {
  return as_bool(get(key), path(key));
}
std::string JsonFields::get_string(std::string_view key) {
  return as_string(get(key), path(key));
}
JsonFields JsonFields::get_object(std::string_view key) {
  return {get(key), path(key)};
}

const json::array& JsonFields::get_array(std::string_view key) {
  const json::value& value = get(key);
  if (!value.is_array()) fail_type(path(key), "an array", value);
  return value.get_array();
}

std::optional<int64_t> JsonFields::find_int(std::string_view key) {
  const json::value* value = find(key);
  return value ? std::optional(as_int(*value, path(key))) : std::nullopt;
}

std::optional<double> JsonFields::find_double(std::string_view key) {
  const json::value* value = find(key);
  return value ? std::optional(as_double(*value, path(key))) : std::nullopt;
}

std::optional<bool> JsonFields::find_bool(std::string_view key) {
  const json::value* value = find(key);
  return value ? std::optional(as_bool(*value, path(key))) : std::nullopt;
}

std::optional<std::string> JsonFields::find_string(std::string_view key) {
  const json::value* value = find(key);
  return value ? std::optional(as_string(*value, path(key))) : std::nullopt;
}

std::optional<JsonFields> JsonFields::find_object(std::string_view key) {
  const json::value* value = find(key);
  return value ? std::optional(JsonFields(*value, path(key))) : std::nullopt;
}

void JsonFields::refuse_unknown(ErrorCode code) const {
  for (const auto& member : *object_) {
    const std::string_view key(member.key().data(), member.key().size());
    ensure(asked_.count(key) != 0, code, "{}: expected a known field, got an unknown one", path(key));
  }
}

}  // namespace lapidary
