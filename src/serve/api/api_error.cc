#include "serve/api/api_error.h"

#include <boost/json.hpp>

namespace lapidary::serve {

std::string ApiError::body() const {
  boost::json::object error{{"message", message_}, {"type", type_}};
  if (param_.empty()) error["param"] = nullptr;
  else error["param"] = param_;
  error["code"] = code_;
  return boost::json::serialize(boost::json::object{{"error", std::move(error)}});
}

std::string error_body(int status, std::string_view code, std::string_view message) {
  const char* type = status == 401 || status == 403 ? "authentication_error"
                     : status == 404                ? "not_found_error"
                     : status == 429                ? "rate_limit_error"
                     : status >= 500                ? "server_error"
                                                    : "invalid_request_error";
  return ApiError(status, type, std::string(code), "", std::string(message)).body();
}

}  // namespace lapidary::serve
