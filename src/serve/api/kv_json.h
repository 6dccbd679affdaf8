// GET /v1/kv: the scheduler's view as JSON. The shape is documented (openapi/kv.json) and only grows: the web
// page draws it.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "serve/scheduler/scheduler.h"

namespace lapidary::serve {

struct ServedModel;

boost::json::object kv_json(const ServedModel& model, const SchedulerView& view);

}  // namespace lapidary::serve
