// Any bytes as a tokenizer: tokenizer.json up to a NUL, then text to encode. Input that starts with 'V' is
// the vocabulary of a GGUF file instead, in lines: "V MODEL PRE", "TYPE SPELLING" for each token, "M LEFT
// RIGHT" for each merge. What loads must keep its word.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

void demand(bool condition) {
  if (!condition) std::abort();
}

std::string_view take(std::string_view& text, char end) {
  const size_t at = std::min(text.find(end), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return part;
}

GgufVocabulary vocabulary_of(std::string_view lines) {
  GgufVocabulary vocabulary;
  std::string_view head = take(lines, '\n').substr(1);
  while (head.starts_with(' ')) head.remove_prefix(1);
  vocabulary.model = take(head, ' ');
  vocabulary.pre = head;
  vocabulary.bos_id = 1;
  while (!lines.empty()) {
    std::string_view line = take(lines, '\n');
    const std::string_view first = take(line, ' ');
    if (first == "M") {
      vocabulary.merges.push_back(line);
      continue;
    }
    int64_t type = 0;
    std::from_chars(first.data(), first.data() + first.size(), type);
    vocabulary.types.push_back(type);
    vocabulary.tokens.push_back(line);
    vocabulary.scores.push_back(static_cast<double>(line.size()));
  }
  return vocabulary;
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {true, false}) {
    const std::vector<TokenId> ids = tokenizer.encode_lossy(text, parse_special);
    StreamDecoder stream(tokenizer, true);
    std::string streamed;
    for (const TokenId id : ids) {
      demand(id >= 0 && id < tokenizer.vocab_size());
      streamed += stream.push(id);
      demand(utf8_valid_prefix(streamed) == streamed.size());
    }
    streamed += stream.flush();
    demand(streamed == tokenizer.decode(ids, true));
  }
  const std::vector<TokenId> prompt = tokenizer.prompt_ids(utf8_lossy(text));
  if (tokenizer.adds_bos()) demand(!prompt.empty() && prompt.front() == tokenizer.bos_id());
  for (const TokenId id : tokenizer.turn_end_ids()) demand(tokenizer.is_special(id));
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) (void)tokenizer.token_bytes(id);
}

}  // namespace
}  // namespace lapidary

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lapidary;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const std::string_view file = take(input, '\0');
    if (file.starts_with('V')) {
      use(Tokenizer::from_gguf(vocabulary_of(file)), input);
    } else {
      use(Tokenizer::from_json(file, 1), input);
    }
  } catch (const Error& error) {
    demand(error.code() != ErrorCode::internal);  // a panic inside the library
  }
  return 0;
}
