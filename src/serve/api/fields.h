// Reading what clients send: JSON parsed strictly, and its objects field by field. A field that nobody reads
// is refused by name, with the nearest known one; values are checked for kind and range. Every error is an
// ApiError of status 400 whose param is the path of the field ("messages[2].content"). null is as good as
// absent.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/exchange.h"
#include "text/tokenizer.h"

namespace lapidary::serve {

// Refused, with line and column: what is no JSON (RFC 8259) in UTF-8, half of a surrogate pair, a key twice
// in one object, nesting deeper than max_depth, a number that 64 bits do not hold.
boost::json::value parse_json(std::string_view text, int64_t max_depth);
// The body of a request: a JSON object. 415 when Content-Type names something else than JSON.
boost::json::object parse_body(const HttpRequest& request, int64_t max_depth);

// What a value is, for messages: "a string", "an array".
std::string_view kind_name(const boost::json::value& value);

// Fields of OpenAI's requests that change nothing here, whatever they hold: accepted, and without effect.
// (An endpoint that has a use for one reads it before.)
std::span<const std::string_view> harmless_fields();

class Fields {
 public:
  // path: of the object itself; empty for the body. REQUIRES: the object outlives it.
  Fields(const boost::json::object& object, std::string path);
  // Of a value that must be an object.
  static Fields of(const boost::json::value& value, std::string path);

  // Each of these makes the name a known one; nothing: the field is absent or null.
  const boost::json::value* raw(std::string_view name);
  std::optional<bool> flag(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, int64_t least,
                                 int64_t most = std::numeric_limits<int64_t>::max());
  std::optional<double> number(std::string_view name, double least, double most);
  std::optional<std::string> text(std::string_view name,
                                  size_t max_bytes = std::numeric_limits<size_t>::max());
  std::optional<std::string> choice(std::string_view name, std::span<const std::string_view> allowed);
  std::optional<Fields> object(std::string_view name);
  const boost::json::array* array(std::string_view name, size_t max_items);
  // A string, or an array of strings.
  std::optional<std::vector<std::string>> texts(std::string_view name, size_t max_items, size_t max_bytes);
  // As the first five, but the field must be there.
  std::string needed_text(std::string_view name, size_t max_bytes = std::numeric_limits<size_t>::max());
  const boost::json::value& needed(std::string_view name);

  // A field that this server does not do: refused when it is there, saying why.
  void refuse_if_present(std::string_view name, std::string_view why);
  void allow_harmless();  // harmless_fields() are known from here on
  void done() const;      // every field must be a known one by now

  std::string path(std::string_view name) const;  // of a field
  const std::string& path() const { return path_; }
  const boost::json::object& json() const { return *object_; }
  const std::vector<std::string>& known() const { return known_; }  // names read so far

 private:
  void refuse_misspelt(std::string_view name) const;
  std::string shown(std::string_view name) const;
  const boost::json::object* object_;
  std::string path_;
  std::vector<std::string> known_;
};

// "messages[2]"
std::string item_path(std::string_view path, size_t index);
// A value that must be a string, an array of token ids (each below `words`).
std::string text_of(const boost::json::value& value, std::string_view path);
std::vector<TokenId> ids_of(const boost::json::array& array, std::string_view path, int64_t words);

}  // namespace lapidary::serve
