// JSON from untrusted files: what Boost.JSON would let pass is refused here.
#pragma once

#include <boost/json/value.hpp>
#include <cstddef>
#include <string>
#include <string_view>

namespace lapidary {

// Parses one JSON document; `name` is used in messages. Throws Error(data) on a syntax error (with its
// place), invalid UTF-8, anything but blanks after the document, nesting beyond 32 levels, and a key that
// occurs twice in an object (Boost.JSON would keep the last without a word); Error(limit) beyond `max_values`
// values, which bounds the memory of the result.
boost::json::value parse_json(std::string_view text, const std::string& name,
                              size_t max_values = size_t{1} << 22);

// "an object", "a string": what a value is, for messages.
std::string_view json_kind(const boost::json::value& value);

}  // namespace lapidary
