#include "text/tokenizer_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "base/error.h"
#include "base/quote.h"

namespace lapidary {
namespace {

constexpr std::array<std::string_view, 12> kTexts = {
    "The capital of France is Paris.",
    "for (int i = 0; i < 10; ++i) { return 42; }",
    "def f(x):\n    if x > 0:\n        return x\n\n\n# end\n",
    "1234567890 3.14159 0x7f 1e-6",
    "  two blanks, three   blanks,\ttab,\r\nline",
    "Caf\xC3\xA9 d\xC3\xA9j\xC3\xA0 vu, \xC3\x9C"
    "bergr\xC3\xB6\xC3\x9F"
    "e, \xC5\x82\xC3\xB3\xC5\xBC"
    "ko",
    "\xE6\x9D\xB1\xE4\xBA\xAC\xE9\x83\xBD\xE3\x81\xAF\xE6\x99\xB4\xE3\x82\x8C\xE3\x80\x82",
    "\xD0\x9C\xD0\xBE\xD1\x81\xD0\xBA\xD0\xB2\xD0\xB0 "
    "\xD8\xA7\xD9\x84\xD9\x82\xD8\xA7\xD9\x87\xD8\xB1\xD8\xA9",
    "\xF0\x9F\x99\x82\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB \xF0\x9F\x87\xAB\xF0\x9F\x87\xB7",
    "{\"a\": [1, 2, {\"b\": null}], \"c\": \"\\u00e9\"}",
    "https://example.org/path?x=1&y=%20#part",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n\n\n\n\n\n\n\n",
};

// What published tokenizers say of known texts. A vocabulary is recognised by one special token and its size,
// give or take the tokens that publishers append (Gemma 3 has 262144 or 262145).
constexpr int64_t kAppended = 128;
struct KnownAnswer {
  int64_t vocab_size;
  std::string_view marker, text;
  std::vector<TokenId> ids;
};

const std::vector<KnownAnswer>& known_answers() {
  constexpr std::string_view kCapital = "The capital of France is",
                             kLoop = "for (int i = 0; i < 10; ++i) { return 42; }";
  const std::vector<TokenId> gemma_loop = {1708,   568, 720,    858,    578,    236743, 236771, 236793,
                                           858,    655, 236743, 236770, 236771, 236793, 12215,  236747,
                                           236768, 642, 994,    236743, 236812, 236778, 236793, 682};
  static const std::vector<KnownAnswer> answers = {
      {49152, "<|im_start|>", kCapital, {504, 3575, 282, 4649, 314}},
      {49152, "<|im_start|>", kLoop, {1710, 365,  591, 2056, 446, 216,  32,   43,  2056, 2067, 216, 33,  32,
                                      43,   1232, 27,  89,   25,  1662, 1003, 216, 36,   34,   43,  4029}},
      {262144, "<start_of_turn>", kCapital, {818, 5279, 529, 7001, 563}},
      {262144, "<start_of_turn>", kLoop, gemma_loop},
      {262144, "<|turn>", kCapital, {818, 5279, 529, 7001, 563}},
      {262144, "<|turn>", kLoop, gemma_loop},
      {128256, "<|begin_of_text|>", kCapital, {791, 6864, 315, 9822, 374}},
  };
  return answers;
}

TokenizerCheck texts_come_back(const Tokenizer& tokenizer) {
  TokenizerCheck check{"texts come back", true, fmt::format("{} texts, byte for byte", kTexts.size())};
  for (const std::string_view text : kTexts) {
    std::string back = tokenizer.decode_bytes(tokenizer.encode(text, false), true);
    if (back != text && back == fmt::format(" {}", text))
      continue;  // older SentencePiece puts a blank in front
    if (back == text) continue;
    return {check.name, false, fmt::format("{} comes back as {}", quoted(text, 60), quoted(back, 60))};
  }
  return check;
}

TokenizerCheck fits_the_model(const Tokenizer& tokenizer, const VocabularyClaims& claims) {
  const int64_t size = tokenizer.vocab_size();
  const std::string detail = fmt::format("{} tokens, {} rows of the embedding", size, claims.vocab_size);
  return {"fits the embedding table", size <= claims.vocab_size, detail};
}

TokenizerCheck special_ids(const Tokenizer& tokenizer, const VocabularyClaims& claims) {
  TokenizerCheck check{"special ids", true, ""};
  const auto look = [&](std::string_view what, int64_t id) {
    if (!check.passed) return;
    if (id < 0 || id >= tokenizer.vocab_size()) {
      check = {check.name, false,
               fmt::format("{} {}: expected an id below {}", what, id, tokenizer.vocab_size())};
      return;
    }
    const auto token = static_cast<TokenId>(id);
    if (!tokenizer.is_special(token)) {
      check = {check.name, false,
               fmt::format("{} {} is {}, which is no special token", what, id,
                           quoted(tokenizer.token_name(token), 40))};
      return;
    }
    check.detail +=
        fmt::format("{}{} {} {}", check.detail.empty() ? "" : ", ", what, id, tokenizer.token_name(token));
  };
  if (claims.bos_id) look("bos", *claims.bos_id);
  if (claims.eos_id) look("eos", *claims.eos_id);
  for (const int64_t id : claims.stop_ids) {
    if (id != claims.eos_id) look("stop", id);
  }
  if (check.detail.empty()) check.detail = "the model names none";
  return check;
}

TokenizerCheck known_texts(const Tokenizer& tokenizer) {
  TokenizerCheck check{"known texts", true, ""};
  int known = 0;
  for (const KnownAnswer& answer : known_answers()) {
    const int64_t appended = tokenizer.vocab_size() - answer.vocab_size;
    if (appended < 0 || appended > kAppended || !tokenizer.find(answer.marker)) continue;
    const std::vector<TokenId> ids = tokenizer.encode(answer.text, false);
    if (ids != answer.ids) {
      return {check.name, false,
              fmt::format("{}: expected ids {}, got {}", quoted(answer.text), answer.ids, ids)};
    }
    ++known;
  }
  check.detail = known == 0 ? "not judged: the answers of this vocabulary are not known"
                            : fmt::format("{} encode to the ids of the published tokenizer", known);
  return check;
}

}  // namespace

std::vector<TokenizerCheck> check_tokenizer(const Tokenizer& tokenizer, const VocabularyClaims& claims) {
  return {fits_the_model(tokenizer, claims), special_ids(tokenizer, claims), texts_come_back(tokenizer),
          known_texts(tokenizer)};
}

}  // namespace lapidary
