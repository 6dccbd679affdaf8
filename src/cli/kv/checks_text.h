// The lines at the end of a command of the lab that say what was checked.
#pragma once

#include <string>
#include <vector>

#include "cli/terminal.h"
#include "kvlab/check.h"

namespace lapidary {

// "  ok  name: detail" each.
std::string checks_text(const std::vector<kvlab::Check>& checks, const Style& style);

}  // namespace lapidary
