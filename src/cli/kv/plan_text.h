// `lapidary kv plan` for people.
#pragma once

#include <string>

#include "cli/terminal.h"
#include "kvlab/plan/plan.h"

namespace lapidary {

struct PlanTextOptions {
  std::string name;  // of the model
  bool every_layer = false;
};
std::string plan_text(const kvlab::Plan& plan, const ModelSpec& spec, const kvlab::PlanLabels& labels,
                      const PlanTextOptions& options, const Style& style);

}  // namespace lapidary
