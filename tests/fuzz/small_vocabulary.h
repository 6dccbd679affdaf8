// A small vocabulary with Gemma 4's delimiters and a token for every byte, made in no time.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace lapidary {

inline constexpr TokenId kFirstByteToken = 16, kSmallVocabularyStop = 1;

inline Tokenizer small_vocabulary() {
  std::vector<std::string> tokens = {
      "<pad>",        "<eos>",  "<bos>",   "<unk>",   "<|channel>",       "<channel|>",       "<|tool_call>",
      "<tool_call|>", "<|\"|>", "<|turn>", "<turn|>", "<|tool_response>", "<tool_response|>", "<|think|>",
      "<|tool>",      "<tool|>"};
  std::vector<int64_t> types(tokens.size(), 3);
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(fmt::format("<0x{:02X}>", byte));
    types.push_back(6);
  }
  for (const char* text : {"t", "h", "o", "u", "g", "th", "tho", "thoug", "\"", "a", "\":", "{\"", "1", "12",
                           "123", "\xE2\x96\x81"}) {
    tokens.emplace_back(text);
    types.push_back(1);
  }
  GgufVocabulary vocabulary;
  vocabulary.model = "gemma4";
  vocabulary.tokens.assign(tokens.begin(), tokens.end());
  vocabulary.types = types;
  vocabulary.merges = {"t h", "th o"};
  vocabulary.bos_id = 2;
  vocabulary.eos_id = kSmallVocabularyStop;
  vocabulary.unk_id = 3;
  return Tokenizer::from_gguf(vocabulary);
}

}  // namespace lapidary
