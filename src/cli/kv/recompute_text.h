// `lapidary kv recompute` for terminals.
#pragma once

#include <string>

#include "base/function_ref.h"
#include "cli/terminal.h"
#include "kvlab/recompute/recompute.h"

namespace lapidary {

struct RecomputeView {
  std::string model;
  bool every_layer = false;  // a table of layers of every recomputation that differs; else of the worst
};

// `piece`: a token's text in quotes; its number where there is no tokenizer.
std::string recompute_text(const kvlab::RecomputeReport& report, const RecomputeView& view,
                           FunctionRef<std::string(int32_t)> piece, const Style& style);

// A line for each recomputation and layer that stores, all digits.
std::string recompute_csv(const kvlab::RecomputeReport& report);

}  // namespace lapidary
