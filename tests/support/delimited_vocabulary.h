// A vocabulary for the golden Gemma 4 models that has the delimiters of thoughts and calls, and a chat
// template that uses them.
#pragma once

#include <string>

namespace lapidary::test {

// tokenizer.json: 320 tokens: specials, every byte, and fillers.
std::string delimited_tokenizer_json();
// Ids of the delimiters in it; byte b is kFirstByte + b.
inline constexpr int kEos = 1, kBos = 2, kChannel = 4, kChannelEnd = 5, kCall = 6, kCallEnd = 7,
                     kStringMark = 8, kTurnEnd = 10, kFirstByte = 12;

inline constexpr const char* kDelimitedTemplate =
    "<bos>{% if tools %}{% for t in tools %}(tool {{ t.function.name }}){% endfor %}{% endif %}"
    "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}"
    "<|turn>model\n{% if enable_thinking is defined and not enable_thinking "
    "%}<|channel>thought\n<channel|>{% endif %}";

}  // namespace lapidary::test
