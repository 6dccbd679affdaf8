// A body of POST /v1/responses as the chat request that means the same. What is common to both is read once,
// by the reader of chats; refusals come back under the names that the client used.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "serve/api/api_error.h"
#include "serve/api/fields.h"
#include "serve/api/service.h"

namespace lapidary::serve {

struct ResponsesRequest {
  boost::json::object chat;         // a body of /v1/chat/completions
  boost::json::object echo;         // fields of the response that repeat the request
  std::vector<std::string> places;  // of chat's messages: "input[2]"
  bool stream = false;
};

// Throws ApiError.
ResponsesRequest read_responses_request(const boost::json::object& body, const Service& service);

// The error of a chat's reader in the words of the request: messages[1].content → input[0].content.
ApiError in_words_of(const ResponsesRequest& request, const ApiError& error);

}  // namespace lapidary::serve
