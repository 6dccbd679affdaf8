// Schemas, expressions and grammars that mean harm, or ask for what is not enforced: an error that says what
// and where, or a grammar that works, in bounded time and memory.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <functional>

#include "base/error.h"
#include "text/goldens.h"
#include "text/grammar.h"

namespace lapidary {
namespace {

const GrammarEnv& env() {
  static const GrammarEnv made = [] {
    const Tokenizer& tokenizer = goldens::tokenizer("smollm2", "json");
    return GrammarEnv(tokenizer, tokenizer.turn_end_ids());
  }();
  return made;
}

void expect_error(const std::function<Grammar()>& make, ErrorCode code, const std::string& part) {
  try {
    make();
    ADD_FAILURE() << "no error, expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << error.what() << "\nexpected: " << part;
    EXPECT_LT(std::string_view(error.what()).size(), 700u);
    EXPECT_EQ(std::string_view(error.what()).find("backtrace"), std::string::npos);
  }
}

void schema_error(const std::string& schema, ErrorCode code, const std::string& part) {
  SCOPED_TRACE(schema.substr(0, 200));
  expect_error([&] { return env().json_schema(schema); }, code, part);
}

void regex_error(const std::string& pattern, ErrorCode code, const std::string& part) {
  SCOPED_TRACE(pattern.substr(0, 200));
  expect_error([&] { return env().regex(pattern); }, code, part);
}

void lark_error(const std::string& source, ErrorCode code, const std::string& part) {
  SCOPED_TRACE(source.substr(0, 200));
  expect_error([&] { return env().lark(source); }, code, part);
}

int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// Builds it and takes steps, always the first or the last token that is allowed. Both may end in an
// Error(limit); nothing may take long or much. The bounds are far above what any of it takes.
void bounded(const std::function<Grammar()>& make) {
  const auto start = std::chrono::steady_clock::now();
  const int64_t before = peak_bytes();
  try {
    GrammarMatcher matcher = make().begin();
    MaskBits mask(mask_words(env().vocab_size()));
    for (int step = 0; step < 60 && !matcher.complete(); ++step) {
      matcher.mask(mask);
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < env().vocab_size(); ++id) {
        if (mask_has(mask, id)) allowed.push_back(id);
      }
      ASSERT_FALSE(allowed.empty());
      ASSERT_TRUE(matcher.consume(step % 2 == 0 ? allowed.back() : allowed.front()));
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::limit) << error.what();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 60.0);
  EXPECT_LT(peak_bytes() - before, int64_t{700} << 20);
}

std::string repeated(const std::string& part, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += part;
  return all;
}

TEST(HostileSchema, NotJson) {
  for (const char* text :
       {"", " ", "{", "{\"type\":}", "{'type':'string'}", "nul", "{} {}", "\xFF", "[1,]"}) {
    SCOPED_TRACE(text);
    expect_error([&] { return env().json_schema(text); }, ErrorCode::data,
                 text[0] == '\xFF' ? "not UTF-8 at byte 0" : "not JSON");
  }
  schema_error("[]", ErrorCode::data, "#: expected an object, true or false, got []");
  schema_error("\"string\"", ErrorCode::data, "#: expected an object, true or false");
}

TEST(HostileSchema, UnsupportedKeywordsAreNamedWithTheirPlace) {
  for (const char* keyword :
       {"not", "if", "then", "else", "contains", "minContains", "uniqueItems", "propertyNames",
        "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems",
        "$dynamicRef", "$recursiveRef", "x-guidance", "nullable", "typ", "Type"}) {
    const std::string inner = fmt::format(
        "{{\"type\":\"object\",\"properties\":{{\"a/b\":{{\"anyOf\":[{{}},{{\"{}\":{{}}}}]}}}}}}", keyword);
    schema_error(inner, ErrorCode::unsupported,
                 fmt::format("#/properties/a~1b/anyOf/1/{0}: the keyword \"{0}\" is not supported", keyword));
  }
}

TEST(HostileSchema, ValuesOfTheWrongKindAreNamedWithTheirPlace) {
  schema_error(R"({"type":"strin"})", ErrorCode::data, "#/type: expected one or several of null, boolean");
  schema_error(R"({"type":[]})", ErrorCode::data, "#/type: expected");
  schema_error(R"({"type":["string",1]})", ErrorCode::data, "#/type: expected");
  schema_error(R"({"properties":[]})", ErrorCode::data,
               "#/properties: expected an object of schemas, got []");
  schema_error(R"({"properties":{"a":3}})", ErrorCode::data,
               "#/properties/a: expected an object, true or false, got 3");
  schema_error(R"({"items":[{"minItems":-1}]})", ErrorCode::data,
               "#/items/0/minItems: expected a whole number from 0 on, got -1");
  schema_error(R"({"anyOf":{}})", ErrorCode::data, "#/anyOf: expected a list of schemas");
  schema_error(R"({"enum":[]})", ErrorCode::data, "#/enum: expected a list of values, got []");
  schema_error(R"({"enum":"a"})", ErrorCode::data, "#/enum: expected a list of values");
  schema_error(R"({"required":"a"})", ErrorCode::data, "#/required: expected a list of names");
  schema_error(R"({"pattern":1})", ErrorCode::data, "#/pattern: expected a regular expression");
  schema_error(R"({"multipleOf":0})", ErrorCode::data, "#/multipleOf: expected a number above 0");
  schema_error(R"({"minimum":"1"})", ErrorCode::data, "#/minimum: expected a number");
  schema_error(R"({"format":"colour"})", ErrorCode::unsupported,
               "#/format: unknown format \"colour\"; known are date-time");
}

TEST(HostileSchema, FaultsThatOnlyTheEngineSeesAreLocated) {
  schema_error(
      R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"string","pattern":"("}}},"required":["a"]})",
      ErrorCode::data, "#/properties/a/items: regex parse error: ( ^ error: unclosed group");
  schema_error(
      R"({"$defs":{"d":{"type":"integer"}},"anyOf":[{"$ref":"#/$defs/d"},{"type":"string","pattern":"(?=a)b"}]})",
      ErrorCode::unsupported, "#/anyOf/1: regex parse error");
  schema_error(R"({"type":"object","properties":{"p":{"oneOf":[{"type":"string"},{"minLength":3}]}}})",
               ErrorCode::unsupported,
               "#/properties/p: oneOf is only supported where its parts cannot overlap");
  schema_error(R"({"type":"string","minLength":5,"maxLength":2})", ErrorCode::data,
               "#: Unsatisfiable schema: minLength (5)");
  schema_error(R"({"type":"integer","minimum":5,"maximum":2})", ErrorCode::data, "#: Unsatisfiable schema");
  schema_error("false", ErrorCode::data, "#: Unsatisfiable schema: schema is false");
}

