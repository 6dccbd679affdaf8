// The parts of `lapidary kv report`: of each what the command of its name prints as JSON, on one prompt.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "cli/kv/prompt.h"
#include "cli/load.h"
#include "cli/terminal.h"
#include "kvlab/report/timeline.h"
#include "kvlab/report_frame.h"

namespace lapidary {

struct ReportFlags {
  std::string model, out;
  KvPromptFlags prompt;
  int64_t decode_calls = 10;
  bool ignore_eos = false;
  bool no_bytes = false, no_plan = false, no_recompute = false, no_roofline = false, no_offload = false;
  bool no_timings = false, force = false, json = false;
  std::vector<int64_t> roofline_lengths, curve;  // empty: the usual ones, as far as they fit
  int64_t roofline_steps = 20, probe_mb = 0;
  EngineFlags engine;
};

// What all parts share. An engine with room for the longest of them is loaded when the first part asks for
// it.
class ReportRun {
 public:
  explicit ReportRun(const ReportFlags& flags);

  boost::json::object trace(std::vector<kvlab::TimedCall>& timed);  // first: the others go by its tokens
  boost::json::object bytes();
  boost::json::object plan();
  boost::json::object offload();
  void drop_engine() { engine_.reset(); }  // what follows loads its own
  boost::json::object recompute();
  boost::json::object roofline();
  const kvlab::Repro& repro() const { return repro_; }
  void finish() { line_.clear(); }  // the last word on stderr

 private:
  Engine& engine();
  int64_t longest() const;  // positions that the engine's context must hold
  std::vector<int64_t> fitting(const std::vector<int64_t>& given, const std::vector<int64_t>& usual,
                               int64_t most, std::string_view flag) const;

  const ReportFlags& flags_;
  KvModel model_;
  std::vector<int32_t> prompt_;
  std::vector<int64_t> bytes_lengths_, curve_, roofline_lengths_;
  int64_t decode_calls_ = 0;  // that the trace came to
  Hash128 hash_;
  kvlab::Repro repro_;
  std::unique_ptr<Engine> engine_;
  WorkLine line_;
};

}  // namespace lapidary
