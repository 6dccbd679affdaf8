#include "serve/api/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <cmath>
#include <set>

#include "base/quote.h"
#include "base/suggest.h"
#include "serve/api/api_error.h"
#include "text/utf8.h"

namespace lapidary::serve {
namespace json = boost::json;
namespace {

// Looks at the text only: what the parser that builds values would let pass.
struct Checker {
  constexpr static size_t max_object_size = static_cast<size_t>(-1);
  constexpr static size_t max_array_size = static_cast<size_t>(-1);
  constexpr static size_t max_key_size = static_cast<size_t>(-1);
  constexpr static size_t max_string_size = static_cast<size_t>(-1);
  using error_code = json::error_code;
  using text = json::string_view;

  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string key, number, problem;

  bool stop(error_code& ec, std::string what) {
    problem = std::move(what);
    ec = json::error::syntax;
    return false;
  }
  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    keys.emplace_back();
    return true;
  }
  bool on_object_end(size_t, error_code&) {
    keys.pop_back();
    return true;
  }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(size_t, error_code&) { return true; }
  bool on_key_part(text part, size_t, error_code&) {
    key.append(part.data(), part.size());
    return true;
  }
  bool on_key(text part, size_t, error_code& ec) {
    key.append(part.data(), part.size());
    const bool fresh = keys.back().insert(key).second;
    if (!fresh) return stop(ec, fmt::format("the key {} stands twice in one object", quoted(key)));
    key.clear();
    return true;
  }
  bool on_string_part(text, size_t, error_code&) { return true; }
  bool on_string(text, size_t, error_code&) { return true; }
  bool on_number_part(text part, error_code&) {
    number.append(part.data(), part.size());
    return true;
  }
  bool whole_number(text part) {
    number.append(part.data(), part.size());
    const bool whole = number.find_first_of(".eE") == std::string::npos;
    number.clear();
    return whole;
  }
  bool on_int64(int64_t, text, error_code&) {
    number.clear();
    return true;
  }
  bool on_uint64(uint64_t, text, error_code&) {
    number.clear();
    return true;
  }
  bool on_double(double value, text part, error_code& ec) {
    if (whole_number(part) || !std::isfinite(value)) return stop(ec, "a number is too large");
    return true;
  }
  bool on_bool(bool, error_code&) { return true; }
  bool on_null(error_code&) { return true; }
  bool on_comment_part(text, error_code&) { return true; }
  bool on_comment(text, error_code&) { return true; }
};

struct Place {
  size_t line = 1, column = 1;
};
Place place_of(std::string_view text, size_t offset) {
  Place place;
  for (const char c : text.substr(0, offset)) {
    if (c == '\n') {
      place = {place.line + 1, 1};
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {
      place.column++;
    }
  }
  return place;
}

[[noreturn]] void refuse_json(std::string_view text, size_t offset, std::string_view problem) {
  const Place place = place_of(text, offset);
  refuse("invalid_json", "", "the body is not JSON: line {}, column {}{}{}", place.line, place.column,
         problem.empty() ? "" : ": ", problem);
}

std::string_view problem_of(const json::error_code& ec) {
  if (ec == json::error::too_deep) return "nested too deep";
  if (ec == json::error::incomplete) return "it ends too early";
  if (ec == json::error::extra_data) return "something follows after its end";
  if (ec == json::error::illegal_leading_surrogate || ec == json::error::illegal_trailing_surrogate ||
      ec == json::error::expected_utf16_escape) {
    return "half of a surrogate pair";
  }
  return "";
}

}  // namespace

json::value parse_json(std::string_view text, int64_t max_depth) {
  const size_t valid = utf8_valid_prefix(text);
  if (valid < text.size()) refuse_json(text, valid, "not UTF-8");
  json::parse_options options;
  options.max_depth = static_cast<size_t>(max_depth);
  json::basic_parser<Checker> checker(options);
  json::error_code ec;
  const size_t read = checker.write_some(false, text.data(), text.size(), ec);
  const std::string& problem = checker.handler().problem;
  if (ec) refuse_json(text, read, problem.empty() ? problem_of(ec) : std::string_view(problem));
  if (read < text.size()) refuse_json(text, read, "something follows after its end");
  json::value value = json::parse(json::string_view(text.data(), text.size()), ec, {}, options);
  if (ec) refuse_json(text, 0, problem_of(ec));
  return value;
}

json::object parse_body(const HttpRequest& request, int64_t max_depth) {
  std::string type(request.header("content-type"));
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string_view kind = std::string_view(type).substr(0, type.find(';'));
  const bool is_json = kind.empty() || kind.find("json") != std::string_view::npos ||
                       kind.find("x-www-form-urlencoded") != std::string_view::npos;  // curl -d's
  if (!is_json) {
    throw ApiError(415, "invalid_request_error", "unsupported_media_type", "",
                   fmt::format("Content-Type: expected application/json, got {}", quoted(kind)));
  }
  if (request.body.empty()) refuse("invalid_json", "", "the body is empty; a JSON object is expected");
  json::value value = parse_json(request.body, max_depth);
  if (!value.is_object()) {
    refuse("invalid_type", "", "the body: expected a JSON object, got {}", kind_name(value));
  }
  return std::move(value.get_object());
}

std::string_view kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null: return "null";
    case json::kind::bool_: return "a boolean";
    case json::kind::int64:
    case json::kind::uint64: return "an integer";
    case json::kind::double_: return "a number";
    case json::kind::string: return "a string";
    case json::kind::array: return "an array";
    case json::kind::object: return "an object";
  }
  return "a value";
}

