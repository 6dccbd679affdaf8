// Where the time and the bytes of a run went: one set of numbers, as a table and as JSON.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "cli/generate.h"
#include "cli/load.h"
#include "cli/terminal.h"

namespace lapidary {

struct RunStats {
  LoadTimes load;
  EngineStats engine;
  int64_t weight_bytes_per_token = 0;  // of the packed weights, those that one decode step reads
  int64_t peak_rss_bytes = 0;
  int threads = 0;
  std::string numeric_mode, sampling;
  Answer answer;
};

RunStats collect_stats(const Engine& engine, const LoadTimes& load, const std::string& sampling,
                       const Answer& answer);
std::string stats_table(const RunStats& stats, const Style& style);
boost::json::object timings_json(const RunStats& stats);
boost::json::object memory_json(const RunStats& stats);

int64_t peak_rss_bytes();
// Of the packed weights, the bytes that one step of so many rows reads. Where experts are chosen, the average
// over independent choices.
int64_t weight_bytes_per_step(const Engine& engine, int64_t rows);

}  // namespace lapidary
