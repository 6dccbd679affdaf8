// What `lapidary kv report` says on a terminal.
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <string>

#include "cli/terminal.h"

namespace lapidary {

std::string report_text(const boost::json::object& report, const Style& style);
std::string written_line(const std::string& path, size_t bytes);

}  // namespace lapidary
