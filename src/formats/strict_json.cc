#include "formats/strict_json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/value_stack.hpp>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/quote.h"

namespace lapidary {
namespace {

namespace json = boost::json;

// Receives the parser's events, builds the value, and watches keys and counts.
class Handler {
 public:
  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = static_cast<size_t>(-1);
  static constexpr size_t max_string_size = static_cast<size_t>(-1);

  Handler(const std::string& name, size_t max_values) : name_(name), values_left_(max_values) {
    stack_.reset();
  }

  json::value release() { return stack_.release(); }

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(size_t n, json::error_code&) {
    keys_.pop_back();
    count();
    stack_.push_object(n);
    return true;
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t n, json::error_code&) {
    count();
    stack_.push_array(n);
    return true;
  }
  bool on_key_part(json::string_view part, size_t, json::error_code&) {
    partial_key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, size_t, json::error_code&) {
    partial_key_.append(part.data(), part.size());
    const auto [place, is_new] = keys_.back().insert(std::move(partial_key_));
    ensure(is_new, ErrorCode::data, "{}: JSON: the key {} occurs twice in an object", name_, quoted(*place));
    partial_key_.clear();
    stack_.push_key(*place);
    return true;
  }
  bool on_string_part(json::string_view part, size_t, json::error_code&) {
    stack_.push_chars(part);
    return true;
  }
  bool on_string(json::string_view part, size_t, json::error_code&) {
    count();
    stack_.push_string(part);
    return true;
  }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t value, json::string_view, json::error_code&) {
    count();
    stack_.push_int64(value);
    return true;
  }
  bool on_uint64(uint64_t value, json::string_view, json::error_code&) {
    count();
    stack_.push_uint64(value);
    return true;
  }
  bool on_double(double value, json::string_view, json::error_code&) {
    count();
    stack_.push_double(value);
    return true;
  }
  bool on_bool(bool value, json::error_code&) {
    count();
    stack_.push_bool(value);
    return true;
  }
  bool on_null(json::error_code&) {
    count();
    stack_.push_null();
    return true;
  }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  void count() {
    ensure(values_left_ > 0, ErrorCode::limit, "{}: JSON: it holds more values than a file of its kind may",
           name_);
    --values_left_;
  }

  const std::string& name_;
  size_t values_left_;
  json::value_stack stack_;
  std::vector<std::set<std::string>>
      keys_;  // of the objects that are open; a set that no choice of keys makes slow
  std::string partial_key_;
};

}  // namespace

json::value parse_json(std::string_view text, const std::string& name, size_t max_values) {
  json::basic_parser<Handler> parser(json::parse_options{}, name, max_values);
  json::error_code error;
  const size_t used = parser.write_some(false, text.data(), text.size(), error);
  ensure(!error, ErrorCode::data, "{}: JSON: {} at byte {} of {}", name, error.message(), used, text.size());
  const size_t rest = text.find_first_not_of(" \t\r\n", used);
  ensure(rest == std::string_view::npos, ErrorCode::data,
         "{}: JSON: something follows the document at byte {} of {}", name, rest, text.size());
  return parser.handler().release();
}

std::string_view json_kind(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a bool";
    case json::kind::int64:
    case json::kind::uint64:
      return "an integer";
    case json::kind::double_:
      return "a fraction";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "nothing";
}

}  // namespace lapidary
