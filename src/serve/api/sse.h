// Server-sent events as OpenAI's streams have them: "data: " and one line of JSON.
#pragma once

#include <string>
#include <string_view>

namespace lapidary::serve {

// REQUIRES: data is one line.
inline std::string sse_event(std::string_view data) {
  std::string event;
  event.reserve(data.size() + 8);
  event += "data: ";
  event += data;
  event += "\n\n";
  return event;
}
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace lapidary::serve
