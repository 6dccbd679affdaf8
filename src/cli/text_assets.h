// From the text parts of a checkpoint to a tokenizer.
#pragma once

#include "formats/checkpoint.h"
#include "formats/gguf.h"
#include "text/tokenizer.h"

namespace lapidary {

// tokenizer.ggml.model of a file that carries no vocabulary.
inline constexpr std::string_view kNoVocabulary = "none";
bool has_gguf_vocabulary(const GgufFile& file);

// The tokenizer.ggml.* keys of a GGUF file. Views point into the file's bytes.
GgufVocabulary gguf_vocabulary(const GgufFile& file);

bool has_tokenizer(const TextAssets& text);  // models without one can still be run on token ids

// Error(not_found) when the checkpoint carries neither tokenizer.json nor a GGUF vocabulary.
Tokenizer make_tokenizer(const TextAssets& text);

}  // namespace lapidary
