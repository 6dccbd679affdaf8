// Every schema golden through real vocabularies, token by token: what must be accepted, what must not.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "base/error.h"
#include "text/goldens.h"
#include "text/grammar.h"

namespace lapidary {
namespace {

using goldens::text_of;

struct Vocabulary {
  const Tokenizer& tokenizer;
  GrammarEnv env;
};

const Vocabulary& vocabulary(const std::string& model) {
  static std::map<std::string, Vocabulary> made;
  if (const auto found = made.find(model); found != made.end()) return found->second;
  const Tokenizer& tokenizer = goldens::tokenizer(model, "json");
  std::vector<TokenId> stops = tokenizer.turn_end_ids();
  if (model == "gemma4") stops.push_back(1);
  return made.emplace(model, Vocabulary{tokenizer, GrammarEnv(tokenizer, stops)}).first->second;
}

Grammar grammar_of(const GrammarEnv& env, const std::string& line) {
  const auto row = boost::json::parse(line).as_object();
  if (row.at("kind") == "regex") return env.regex(text_of(row.at("pattern")));
  EXPECT_EQ(row.at("kind"), "json_schema");
  return env.json_schema(goldens::raw_field(line, "schema"));
}

// Walks the masks: every id must be in the mask before it is taken, and a stop token at the end.
bool walks(const GrammarEnv& env, GrammarMatcher matcher, std::span<const TokenId> ids) {
  MaskBits mask(mask_words(env.vocab_size()));
  for (const TokenId id : ids) {
    if (matcher.complete()) return false;
    matcher.mask(mask);
    if (!mask_has(mask, id)) return false;
    EXPECT_TRUE(matcher.consume(id)) << "token " << id << " was in the mask and is refused";
  }
  const bool whole = matcher.accepting();
  if (!matcher.complete()) {
    matcher.mask(mask);
  } else {
    matcher.mask(mask);
    MaskBits stops(mask.size());
    for (const TokenId id : env.stop_ids()) mask_add(stops, id);
    EXPECT_EQ(mask, stops);
  }
  for (const TokenId stop : env.stop_ids()) EXPECT_EQ(mask_has(mask, stop), whole);
  return whole;
}

// The same without masks, `next` ids at a time.
template <class Next>
bool consumes(GrammarMatcher matcher, std::span<const TokenId> ids, Next next) {
  while (!ids.empty()) {
    const size_t n = std::min<size_t>(next(), ids.size());
    if (matcher.consume(ids.first(n)) != n) return false;
    ids = ids.subspan(n);
  }
  return matcher.accepting();
}

class SchemaGolden : public testing::TestWithParam<const char*> {};

TEST_P(SchemaGolden, AcceptsAndRejectsTokenByToken) {
  const auto& [tokenizer, env] = vocabulary(GetParam());
  std::mt19937 random(5);
  size_t accepted = 0, rejected = 0, optional = 0;
  for (const std::string& line : goldens::read_lines("schema/cases.jsonl")) {
    const auto row = boost::json::parse(line).as_object();
    SCOPED_TRACE(text_of(row.at("id")));
    const Grammar grammar = grammar_of(env, line);
    const auto verdicts = [&](const std::string& text, bool expected) {
      SCOPED_TRACE(text);
      const std::vector<TokenId> ids = tokenizer.encode(text, false);
      if (tokenizer.decode_bytes(ids, true) != text) {  // SmolLM2 lacks some control characters
        EXPECT_FALSE(expected);
        return;
      }
      EXPECT_EQ(walks(env, grammar.begin(), ids), expected);
      EXPECT_EQ(consumes(grammar.begin(), ids, [&] { return ids.size() + 1; }), expected);
      for (int round = 0; round < 3; ++round)
        EXPECT_EQ(consumes(grammar.begin(), ids, [&] { return 1 + random() % 4; }), expected);
    };
    for (const auto& text : row.at("accept").as_array()) verdicts(text_of(text), true), ++accepted;
    for (const auto& text : row.at("reject").as_array()) verdicts(text_of(text), false), ++rejected;
    const auto* refused = row.if_contains("llguidance_refuses_optional");
    for (const auto& text : row.at("optional").as_array()) {
      const bool refuses =
          refused != nullptr && std::count(refused->as_array().begin(), refused->as_array().end(), text) > 0;
      verdicts(text_of(text), !refuses), ++optional;
    }
  }
  EXPECT_GT(accepted, 100u);
  EXPECT_GT(rejected, 180u);
  EXPECT_GT(optional, 8u);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, SchemaGolden, testing::Values("gemma4", "smollm2"),
                         [](const auto& model) { return std::string(model.param); });

// A walk at random through the masks ends in a text that the schema's own rules accept.
TEST(Grammar, RandomWalksThroughTheMasksAreWholeTexts) {
  const auto& [tokenizer, env] = vocabulary("smollm2");
  const Grammar grammar = env.json_schema(
      R"({"type":"object","properties":{"n":{"type":"integer","minimum":3,"maximum":40},"e":{"enum":["red","gr\u00fcn"]},)"
      R"("l":{"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":2}},"required":["n","e","l"],"additionalProperties":false})");
  std::mt19937 random(11);
  MaskBits mask(mask_words(env.vocab_size()));
  for (int walk = 0; walk < 40; ++walk) {
    GrammarMatcher matcher = grammar.begin();
    std::vector<TokenId> ids;
    while (!matcher.complete()) {
      ASSERT_LT(ids.size(), 400u);
      matcher.mask(mask);
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < env.vocab_size(); ++id) {
        if (mask_has(mask, id)) allowed.push_back(id);
      }
      ASSERT_FALSE(allowed.empty());
      ids.push_back(allowed[random() % allowed.size()]);
      ASSERT_TRUE(matcher.consume(ids.back()));
    }
    const std::string text = tokenizer.decode_bytes(ids, true);
    SCOPED_TRACE(text);
    const auto value = boost::json::parse(text).as_object();
    EXPECT_EQ(value.size(), 3u);
    EXPECT_GE(value.at("n").as_int64(), 3);
    EXPECT_LE(value.at("n").as_int64(), 40);
    EXPECT_TRUE(value.at("e") == "red" || value.at("e") == "gr\xC3\xBCn");
    EXPECT_GE(value.at("l").as_array().size(), 1u);
    EXPECT_LE(value.at("l").as_array().size(), 2u);
  }
}

TEST(Grammar, ForkedMatchersGoTheirOwnWays) {
  const auto& [tokenizer, env] = vocabulary("smollm2");
  GrammarMatcher one = env.regex("a(b|c)d").begin();
  ASSERT_TRUE(one.consume(*tokenizer.find("a")));
  GrammarMatcher two = one.fork();
  EXPECT_TRUE(one.consume(*tokenizer.find("b")));
  EXPECT_TRUE(two.consume(*tokenizer.find("c")));
  EXPECT_TRUE(one.consume(*tokenizer.find("d")));
  EXPECT_TRUE(one.complete());
  EXPECT_FALSE(two.accepting());
}

TEST(Grammar, RollbackTakesTokensBackEvenTheLast) {
  const auto& [tokenizer, env] = vocabulary("smollm2");
  const TokenId stop = env.stop_ids()[0];
  for (const char* pattern : {"ab", "ab*"}) {  // nothing can follow; more could
    SCOPED_TRACE(pattern);
    GrammarMatcher matcher = env.regex(pattern).begin();
    MaskBits before(mask_words(env.vocab_size())), after(before);
    matcher.mask(before);
    const std::vector<TokenId> ids = {*tokenizer.find("a"), *tokenizer.find("b"), stop};
    EXPECT_EQ(matcher.consume(ids), 3u);
    EXPECT_TRUE(matcher.complete());
    EXPECT_FALSE(matcher.consume(stop)) << "a second end";
    matcher.rollback(1);
    EXPECT_TRUE(matcher.accepting());
    EXPECT_TRUE(matcher.consume(stop));
    matcher.rollback(3);
    matcher.mask(after);
    EXPECT_EQ(before, after);
    EXPECT_TRUE(matcher.consume(ids[0]));
    EXPECT_THROW(matcher.rollback(5), Error);
  }
}

TEST(Grammar, ForcedTokensAreThoseThatTheTokenizerWouldMake) {
  for (const char* model : {"gemma4", "smollm2"}) {
    const auto& [tokenizer, env] = vocabulary(model);
    GrammarMatcher matcher = env.regex("The capital of France is (Paris|Rome)\\.").begin();
    std::vector<TokenId> forced = matcher.forced();
    const std::string text = tokenizer.decode_bytes(forced, true);
    EXPECT_TRUE(std::string("The capital of France is ").starts_with(text)) << text;
    EXPECT_GE(forced.size(), 4u) << text;
    EXPECT_EQ(matcher.consume(forced), forced.size());
    EXPECT_TRUE(matcher.forced().empty());  // a choice
    EXPECT_TRUE(matcher.consume(tokenizer.encode(" Paris", false).front()));
  }
}

TEST(Grammar, NeverAllowsSpecialTokensWithinTheText) {
  const auto& [tokenizer, env] = vocabulary("gemma4");
  for (const char* schema : {R"({"type":"string"})", "{}"}) {
    GrammarMatcher matcher = env.json_schema(schema).begin();
    MaskBits mask(mask_words(env.vocab_size()));
    for (const std::string part : {"", "\"", "a"}) {
      for (const TokenId id : tokenizer.encode(part, false)) ASSERT_TRUE(matcher.consume(id));
      matcher.mask(mask);
      for (TokenId id = 0; id < env.vocab_size(); ++id) {
        if (tokenizer.is_special(id)) {
          ASSERT_FALSE(mask_has(mask, id)) << tokenizer.token_name(id);
        }
      }
    }
    EXPECT_FALSE(matcher.consume(48));
    EXPECT_FALSE(matcher.consume(-1));
    EXPECT_FALSE(matcher.consume(300000));
    EXPECT_TRUE(mask_has(mask, 212)) << "</s> is text";
    EXPECT_TRUE(matcher.consume(212));
  }
}

TEST(Grammar, LarkDescribesTextsAcrossRules) {
  const auto& [tokenizer, env] = vocabulary("smollm2");
  const Grammar grammar =
      env.lark("// a list of sums\nstart: sum (\", \" sum)*\nsum: NUMBER \" + \" NUMBER\nNUMBER: /[0-9]+/\n");
  const auto accepts = [&](const char* text) {
    return walks(env, grammar.begin(), tokenizer.encode(text, false));
  };
  EXPECT_TRUE(accepts("1 + 2"));
  EXPECT_TRUE(accepts("10 + 22, 3 + 4, 5 + 6"));
  EXPECT_FALSE(accepts("1 + "));
  EXPECT_FALSE(accepts("1 + 2, "));
  const Grammar mixed = env.lark(
      "start: \"answer: \" %json "
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"],"
      "\"additionalProperties\":false}\n");
  EXPECT_TRUE(walks(env, mixed.begin(), tokenizer.encode("answer: {\"a\":1}", false)));
  EXPECT_FALSE(walks(env, mixed.begin(), tokenizer.encode("answer: {\"a\":\"1\"}", false)));
}

TEST(Grammar, OutlivesItsTokenizerAndEnvironment) {
  std::optional<GrammarMatcher> matcher;
  std::vector<TokenId> ids;
  {
    const Tokenizer tokenizer = Tokenizer::from_json(goldens::tokenizer_json("smollm2"));
    ids = tokenizer.encode("yes", false);
    matcher.emplace(GrammarEnv(tokenizer, tokenizer.turn_end_ids()).regex("yes|no").begin());
  }
  EXPECT_EQ(matcher->consume(ids), ids.size());
  EXPECT_TRUE(matcher->accepting());
}

// What the output parser reads as a call is what the grammar of calls allows.
TEST(Grammar, CallBodiesAreCalls) {
  const auto& [tokenizer, env] = vocabulary("gemma4");
  const std::vector<std::string> names = {"get_weather", "fs.read-file"};
  const Grammar grammar = env.call_body(names);
  const auto accepts = [&](std::string_view text) {
    return walks(env, grammar.begin(), tokenizer.encode(text, true));
  };
  EXPECT_TRUE(accepts("call:get_weather{}"));
  EXPECT_TRUE(
      accepts("call:fs.read-file{path:<|\"|>/a {b}, "
              "\"c\"\n<|\"|>,n:3,x:-1.5e3,l:[1,[true,null],{}],o:{k:<|\"|><|\"|>}}"));
  EXPECT_FALSE(accepts("call:other{}"));
  EXPECT_FALSE(accepts("call:get_weather{a:}"));
  EXPECT_FALSE(accepts("call:get_weather{a:1e999}"));
  EXPECT_FALSE(accepts("call:get_weather{a:1"));
  EXPECT_FALSE(accepts("call:get_weather{a:<|\"|>x<|turn>"));
  EXPECT_FALSE(accepts("call:get_weather{} "));
  EXPECT_FALSE(accepts("get_weather{}"));
  EXPECT_TRUE(accepts("call:get_weather{a:" + std::string(31, '[') + std::string(31, ']') + "}"));
  EXPECT_FALSE(accepts("call:get_weather{a:" + std::string(32, '[') + std::string(32, ']') + "}"));
  for (const char* bad : {"", "a b", "caf\xC3\xA9", "a\"", "a{"})
    EXPECT_THROW(env.call_body(std::vector<std::string>{bad}), Error) << bad;
  EXPECT_THROW(env.call_body(std::vector<std::string>{}), Error);
  EXPECT_THROW(vocabulary("smollm2").env.call_body(names), Error);
}

}  // namespace
}  // namespace lapidary
