// The raw material of a tokenizer beside the weights of an HF folder.
#pragma once

#include <filesystem>

#include "formats/checkpoint.h"

namespace lapidary {

// Fills what `folder` holds: tokenizer.json, tokenizer_config.json, the chat template, and the ids of
// generation_config.json, which go before those of config.json that `out` may already have.
void read_text_assets(const std::filesystem::path& folder, int64_t vocab_size, TextAssets& out);

}  // namespace lapidary
