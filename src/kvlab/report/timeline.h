// When each operation of each call ended: the calls of a trace once more, watched by nothing but a clock.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace lapidary::kvlab {

struct TimedSpan {
  int64_t layer = -1;         // -1: not of a layer
  std::string_view what;      // an operation's name, "layer", "final norm", "head"
  double start = 0, end = 0;  // seconds from the beginning of the call
};

struct TimedCall {
  double seconds = 0;
  // In order of time. A layer's operations come before the layer that holds them. An operation begins where
  // the one before it ended, so that norms and RoPE count towards what they prepare.
  std::vector<TimedSpan> spans;
};

struct TimedFeed {
  std::vector<int32_t> tokens;
  bool wants_logits = true;
};

std::vector<TimedCall> time_calls(Engine& engine, const std::vector<TimedFeed>& calls);

}  // namespace lapidary::kvlab
