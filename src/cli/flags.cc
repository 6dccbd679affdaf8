#include "cli/flags.h"

#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "base/kv_types.h"

namespace lapidary {

CLI::Validator between(int64_t least, int64_t most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    int64_t value = 0;
    if (!CLI::detail::lexical_cast(text, value)) return fmt::format("{} is no whole number", text);
    if (value >= least && value <= most) return {};
    if (most == std::numeric_limits<int64_t>::max()) return fmt::format("{} is less than {}", value, least);
    return fmt::format("{} is not between {} and {}", value, least, most);
  };
  return CLI::Validator(check, "");
}

CLI::Validator not_empty() {
  const auto check = [](const std::string& text) -> std::string {
    return text.empty() ? "the value is empty" : "";
  };
  return CLI::Validator(check, "");
}

CLI::Validator kv_types() {
  const auto check = [](const std::string& text) -> std::string {
    try {
      kv_types_from_name(text, "KV types");
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  };
  return CLI::Validator(check, "");
}

CLI::Validator unsigned_number() {
  const auto check = [](const std::string& text) -> std::string {
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    return digits ? "" : fmt::format("{} is no whole number from 0 on", text);
  };
  return CLI::Validator(check, "");
}

CLI::Validator at_least(int64_t least) {
  return between(least, std::numeric_limits<int64_t>::max());
}

}  // namespace lapidary