TEST(HostileSchema, References) {
  for (const char* target :
       {"http://example.com/s.json", "file:///etc/passwd", "other.json#/a", "//host/x", ""}) {
    schema_error(fmt::format(R"({{"items":{{"$ref":"{}"}}}})", target), ErrorCode::unsupported,
                 "#/items/$ref: ");
  }
  schema_error(R"({"$ref":1})", ErrorCode::data, "#/$ref: expected a reference");
  schema_error(R"({"$ref":"#/$defs/x"})", ErrorCode::data, "'/$defs/x' does not exist");
  // References that only lead back to themselves describe no text.
  schema_error(R"({"$ref":"#"})", ErrorCode::data, "#: no text of this vocabulary fits it");
  schema_error(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
               ErrorCode::data, "no text");
  schema_error(R"({"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"},{"type":"object"}]}},"$ref":"#/$defs/a"})",
               ErrorCode::unsupported, "circular references");
  // What must hold itself never ends: such a text is only cut off.
  bounded([] {
    return env().json_schema(
        R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"],"additionalProperties":false})");
  });
}

TEST(HostileSchema, DepthAndSize) {
  schema_error(repeated("[", 100000), ErrorCode::limit, "nested 100000 deep, the limit is 64");
  schema_error(repeated("{\"items\":", 65) + "{}" + repeated("}", 65), ErrorCode::limit,
               "nested 66 deep, the limit is 64");
  EXPECT_NO_THROW(env().json_schema(repeated("{\"items\":", 60) + "{}" + repeated("}", 60)));
  schema_error("{\"title\":\"" + std::string(size_t{10} << 20, 'x') + "\"}", ErrorCode::limit,
               "bytes, the limit is 1048576");
  schema_error(R"({"type":"string","maxLength":1000000})", ErrorCode::limit,
               "#/maxLength: 1000000, the limit is 100000");
  schema_error(R"({"type":"array","minItems":18446744073709551615})", ErrorCode::limit,
               "#/minItems: 18446744073709551615, the limit");
  schema_error(R"({"type":["null","integer"],"minimum":-1e300})", ErrorCode::limit,
               "#/minimum: -1e+300, integers are bound up to 2^53");
  schema_error(R"({"type":"array","minItems":1e300})", ErrorCode::data,
               "#/minItems: expected a whole number");
  schema_error("{\"anyOf\":[" + repeated("{},", 60000) + "{}]}", ErrorCode::limit, "more than 50000 schemas");
  schema_error("{\"enum\":[" + repeated("1,", 20000) + "1]}", ErrorCode::limit,
               "#/enum: 20001 values, the limit is 10000");
  schema_error("{\"pattern\":\"" + std::string(20000, 'a') + "\"}", ErrorCode::limit,
               "#/pattern: 20000 bytes, the limit is 4096");
}

TEST(HostileSchema, HeavyOnesAreBounded) {
  std::string names, wide = "{\"type\":\"object\",\"properties\":{";
  for (int i = 0; i < 10000; ++i)
    names += fmt::format("{}\"{}{}\"", i == 0 ? "" : ",", std::string(60, 'n'), i * 7919);
  for (int i = 0; i < 3000; ++i)
    wide += fmt::format("{}\"p{}\":{{\"type\":\"string\"}}", i == 0 ? "" : ",", i);
  const std::vector<std::string> schemas = {
      "{\"enum\":[" + names + "]}",
      wide + "}}",
      R"({"type":"string","maxLength":100000})",
      R"({"type":"string","minLength":99999,"maxLength":100000})",
      R"({"type":"array","minItems":100000,"items":{"type":"integer"}})",
      R"({"type":"array","minItems":50000,"maxItems":100000,"items":{"type":"array","minItems":1000,"maxItems":100000}})",
      R"({"type":"integer","minimum":-9007199254740992,"maximum":9007199254740992})",
      R"({"type":"integer","multipleOf":982451653})",
      R"({"type":"number","multipleOf":1e-300})",
      R"({"type":"number","minimum":1e-300,"maximum":1.7e308})",
      R"({"type":"string","pattern":"(a+)+$"})",
      R"({"type":"string","pattern":"^(a{1,1000}){1,1000}$"})",
      R"({"type":"string","pattern":"(.*a){50}"})",
      R"({"type":"object","patternProperties":{"^(a|b)*c{100}$":{},"^a*$":{}},"minProperties":3,"maxProperties":1000})",
      R"({"type":"object","minProperties":90000,"additionalProperties":{"type":"integer"}})",
      "{\"allOf\":[" +
          repeated(
              "{\"anyOf\":[{\"type\":\"string\",\"minLength\":1},{\"type\":\"string\",\"maxLength\":9}]},",
              20) +
          "{}]}",
      "{\"anyOf\":[" +
          repeated("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"enum\":[1,2,"
                   "3]}}}},",
                   2000) +
          "{}]}",
  };
  for (const std::string& schema : schemas) {
    SCOPED_TRACE(schema.substr(0, 120));
    try {
      bounded([&] { return env().json_schema(schema); });
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(HostileRegex, ErrorsSayWhat) {
  regex_error("", ErrorCode::data, "regex: it is empty");
  regex_error("(", ErrorCode::data, "regex: regex parse error: ( ^ error: unclosed group");
  regex_error("a)", ErrorCode::data, "unopened group");
  regex_error("[z-a]", ErrorCode::data, "invalid character class range");
  regex_error("a{3,2}", ErrorCode::data, "invalid repetition count range");
  regex_error("*", ErrorCode::data, "repetition operator missing expression");
  regex_error("\xFF", ErrorCode::data, "not UTF-8 at byte 0");
  regex_error("(?=a)b", ErrorCode::unsupported, "look-around");
  regex_error("(a)\\1", ErrorCode::unsupported, "backreferences are not supported");
  regex_error("a{99999999999}", ErrorCode::data, "regex parse error");
  regex_error("[a&&b]", ErrorCode::data, "no text of this vocabulary fits it");
  regex_error("a" + std::string(3000, '?'), ErrorCode::data, "regex parse error: a????");
  regex_error(std::string(100000, 'a'), ErrorCode::limit, "regex: 100000 bytes, the limit is 4096");
  regex_error(repeated("(", 1500) + "a" + repeated(")", 1500), ErrorCode::limit,
              "brackets nested 1500 deep, the limit is 100");
}

TEST(HostileRegex, CatastrophicOnesAreBounded) {
  for (const char* pattern :
       {"(a+)+$", "(a|a)*b", "(a|aa)+$", "((a*)*)*b", "(.*a){50}", "(.*)(.*)(.*)(.*)x", "a{1000}{1000}",
        "a{1000}{1000}{1000}", "(a{1,1000}b{1,1000}){1,1000}", "[^a]{0,60000}a{0,60000}", "(x+x+)+y",
        "\\w{500,1000}\\W{500,1000}", "(\\p{L}{1,300}){1,300}", "(a|b|c|d|e|f|g){1,65535}",
        "(?i)(straße|ſ|K){1,500}", ".{0,65535}.{0,65535}x",
        "(a|b|c|d|e|f|g|h|i|j|k|l|m|n|o|p|q|r|s|t|u|v|w|x|y|z){900}",
        "(((((((((a?){9}){9}){9}){9}){9}){9}){9}){9}){9}"}) {
    SCOPED_TRACE(pattern);
    try {
      bounded([&] { return env().regex(pattern); });
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(HostileRegex, TheLongestThatAreAllowedAreBounded) {
  for (const std::string& pattern :
       {repeated("(a|b)", 800) + "*", repeated("a?", 2000), repeated("a|", 2000) + "b",
        repeated("(?i)", 1000) + "a", repeated(".*a", 1300), repeated("[a-z]*", 600), repeated("(ab)?", 800),
        repeated("\\w+\\s", 800), repeated("(a{1,900})?", 300)}) {
    SCOPED_TRACE(pattern.substr(0, 80));
    bounded([&] { return env().regex(pattern); });
  }
}

TEST(HostileRegex, AnchorsAtTheEndsSayNothing) {
  const Tokenizer& tokenizer = goldens::tokenizer("smollm2", "json");
  const auto accepts = [&](const char* pattern, const char* text) {
    GrammarMatcher matcher = env().regex(pattern).begin();
    const std::vector<TokenId> ids = tokenizer.encode(text, false);
    return matcher.consume(ids) == ids.size() && matcher.accepting();
  };
  EXPECT_TRUE(accepts("^ab$", "ab"));
  EXPECT_FALSE(accepts("^ab$", "ab$"));
  EXPECT_TRUE(accepts("^a|b$", "a"));
  EXPECT_TRUE(accepts("a\\$", "a$"));
  EXPECT_TRUE(accepts("a/b\\\\$", "a/b\\"));
}

TEST(HostileGrammar, ErrorsSayWhat) {
  lark_error("", ErrorCode::data, "grammar: ");
  lark_error("start: x", ErrorCode::data, "grammar: ");
  lark_error("start: \"a", ErrorCode::data, "grammar: ");
  lark_error("start: \"a\"\nstart: \"b\"", ErrorCode::data, "grammar: ");
  lark_error("\xFF", ErrorCode::data, "not UTF-8");
  lark_error("start: \"a\"\n | <|im_end|>", ErrorCode::unsupported,
             "grammar, line 2: special tokens cannot be part of a grammar");
  lark_error("start: <[5]>", ErrorCode::unsupported, "special tokens");
  lark_error("%import common.NUMBER\nstart: NUMBER", ErrorCode::unsupported, "%import is not supported");
  lark_error("%llguidance {\"no_forcing\": true}\nstart: \"a\"", ErrorCode::unsupported,
             "%llguidance is not supported");
  lark_error("start: %json {\"not\": {}}", ErrorCode::unsupported,
             "#/not: the keyword \"not\" is not supported");
  lark_error("start: %json {\"x-guidance\": {\"lenient\": true}, \"not\": {}}", ErrorCode::unsupported,
             "is not supported");
  lark_error("start: %json {", ErrorCode::data, "%json: not JSON");
  lark_error("start: @other", ErrorCode::data, "grammar: ");
  lark_error("start: start", ErrorCode::data, "no text of this vocabulary fits it");
  bounded([] { return env().lark("start: \"a\" start"); });
  lark_error("start: " + repeated("(", 5000) + "\"a\"" + repeated(")", 5000), ErrorCode::limit,
             "brackets nested 5000 deep");
  lark_error("start: /" + repeated("(", 1500) + "a" + repeated(")", 1500) + "/", ErrorCode::limit,
             "brackets nested 1500 deep");
  lark_error("start: /" + std::string(5000, 'a') + "/", ErrorCode::limit,
             "an expression of 5002 bytes, the limit is 4096");
  // Terminals are written out wherever they stand: sixty lines are 2^60 of them.
  std::string doubling = "start: A0\n";
  for (int i = 0; i < 60; ++i) doubling += fmt::format("A{}: A{} A{}\n", i, i + 1, i + 1);
  lark_error(doubling + "A60: /a/\n", ErrorCode::limit, "is made of more than 2000 others");
  lark_error("start: A\nA: B\nB: A\n", ErrorCode::data, "grammar: ");
  lark_error("start: \"a\"" + std::string(300000, ' '), ErrorCode::limit, "bytes, the limit is 65536");
}

TEST(HostileGrammar, HeavyOnesAreBounded) {
  std::string chain = "start: r0\n";
  for (int i = 0; i < 1500; ++i)
    chain += fmt::format("r{}: \"a\" r{} | r{} \"b\" | \"c\"\n", i, (i * 7 + 1) % 1500, (i * 13 + 5) % 1500);
  for (const std::string& source :
       {chain, std::string("start: s\ns: s s | s s s | \"a\" | \"\"\n"),
        std::string("start: e\ne: e \"+\" e | e \"*\" e | \"(\" e \")\" | /[0-9]+/\n"),
        std::string("start: A{100000}\nA: /[a-z]/\n"), std::string("start: (\"a\"|\"b\")* \"c\"{50000}\n")}) {
    SCOPED_TRACE(source.substr(0, 80));
    try {
      bounded([&] { return env().lark(source); });
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(GrammarEnv, RefusesStopTokensOutsideOfTheVocabulary) {
  const Tokenizer& tokenizer = goldens::tokenizer("smollm2", "json");
  const std::vector<TokenId> beyond = {49152}, negative = {-1};
  EXPECT_THROW(GrammarEnv(tokenizer, beyond), Error);
  EXPECT_THROW(GrammarEnv(tokenizer, negative), Error);
}

TEST(GrammarEnv, WithoutStopTokensACompleteTextAllowsNothing) {
  const Tokenizer& tokenizer = goldens::tokenizer("smollm2", "json");
  GrammarMatcher matcher = GrammarEnv(tokenizer, {}).regex("ab").begin();
  EXPECT_TRUE(matcher.consume(*tokenizer.find("ab")));
  EXPECT_TRUE(matcher.complete());
  MaskBits mask(mask_words(tokenizer.vocab_size()), 1), none(mask.size());
  matcher.mask(mask);
  EXPECT_EQ(mask, none);
  MaskBits small(3);
  EXPECT_THROW(matcher.mask(small), Error);
}

}  // namespace
}  // namespace lapidary
