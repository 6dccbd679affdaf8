// What is worked out once about the model that is served.
#pragma once

#include <string>
#include <vector>

#include "serve/api/service.h"

namespace lapidary::serve {

struct ModelFacts {
  explicit ModelFacts(const Service& service);
  std::string fingerprint;        // "fp_" and a hash of the model, its arithmetic and this program's version
  std::vector<TokenId> reserved;  // tokens that no text should hold: <unused7>, <|reserved_special_token_7|>
  int64_t longest_token = 1;      // bytes that one token spells at most
  // Of the chat template: does it read them?
  bool thinking_switch = false, declares_tools = false, knows_developer = false;
};

}  // namespace lapidary::serve
