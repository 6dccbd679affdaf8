// `kv report`: what one run's parts come to as a page, as a table of calls and as a summary. All are made
// from one JSON object, so that none of them can say another number than it.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlab/report_frame.h"

namespace lapidary::kvlab {

// The JSON of the other commands, as they print it. A part that was not asked for is absent.
struct ReportParts {
  boost::json::object trace;
  std::optional<boost::json::object> bytes, plan, recompute, roofline, offload;
};

// {"schema": "lapidary.kv.report", ..., "trace": {...}, "bytes": {...}, ..., "checks": [...]}; the checks are
// those of all parts. With `timings` off all that was measured in seconds goes, and with it the roofline,
// which is nothing else: two runs then make the same bytes.
boost::json::object report_json(ReportParts parts, const Repro& repro, bool timings);

struct ReportCheck {
  std::string part, name, detail;
  bool passed = false;
};
// The checks of all parts, in their order.
std::vector<ReportCheck> report_checks(const boost::json::object& report);

// One page that needs nothing but itself.
std::string report_html(const boost::json::object& report);
// JSON that may stand inside a <script>: no character of it can end the element or the line.
std::string json_for_script(const boost::json::value& value);

std::string report_csv(const boost::json::object& report);       // one line a forward call
std::string report_markdown(const boost::json::object& report);  // for an issue or a pull request

}  // namespace lapidary::kvlab
