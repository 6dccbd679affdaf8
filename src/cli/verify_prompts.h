// What `verify` runs: prompts of the user, or built-in ones that reach past every window.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "text/tokenizer.h"
#include "verify/verify.h"

namespace lapidary {

// A .jsonl file: one object a line with "text", "ids" or "messages", and "name" if wanted. Any other file:
// one prompt a line. Error(data / usage) naming file and line.
std::vector<VerifyPrompt> read_prompts(const std::string& path, const Checkpoint& checkpoint,
                                       const std::optional<Tokenizer>& tokenizer);

// Texts of several kinds, and one longer than the largest window if that is at most kLongestPrompt; random
// ids where there is no tokenizer.
std::vector<VerifyPrompt> built_in_prompts(const Checkpoint& checkpoint,
                                           const std::optional<Tokenizer>& tokenizer);

inline constexpr int64_t kLongestPrompt = 2048;

// Keys that the widest sliding layer sees; 0 when no layer has a window.
int64_t largest_window(const ModelSpec& spec);

}  // namespace lapidary
