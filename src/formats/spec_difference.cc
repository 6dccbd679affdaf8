#include "formats/spec_difference.h"

#include <algorithm>
#include <boost/json/serialize.hpp>

#include "spec/json_fields.h"

namespace lapidary {
namespace {

namespace json = boost::json;

bool same_number(const json::value& a, const json::value& b, bool as_floats) {
  const double x = a.to_number<double>(), y = b.to_number<double>();
  return x == y || (as_floats && static_cast<float>(x) == static_cast<float>(y));
}

std::optional<SpecDifference> differ(const json::value& a, const json::value& b, const std::string& where,
                                     bool as_floats);

std::optional<SpecDifference> differ_in_lists(const json::array& a, const json::array& b,
                                              const std::string& where, bool as_floats) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (auto found = differ(a[i], b[i], fmt::format("{}[{}]", where, i), as_floats)) return found;
  }
  if (a.size() == b.size()) return std::nullopt;
  return SpecDifference{where, fmt::format("{} entries", a.size()), fmt::format("{} entries", b.size())};
}

std::optional<SpecDifference> differ(const json::value& a, const json::value& b, const std::string& where,
                                     bool as_floats) {
  if (a.is_object() && b.is_object()) {
    for (const auto& member : a.get_object()) {
      const std::string key(member.key().data(), member.key().size());
      const json::value* other = b.get_object().if_contains(key);
      const std::string path = where.empty() ? key : where + "." + key;
      if (other == nullptr) return SpecDifference{path, json::serialize(member.value()), "nothing"};
      if (auto found = differ(member.value(), *other, path, as_floats)) return found;
    }
    return std::nullopt;
  }
  if (a.is_array() && b.is_array()) return differ_in_lists(a.get_array(), b.get_array(), where, as_floats);
  const bool same = a.is_number() && b.is_number() ? same_number(a, b, as_floats) : a == b;
  if (same) return std::nullopt;
  return SpecDifference{where, describe_json(a), describe_json(b)};
}

}  // namespace

std::optional<SpecDifference> first_difference(const ModelSpec& wanted, const ModelSpec& got,
                                               bool as_floats) {
  return differ(parse_json(spec_to_json(wanted), "spec"), parse_json(spec_to_json(got), "spec"), "",
                as_floats);
}

}  // namespace lapidary
