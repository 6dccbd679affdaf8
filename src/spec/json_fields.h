// Strict reading of JSON objects: every getter names the field, what was expected and what was found.
// Used for specs (where every field must be known) and for configs written by others (where unknown fields
// may stand).
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"

namespace lapidary {

// Parses one JSON text. Numbers are rounded correctly (Boost.JSON 1.81's own conversion may be off by one
// unit in the last place), a repeated key is refused, nesting is bounded. `where` stands in messages. Throws
// Error(data).
boost::json::value parse_json(std::string_view text, const std::string& where);

// Shortest text that parses back to the same double; always with a point or an exponent. Error(data) on NaN
// and infinity.
std::string json_number(double value, std::string_view where);

// "a number (12)", "an array of 3", "null": for the "got" part of messages.
std::string describe_json(const boost::json::value& value);

// One JSON object being read. A field that is null counts as absent for the find_* getters and as a wrong
// type for the get_* ones.
class JsonFields {
 public:
  // Throws Error(data) when `value` is no object. `value` must outlive this.
  JsonFields(const boost::json::value& value, std::string where);

  bool has(std::string_view key) const;      // present, and not null
  bool present(std::string_view key) const;  // present, perhaps null

  int64_t get_int(std::string_view key);
  double get_double(std::string_view key);  // integers too
  bool get_bool(std::string_view key);
  std::string get_string(std::string_view key);
  const boost::json::array& get_array(std::string_view key);
  JsonFields get_object(std::string_view key);
  const boost::json::value& get(std::string_view key);

  std::optional<int64_t> find_int(std::string_view key);
  std::optional<double> find_double(std::string_view key);
  std::optional<bool> find_bool(std::string_view key);
  std::optional<std::string> find_string(std::string_view key);
  std::optional<JsonFields> find_object(std::string_view key);

  // Throws an Error naming the first field that no getter has asked for.
  void refuse_unknown(ErrorCode code = ErrorCode::data) const;

  const boost::json::object& object() const { return *object_; }
  const std::string& where() const { return where_; }
  std::string path(std::string_view key) const;  // "config.json: text_config.rope_theta"

 private:
  const boost::json::value* find(std::string_view key);

  const boost::json::object* object_;
  std::string where_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace lapidary
