#include "text/self_check.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/quote.h"

namespace lapidary {
namespace {

// Without a token for every byte a vocabulary may lack characters by design; plain English it must know.
constexpr std::string_view kPlain = "the capital of france is in the north";
constexpr std::array<std::string_view, 4> kAnyText = {
    "The capital of France is Paris; 12 + 345 = 357.",
    "for (int i = 0; i < n; ++i) {\n\treturn \"x\\n\";\n}\n\n",
    "Caf\xC3\xA9 d\xC3\xA9j\xC3\xA0 vu \xE2\x80\x94 na\xC3\xAFve \xC2\xBD",
    "\xE6\x9D\xB1\xE4\xBA\xAC\xE9\x83\xBD \xD0\x9C\xD0\xBE\xD1\x81\xD0\xBA\xD0\xB2\xD0\xB0 \xF0\x9F\x99\x82  "
    "end",
};

void check_text(const Tokenizer& tokenizer, std::string_view text, std::optional<TokenId> unk_id) {
  const std::vector<TokenId> ids = tokenizer.encode(text, false);
  const auto unknown = unk_id ? std::count(ids.begin(), ids.end(), *unk_id) : 0;
  ensure(unknown == 0, ErrorCode::data,
         "tokenizer self-check: {} encodes to {} tokens of which {} are unknown (id {}); this vocabulary "
         "does not fit its rules",
         quoted(text), ids.size(), unknown, unk_id.value_or(-1));
  std::string back = tokenizer.decode_bytes(ids, true);
  // SentencePiece vocabularies of the older kind put a blank in front of every text.
  if (!back.empty() && back.front() == ' ' && text.front() != ' ') back.erase(0, 1);
  ensure(back == text, ErrorCode::data,
         "tokenizer self-check: {} comes back as {}; this vocabulary does not fit its rules", quoted(text),
         quoted(back));
}

}  // namespace

void self_check(const Tokenizer& tokenizer, std::optional<TokenId> unk_id, bool knows_all_bytes) {
  check_text(tokenizer, kPlain, unk_id);
  if (knows_all_bytes) {
    for (std::string_view text : kAnyText) check_text(tokenizer, text, unk_id);
  }
  if (!tokenizer.adds_bos()) return;
  const TokenId bos = tokenizer.bos_id().value();
  const std::string name = tokenizer.token_name(bos);
  const std::vector<TokenId> ids = tokenizer.encode(name, true);
  ensure(ids == std::vector<TokenId>{bos}, ErrorCode::data,
         "tokenizer self-check: the beginning-of-text token {} (id {}) is not recognised in text; it must be "
         "a special token",
         quoted(name), bos);
}

}  // namespace lapidary
