// One vocabulary in its two written forms: tokenizer.json and the tokenizer.ggml.* keys of a GGUF file.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace lapidary {

// tokenizer.json of a GGUF vocabulary. Error as Tokenizer::from_gguf has it.
std::string tokenizer_json(const GgufVocabulary& vocabulary);
// The settings beside it that loaders ask for. `max_position`: for model_max_length.
std::string tokenizer_config_json(const GgufVocabulary& vocabulary, int64_t max_position);

// A vocabulary with the text that it points into.
struct OwnedVocabulary {
  GgufVocabulary vocabulary;
  std::deque<std::string> texts;
  std::vector<std::string> notes;  // what was left out or filled in
};

struct VocabularyFacts {
  bool gemma4 = false;     // of the model: decides among spellings
  int64_t vocab_size = 0;  // rows of the embedding: tokens beyond are left out, missing ones filled in
  std::optional<int64_t> bos_id, eos_id, pad_id;  // of the model's configuration
  bool adds_bos = false;                          // what Tokenizer found out
};
// Error(unsupported) naming the part of tokenizer.json that GGUF has no word for.
OwnedVocabulary gguf_vocabulary_of_json(std::string_view tokenizer_json, const VocabularyFacts& facts);

}  // namespace lapidary
