// Tokenizer, template and token ids of a checkpoint in the words of another format.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/convert.h"
#include "text/tokenizer.h"

namespace lapidary {

struct TextConversion {
  ConvertedText text;
  std::vector<std::string> notes;  // what is not carried over, or only in other words
};

// Ends in a self-check: what was written reads known texts into the same ids as the source does. The result
// may borrow from the checkpoint.
TextConversion convert_text(const Checkpoint& source, ModelFormat format);

}  // namespace lapidary
