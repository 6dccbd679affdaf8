// What `lapidary kv roofline` found, for people and as CSV.
#pragma once

#include <string>

#include "cli/terminal.h"
#include "kvlab/roofline/roofline.h"

namespace lapidary {

std::string roofline_text(const kvlab::RooflineReport& report, const kvlab::Repro& repro, const Style& style);
// One line for each length of each run, plain or ablated, with all digits.
std::string roofline_csv(const kvlab::RooflineReport& report);

}  // namespace lapidary
