// The messages of a chat request, read strictly and written as templates want them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/api/facts.h"
#include "serve/api/fields.h"

namespace lapidary::serve {

struct ChatMessages {
  std::vector<std::string> json;  // each a JSON object; numbers in calls keep their digits
  // The last message is the model's own, and it goes on from there: what it has said, and where that stands.
  std::optional<std::string> prefill;
  std::string prefill_path;
};

// path: of the array. Parts of one message are joined by newlines.
ChatMessages read_messages(const boost::json::array& messages, const std::string& path,
                           const ModelFacts& facts);

// A JSON object as text, written back as it came (digits, order of keys). ApiError naming the path.
std::string object_text(const std::string& text, const std::string& path);
std::string json_string(std::string_view text);  // with quotes

}  // namespace lapidary::serve
