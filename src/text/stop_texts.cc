#include "text/stop_texts.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace lapidary {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) ensure(!stop.empty(), ErrorCode::usage, "stop: the text is empty");
}

std::string StopMatcher::push(std::string_view text) {
  if (found_) return {};
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at < first) {
      first = at;
      found_ = stop;
    }
  }
  if (found_) {
    std::string out = held_.substr(0, first);
    held_.clear();
    return out;
  }
  // Hold back the longest tail that begins a stop text.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(held_.size(), stop.size() - 1); n > keep; --n) {
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(stop).substr(0, n)) keep = n;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::flush() {
  return std::exchange(held_, {});
}

}  // namespace lapidary
