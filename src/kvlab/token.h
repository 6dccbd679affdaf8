// Tokens in results of the lab, which knows ids; whoever has a tokenizer brings the texts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace lapidary::kvlab {

// A token as text for reports: valid UTF-8, empty where the model has no tokenizer.
using PieceOf = std::function<std::string(int32_t id)>;

struct Token {
  int32_t id = 0;
  std::string piece;
};

}  // namespace lapidary::kvlab
