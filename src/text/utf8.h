// UTF-8 at the borders: where text stops being text, and what stands in for the parts that are not.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lapidary {

// Length of the longest prefix of `bytes` that is whole, valid UTF-8 (no overlong forms, surrogates, or
// values past U+10FFFF).
size_t utf8_valid_prefix(std::string_view bytes);

// Moves what is certain from the front of `bytes` to the end of `text`: whole characters as they are, each
// maximal invalid part as U+FFFD. What is left in `bytes` is the start of a character that more bytes may
// complete (at most three bytes).
void utf8_drain(std::string& bytes, std::string& text);

// `bytes` with each maximal invalid part replaced by U+FFFD, an incomplete end included.
std::string utf8_lossy(std::string_view bytes);

}  // namespace lapidary
