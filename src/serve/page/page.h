// The web page at "/": its files as answers. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/http/exchange.h"

namespace lapidary::serve {

// Where the page's files are: "/", "/page/app.css", "/page/js/app.js", ... They hold no secret: a browser
// must be able to read them before it can send a key.
std::vector<std::string> page_paths();

// The file at `path`, or 304 when `if_none_match` names it as it is. Files may run and reach only what the
// server itself has (Content-Security-Policy), and are asked for anew each time. ApiError(404)
// where there is none.
HttpAnswer page_answer(std::string_view path, std::string_view if_none_match);

}  // namespace lapidary::serve
