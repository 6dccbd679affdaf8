#include "cli/kv/checks_text.h"

#include <fmt/format.h>

namespace lapidary {

std::string checks_text(const std::vector<kvlab::Check>& checks, const Style& style) {
  std::string out;
  for (const kvlab::Check& check : checks)
    out += fmt::format("  {}  {}: {}\n", check.passed ? "ok" : style.red("FAILED"), check.name, check.detail);
  return out;
}

}  // namespace lapidary
