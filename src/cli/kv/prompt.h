// What a command of the lab looks at: a model, its tokenizer where it has one, and the tokens of a prompt.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/load.h"
#include "formats/checkpoint.h"
#include "text/tokenizer.h"

namespace lapidary {

struct KvModel {
  Checkpoint checkpoint;
  std::optional<Tokenizer> tokenizer;  // absent: token ids only
};
KvModel open_kv_model(const std::string& model, const EngineFlags& flags);

// A token as valid UTF-8, special ones spelled out; empty for ids that no tokenizer knows.
std::string piece_text(const KvModel& model, int32_t id);
// The ids that the tokenizer knows, as text; empty without one.
std::string text_of(const KvModel& model, const std::vector<int32_t>& ids);
// The model's own stop tokens and the vocabulary's ends of turns: what `run` stops at.
std::vector<int32_t> stop_ids_of(const KvModel& model);
// Logits that have a token: models pad their vocabularies.
int64_t words_of(const KvModel& model);

// Text as it stands, under the tokenizer's BOS rule, or as the user's message in the model's chat template.
// Error(not_found) without a tokenizer.
std::vector<int32_t> tokens_of_text(const KvModel& model, const std::string& text, bool chat);

struct KvPromptFlags {
  std::optional<std::string> prompt, ids;
  bool chat = false;
  const char* mode() const { return ids ? "ids" : chat ? "chat" : "raw"; }
};
void add_kv_prompt_flags(CLI::App& command, KvPromptFlags& flags);
// Error(usage) when there is no prompt, an empty one, or two of them.
std::vector<int32_t> prompt_tokens(const KvModel& model, const KvPromptFlags& flags);

}  // namespace lapidary
