// From Beast's parser to a request, and the checks of a header that need nothing but it. Internal: includes
// Beast.
#pragma once

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/connection.h"

namespace lapidary::serve {

class Parser : public boost::beast::http::request_parser<boost::beast::http::string_body> {};

// A request that is not to be served, and why.
struct Refusal {
  int status = 400;
  std::string_view code;
  std::string message;
  Headers headers;
};

Refusal overloaded(std::string message);
Refusal timed_out(std::string message);
// Of an error of the parser.
Refusal refusal_of(boost::beast::error_code error, const HttpOptions& options);

// The request so far, without its body; `client` is the peer's address, or becomes the name of its key.
// Adds what every answer needs to `form` first, so that a refusal has it too.
std::optional<Refusal> check_header(const Parser& parser, const Gate& gate, std::string_view peer,
                                    AnswerForm& form, HttpRequest& request);

// The answer that needs no handler: to a CORS preflight, and to OPTIONS *.
std::optional<HttpAnswer> answer_here(const HttpRequest& request, bool cors_allowed);
bool cors_allowed(const HttpOptions& options, std::string_view origin);

}  // namespace lapidary::serve
