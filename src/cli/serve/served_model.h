// MODEL as the API sees it: tokenizer, chat template, stop tokens, defaults.
#pragma once

#include <optional>
#include <string>

#include "cli/load.h"
#include "cli/serve/flags.h"
#include "serve/api/service.h"
#include "text/chat.h"

namespace lapidary {

struct OpenedModel {
  TextModel model;
  std::optional<ChatTemplate> chat;  // of the model, or --chat-template; absent where there is none
  std::string name;
};
OpenedModel open_served_model(const ServeFlags& flags);

// Without grammars, context, numeric mode and hash, which come with the engine. REQUIRES: opened outlives it.
serve::ServedModel describe_model(const OpenedModel& opened);

}  // namespace lapidary
