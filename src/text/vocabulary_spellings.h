// Spellings that both directions between tokenizer.json and GGUF use.
#pragma once

#include <string_view>

namespace lapidary {

inline constexpr std::string_view kVisibleBlank = "\xE2\x96\x81";  // U+2581, SentencePiece's

// Llama 3's split, as its tokenizer.json has it.
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Normalizers and pre-tokenizers of tokenizer.json.
inline constexpr std::string_view kShowBlanks =
    R"({"type":"Replace","pattern":{"String":" "},"content":"▁"})";
inline constexpr std::string_view kPrefixAndShowBlanks =
    R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]})";
inline constexpr std::string_view kSplitAtBlanks =
    R"({"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false})";
inline constexpr std::string_view kSmollmSplit =
    R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}]})";

}  // namespace lapidary
