// Names from untrusted files, made fit for messages.
#pragma once

#include <string>
#include <string_view>

namespace lapidary {

// `text` in double quotes. Control characters, quotes, backslashes and bytes that are not UTF-8 are escaped;
// beyond `max_bytes` the text is cut and its length told. A hostile name can neither drive a terminal nor
// fill a log.
std::string quoted(std::string_view text, size_t max_bytes = 160);

}  // namespace lapidary
