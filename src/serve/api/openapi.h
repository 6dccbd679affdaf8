// The OpenAPI document of this server: what is written in openapi/*.json, joined, with the model's name and
// the bounds of this server in it, and the errors that every operation may answer.
#pragma once

#include <boost/json/object.hpp>

#include "serve/api/service.h"

namespace lapidary::serve {

boost::json::object openapi_document(const Service& service);

}  // namespace lapidary::serve
