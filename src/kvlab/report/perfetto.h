// A report as Chrome's JSON trace events, for ui.perfetto.dev and chrome://tracing: slices of calls, layers
// and operations, counters of bytes, and arrows from the layers that store K and V to those that read theirs.
#pragma once

#include <boost/json/object.hpp>
#include <vector>

#include "kvlab/report/timeline.h"

namespace lapidary::kvlab {

// `timed`: one for each call of the report's trace; none when the report is without timings, and each call
// then takes a nominal millisecond, shared evenly by its layers. Operations are left out, and said to be,
// where the events would be more than kMostPerfettoEvents.
boost::json::object perfetto_trace(const boost::json::object& report, const std::vector<TimedCall>& timed);
inline constexpr size_t kMostPerfettoEvents = 400000;

}  // namespace lapidary::kvlab
