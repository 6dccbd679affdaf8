// A trace for people.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/terminal.h"
#include "kvlab/trace/trace.h"

namespace lapidary {

struct TraceView {
  std::string model, mode, text;               // text: prompt and answer, empty without a tokenizer
  bool every_call = false;                     // shapes of each call, not of the first of each kind
  std::optional<std::vector<int64_t>> layers;  // one line for each of these; absent: by kind of layer
};
std::string trace_text(const kvlab::Trace& trace, const TraceView& view, const Style& style);

// Layers "all" or "0,3,5-9". Error(usage) naming the part that is no layer of so many.
std::vector<int64_t> parse_layers(const std::string& list, int64_t n_layers);

}  // namespace lapidary
