// Any bytes as a grammar: the first says which kind and where the walk goes; of the fourth kind the others
// are choices of which a schema is made. What compiles must keep its word: masks allow something, what they
// allow is taken, and what is taken back is as if it had never come.
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/error.h"
#include "small_vocabulary.h"
#include "text/grammar.h"

namespace lapidary {
namespace {

void demand(bool condition) {
  if (!condition) std::abort();
}

// A schema that is mostly right: the engine's depths are behind JSON and known keywords.
class SchemaMaker {
 public:
  explicit SchemaMaker(std::string_view choices) : choices_(choices) {}

  std::string schema(int depth) {
    if (depth > 5 || choices_.empty())
      return pick({"{}", "true", "{\"type\":\"integer\"}", "{\"$ref\":\"#\"}"});
    std::string text = "{";
    if (depth == 0) text += "\"$defs\":{\"d\":" + schema(2) + "},";
    text += "\"type\":" + pick({"\"object\"", "\"array\"", "\"string\"", "\"integer\"", "\"number\"",
                                "[\"null\",\"string\"]", "[\"object\",\"array\"]", "\"boolean\""});
    for (unsigned n = next() % 4; n > 0; --n) text += "," + keyword(depth);
    return text + "}";
  }

 private:
  unsigned next() {
    if (choices_.empty()) return 0;
    const unsigned choice = static_cast<unsigned char>(choices_.front());
    choices_.remove_prefix(1);
    return choice;
  }
  std::string pick(std::initializer_list<const char*> from) { return *(from.begin() + next() % from.size()); }
  std::string name() {
    return pick({"\"a\"", "\"b\"", "\"ab\"", "\"\"", "\"\xC3\xA9\"", "\"a\\\"\\\\\"", "\"c d\""});
  }
  std::string number() {
    return pick({"0", "1", "-1", "2.5", "-0.001", "1e15", "-1e15", "99999", "1e-7", "3", "1e300", "0.1",
                 "12345678.9"});
  }
  std::string count() { return pick({"0", "1", "2", "3", "7", "40", "1000", "99999"}); }
  std::string pattern() {
    return pick({"\"^a+$\"", "\"[a-c]{2,3}\"", "\"(a|b)*c\"", "\"\\\\d+\"", "\".*\"", "\"^$\"", "\"^[^a]\"",
                 "\"\xC3\xA9|b\"", "\"a\"", "\"(a+)+$\""});
  }
  std::string value() {
    return pick({"1", "\"a\"", "null", "true", "[1,\"x\"]", "{\"a\":1}", "2.5", "\"\xC3\xA9\\n\"", "-0.0",
                 "1e300", "[]", "{}"});
  }
  template <class Item>
  std::string list(char open, char close, Item item) {
    std::string text(1, open);
    for (unsigned n = 1 + next() % 3, i = 0; i < n; ++i) text += (i > 0 ? "," : "") + item();
    return text + close;
  }
  std::string keyword(int depth) {
    const auto inner = [&] { return schema(depth + 1); };
    const auto member = [&] { return name() + ":" + inner(); };
    const auto values = [&] { return value(); };
    switch (next() % 26) {
      case 0: return "\"properties\":" + list('{', '}', member);
      case 1: return "\"required\":" + list('[', ']', [&] { return name(); });
      case 2: return "\"additionalProperties\":" + inner();
      case 3: return "\"patternProperties\":" + list('{', '}', [&] { return pattern() + ":" + inner(); });
      case 4: return "\"minProperties\":" + count();
      case 5: return "\"maxProperties\":" + count();
      case 6: return "\"items\":" + inner();
      case 7: return "\"prefixItems\":" + list('[', ']', inner);
      case 8: return "\"minItems\":" + count();
      case 9: return "\"maxItems\":" + count();
      case 10: return "\"minLength\":" + count();
      case 11: return "\"maxLength\":" + count();
      case 12: return "\"pattern\":" + pattern();
      case 13: return "\"format\":" + pick({"\"date\"", "\"uri\"", "\"email\"", "\"ipv6\"", "\"duration\""});
      case 14: return "\"minimum\":" + number();
      case 15: return "\"maximum\":" + number();
      case 16: return "\"exclusiveMinimum\":" + number();
      case 17: return "\"exclusiveMaximum\":" + number();
      case 18: return "\"multipleOf\":" + number();
      case 19: return "\"enum\":" + list('[', ']', values);
      case 20: return "\"const\":" + value();
      case 21: return "\"anyOf\":" + list('[', ']', inner);
      case 22: return "\"oneOf\":" + list('[', ']', inner);
      case 23: return "\"allOf\":" + list('[', ']', inner);
      case 24: return "\"$ref\":" + pick({"\"#\"", "\"#/$defs/d\"", "\"#/properties/a\""});
      default: return "\"title\":\"t\"";
    }
  }

  std::string_view choices_;
};

Grammar compile(const GrammarEnv& env, unsigned kind, std::string_view source) {
  switch (kind) {
    case 3: return env.json_schema(SchemaMaker(source).schema(0));
    case 0: return env.json_schema(source);
    case 1: return env.regex(source);
    default: return env.lark(source);
  }
}

void walk(const GrammarEnv& env, GrammarMatcher matcher, unsigned choice) {
  MaskBits mask(mask_words(env.vocab_size())), again(mask.size());
  for (int step = 0; step < 24 && !matcher.complete(); ++step) {
    matcher.mask(mask);
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < env.vocab_size(); ++id) {
      if (mask_has(mask, id)) allowed.push_back(id);
    }
    demand(!allowed.empty());
    choice = choice * 1103515245u + 12345u;
    const TokenId id = allowed[(choice >> 16) % allowed.size()];
    demand(mask_has(env.text_mask(), id) || (id == kSmallVocabularyStop && matcher.accepting()));
    demand(matcher.fork().consume(id));
    demand(matcher.consume(id));
    if (step % 3 == 0) {
      matcher.rollback(1);
      matcher.mask(again);
      demand(mask == again);
      demand(matcher.consume(id));
    }
  }
}

}  // namespace
}  // namespace lapidary

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lapidary;
  static const Tokenizer tokenizer = small_vocabulary();
  static const TokenId stop = kSmallVocabularyStop;
  static const GrammarEnv env(tokenizer, {&stop, 1});
  if (size == 0) return 0;
  const std::string_view source(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    walk(env, compile(env, data[0] % 4u, source).begin(), data[0]);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) std::abort();
  }
  return 0;
}
