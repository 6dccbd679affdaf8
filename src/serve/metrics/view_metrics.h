// The state of scheduler and HTTP at one moment as metric families.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "serve/http/http_server.h"
#include "serve/scheduler/scheduler.h"

namespace lapidary::serve {

std::vector<prometheus::MetricFamily> view_metrics(const std::string& model, const SchedulerView& scheduler,
                                                   const HttpStats& http);

}  // namespace lapidary::serve
