// What a Tokenizer holds; shared with chat.cc, which encodes prompts together with the template.
#pragma once

#include "text/bridge_call.h"
#include "text/tokenizer.h"

namespace lapidary {

struct Tokenizer::Impl {
  TokenizerHandle handle;
  size_t size = 0;  // largest id + 1
  std::optional<TokenId> bos_id;
  bool adds_bos = false;

  lb_token token(TokenId id) const;  // Error(usage) on an id out of range
  std::vector<TokenId> with_bos(std::vector<TokenId> ids) const;
};

}  // namespace lapidary
