#include "serve/job.h"

#include "base/error.h"

namespace lapidary::serve {

std::string_view reuse_name(Reuse reuse) {
  switch (reuse) {
    case Reuse::whole: return "whole";
    case Reuse::extended: return "extended";
    case Reuse::cold: return "cold";
    case Reuse::differs: return "differs";
    case Reuse::window_lost: return "window_lost";
    case Reuse::evicted: return "evicted";
    case Reuse::unwanted: return "unwanted";
  }
  fail(ErrorCode::internal, "reuse {} has no name", static_cast<int>(reuse));
}

std::string_view end_reason_name(EndReason reason) {
  switch (reason) {
    case EndReason::stop_token: return "stop_token";
    case EndReason::max_tokens: return "max_tokens";
    case EndReason::context: return "context";
    case EndReason::complete: return "complete";
    case EndReason::sink: return "sink";
    case EndReason::cancelled: return "cancelled";
    case EndReason::deadline: return "deadline";
    case EndReason::error: return "error";
    case EndReason::shutdown: return "shutdown";
  }
  fail(ErrorCode::internal, "end reason {} has no name", static_cast<int>(reason));
}

}  // namespace lapidary::serve
