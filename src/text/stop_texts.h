// Stop texts in a stream: text is let through only when it can no longer be the beginning of a stop text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lapidary {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // empty texts are refused: Error(usage)

  // Text that is now certain to come before any stop text. Once a stop text was found, nothing more comes.
  std::string push(std::string_view text);
  // What was held back, at the end of the stream.
  std::string flush();
  const std::optional<std::string>& found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::optional<std::string> found_;
  std::string held_;
};

}  // namespace lapidary
