// A replay of prompts for people, and as CSV.
#pragma once

#include <string>

#include "cli/terminal.h"
#include "kvlab/prefix/prefix.h"

namespace lapidary {

std::string prefix_text(const kvlab::PrefixReport& report, const std::string& model, const Style& style);
std::string prefix_csv(const kvlab::PrefixReport& report);

}  // namespace lapidary
