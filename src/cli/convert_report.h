// What `lapidary convert` says: before (--dry-run) and after.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "cli/terminal.h"
#include "formats/convert.h"

namespace lapidary {

struct ConvertReport {
  const Checkpoint* source = nullptr;
  const ConvertPlan* plan = nullptr;
  std::string target;
  std::vector<std::string> notes;  // besides the plan's
  bool written = false;
  ConvertOutcome outcome;  // when written
  double seconds = 0;
  int threads = 0;
};

std::string plan_table(const ConvertPlan& plan, const Style& style);  // one line for every tensor
std::string convert_report_text(const ConvertReport& report, const Style& style);
boost::json::object convert_report_json(const ConvertReport& report);

// Largest amount of memory that this process has had, in bytes; mapped files count as far as they were in.
int64_t peak_memory();

}  // namespace lapidary