std::span<const std::string_view> harmless_fields() {
  static constexpr std::string_view fields[] = {"user",
                                                "metadata",
                                                "store",
                                                "service_tier",
                                                "safety_identifier",
                                                "prompt_cache_key",
                                                "verbosity",
                                                "prompt_cache_retention"};
  return fields;
}

Fields::Fields(const json::object& object, std::string path) : object_(&object), path_(std::move(path)) {}

Fields Fields::of(const json::value& value, std::string path) {
  if (!value.is_object()) {
    refuse("invalid_type", path, "{}: expected an object, got {}", path, kind_name(value));
  }
  return {value.get_object(), std::move(path)};
}

std::string Fields::path(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

const json::value* Fields::raw(std::string_view name) {
  known_.emplace_back(name);
  const json::value* value = object_->if_contains(json::string_view(name.data(), name.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

namespace {

[[noreturn]] void wrong_kind(const std::string& path, std::string_view expected, const json::value& got) {
  refuse("invalid_type", path, "{}: expected {}, got {}", path, expected, kind_name(got));
}

}  // namespace

std::optional<bool> Fields::flag(std::string_view name) {
  const json::value* value = raw(name);
  if (value == nullptr) return {};
  if (!value->is_bool()) wrong_kind(path(name), "a boolean", *value);
  return value->get_bool();
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t least, int64_t most) {
  const json::value* value = raw(name);
  if (value == nullptr) return {};
  const double real = value->is_double() ? value->get_double() : 0;
  const bool whole = value->is_double() && std::trunc(real) == real && std::abs(real) < 0x1p53;
  if (!value->is_int64() && !value->is_uint64() && !whole) wrong_kind(path(name), "an integer", *value);
  const std::string where = path(name);
  const bool huge = value->is_uint64() && value->get_uint64() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = huge                ? INT64_MAX
                         : value->is_int64() ? value->get_int64()
                         : whole             ? static_cast<int64_t>(real)
                                             : static_cast<int64_t>(value->get_uint64());
  if (huge || number < least || number > most) {
    const std::string got = json::serialize(*value);
    if (most == std::numeric_limits<int64_t>::max()) {
      refuse("out_of_range", where, "{}: expected {} or more, got {}", where, least, got);
    }
    refuse("out_of_range", where, "{}: expected {} to {}, got {}", where, least, most, got);
  }
  return number;
}

std::optional<double> Fields::number(std::string_view name, double least, double most) {
  const json::value* value = raw(name);
  if (value == nullptr) return {};
  if (!value->is_number()) wrong_kind(path(name), "a number", *value);
  const auto number = value->to_number<double>();
  if (!(number >= least && number <= most)) {
    const std::string where = path(name);
    refuse("out_of_range", where, "{}: expected {} to {}, got {}", where, least, most, number);
  }
  return number;
}

std::optional<std::string> Fields::text(std::string_view name, size_t max_bytes) {
  const json::value* value = raw(name);
  if (value == nullptr) return {};
  std::string text = text_of(*value, path(name));
  if (text.size() > max_bytes) {
    const std::string where = path(name);
    refuse("too_long", where, "{}: expected at most {} bytes, got {}", where, max_bytes, text.size());
  }
  return text;
}

std::optional<std::string> Fields::choice(std::string_view name, std::span<const std::string_view> allowed) {
  std::optional<std::string> text = this->text(name);
  if (!text || std::find(allowed.begin(), allowed.end(), *text) != allowed.end()) return text;
  const std::string where = path(name);
  refuse("invalid_value", where, "{}: expected one of {}, got {}", where, fmt::join(allowed, ", "),
         quoted(*text));
}

std::optional<Fields> Fields::object(std::string_view name) {
  const json::value* value = raw(name);
  if (value == nullptr) return {};
  return of(*value, path(name));
}

const json::array* Fields::array(std::string_view name, size_t max_items) {
  const json::value* value = raw(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) wrong_kind(path(name), "an array", *value);
  const json::array& items = value->get_array();
  if (items.size() > max_items) {
    const std::string where = path(name);
    refuse("too_long", where, "{}: expected at most {} items, got {}", where, max_items, items.size());
  }
  return &items;
}

std::optional<std::vector<std::string>> Fields::texts(std::string_view name, size_t max_items,
                                                      size_t max_bytes) {
  const json::value* value = raw(name);
  if (value == nullptr) return {};
  const std::string where = path(name);
  std::vector<std::string> texts;
  if (value->is_string()) {
    texts.push_back(*text(name, max_bytes));
    return texts;
  }
  if (!value->is_array()) wrong_kind(where, "a string or an array of strings", *value);
  for (const json::value& item : *array(name, max_items)) {
    const std::string place = item_path(where, texts.size());
    texts.push_back(text_of(item, place));
    if (texts.back().size() > max_bytes) {
      refuse("too_long", place, "{}: expected at most {} bytes, got {}", place, max_bytes,
             texts.back().size());
    }
  }
  return texts;
}

std::string Fields::needed_text(std::string_view name, size_t max_bytes) {
  needed(name);
  return *text(name, max_bytes);
}

const json::value& Fields::needed(std::string_view name) {
  const json::value* value = raw(name);
  if (value == nullptr) {
    refuse_misspelt(name);
    const std::string where = path(name);
    refuse("missing_field", where, "{}: the field is missing", where);
  }
  return *value;
}

// A field that is missing may be there under another name.
void Fields::refuse_misspelt(std::string_view name) const {
  if (object_->contains(json::string_view(name.data(), name.size()))) return;  // null
  for (const auto& field : *object_) {
    const std::string key(field.key());
    const bool known = std::find(known_.begin(), known_.end(), key) != known_.end();
    if (known || !nearest(key, {std::string(name)})) continue;
    const std::string where = shown(key);
    refuse("unknown_field", where, "{}: there is no such field; did you mean {}?", where, path(name));
  }
}

// The path of a field with a name from outside.
std::string Fields::shown(std::string_view name) const {
  const std::string text = quoted(name, 80);
  return path(std::string_view(text).substr(1, text.size() - 2));
}

void Fields::refuse_if_present(std::string_view name, std::string_view why) {
  if (raw(name) == nullptr) return;
  const std::string where = path(name);
  refuse("unsupported_field", where, "{}: {}", where, why);
}

void Fields::allow_harmless() {
  for (const std::string_view name : harmless_fields()) known_.emplace_back(name);
}

void Fields::done() const {
  for (const auto& field : *object_) {
    const std::string name(field.key());
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::optional<std::string> near = nearest(name, known_);
    const std::string where = shown(name);
    refuse("unknown_field", where, "{}: there is no such field{}", where,
           near ? fmt::format("; did you mean {}?", path(*near)) : "");
  }
}

std::string item_path(std::string_view path, size_t index) {
  return fmt::format("{}[{}]", path, index);
}

std::string text_of(const json::value& value, std::string_view path) {
  if (!value.is_string()) wrong_kind(std::string(path), "a string", value);
  return std::string(value.get_string());
}

std::vector<TokenId> ids_of(const json::array& array, std::string_view path, int64_t words) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (const json::value& item : array) {
    const bool whole = item.is_int64();
    if (whole && item.get_int64() >= 0 && item.get_int64() < words) {
      ids.push_back(static_cast<TokenId>(item.get_int64()));
      continue;
    }
    const std::string place = item_path(path, ids.size());
    if (!whole) wrong_kind(place, "a token id", item);
    refuse("out_of_range", place, "{}: expected a token id of 0 to {}, got {}", place, words - 1,
           item.get_int64());
  }
  return ids;
}

}  // namespace lapidary::serve
