// Arguments of calls that are held to a schema.
#include "text/call_schema.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/delimited_vocabulary.h"
#include "text/grammar.h"
#include "text/output_parser.h"

namespace lapidary {
namespace {

using namespace lapidary::test;

class CallSchema : public testing::Test {
 protected:
  CallSchema()
      : tokenizer_(Tokenizer::from_json(delimited_tokenizer_json(), kBos)),
        env_(tokenizer_, tokenizer_.turn_end_ids()) {}
  // `'` stands for a string mark. Does the grammar take the whole body?
  bool fits(const std::string& schema, const std::string& arguments) const {
    const GrammarEnv::Tool tools[] = {{"f", schema}};
    GrammarMatcher matcher = env_.call_body(tools).begin();
    std::vector<TokenId> ids;
    for (const char c : "call:f" + arguments) {
      ids.push_back(c == '\'' ? kStringMark : kFirstByte + static_cast<unsigned char>(c));
    }
    return matcher.consume(ids) == ids.size() && matcher.accepting();
  }
  void refused(const std::string& schema, ErrorCode code, const std::string& part) const {
    try {
      call_rules(schema, "r", 32, "tool \"f\"");
      ADD_FAILURE() << "taken: " << schema;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find("tool \"f\""), 0u) << error.what();
    }
  }
  Tokenizer tokenizer_;
  GrammarEnv env_;
};

TEST_F(CallSchema, KeysAreThoseOfTheSchemaSortedAndRequired) {
  const std::string schema =
      R"({"type":"object","properties":{"b":{"type":"integer"},"A":{"type":"string"},"c":{"type":"boolean"}},
          "required":["b"],"additionalProperties":false})";
  for (const char* good :
       {"{b:1}", "{A:'x',b:1}", "{b:-20,c:true}", "{A:'',b:0,c:false}", "{A:'\"{}',b:1}"}) {
    EXPECT_TRUE(fits(schema, good)) << good;
  }
  for (const char* bad : {"{}", "{A:'x'}", "{b:1,A:'x'}", "{b:1.5}", "{b:'1'}", "{b:1,d:2}", "{b:1,}",
                          "{,b:1}", "{b:1,c:null}", "{b:1,b:1}", "b:1"}) {
    EXPECT_FALSE(fits(schema, bad)) << bad;
  }
}

TEST_F(CallSchema, AllOptionalOrNone) {
  const std::string optional = R"({"properties":{"a":{"type":"null"},"b":{"type":"number"}}})";
  for (const char* good : {"{}", "{a:null}", "{b:1.5}", "{a:null,b:-2e3}"})
    EXPECT_TRUE(fits(optional, good)) << good;
  EXPECT_FALSE(fits(optional, "{b:1,a:null}"));
  EXPECT_TRUE(fits(R"({"additionalProperties":false})", "{}"));
  EXPECT_FALSE(fits(R"({"additionalProperties":false})", "{a:1}"));
  EXPECT_TRUE(fits(R"({"type":"object"})", "{a:{b:[1,'x']}}"));
}

TEST_F(CallSchema, ValuesNest) {
  const std::string schema = R"({"type":"object","$defs":{"point":{"type":"object",
      "properties":{"x":{"type":"number"},"y":{"type":"number"}},"required":["x","y"]}},
    "properties":{"list":{"type":"array","items":{"$ref":"#/$defs/point"},"minItems":1},
      "one":{"anyOf":[{"$ref":"#/$defs/point"},{"type":"null"}]},"any":{},
      "word":{"enum":["red","green",3,null]},"only":{"const":"x"},"two words":{"type":["string","integer"]}}})";
  for (const char* good :
       {"{list:[{x:1,y:2},{x:3,y:4}]}", "{one:null}", "{one:{x:1,y:2}}", "{any:[1,{z:'q'}]}", "{word:'red'}",
        "{word:3}", "{word:null}", "{only:'x'}", "{'two words':7}", "{'two words':'7'}"}) {
    EXPECT_TRUE(fits(schema, good)) << good;
  }
  for (const char* bad : {"{list:[]}", "{list:[{x:1}]}", "{one:{}}", "{word:'blue'}", "{only:'y'}",
                          "{two words:7}", "{'two words':null}"}) {
    EXPECT_FALSE(fits(schema, bad)) << bad;
  }
}

TEST_F(CallSchema, BoundsOfNumbersTextsAndLists) {
  const std::string schema = R"({"properties":{"n":{"type":"integer","minimum":3,"maximum":12},
    "s":{"type":"string","minLength":1,"maxLength":3},"t":{"type":"string","maxLength":2},
    "l":{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3},"x":{"type":"number","exclusiveMinimum":0}}})";
  for (const char* good : {"{n:3}", "{n:12}", "{s:'abc'}", "{s:'a'}", "{t:''}", "{t:'ab'}", "{l:[1,2]}",
                           "{l:[1,2,3]}", "{x:0.5}"}) {
    EXPECT_TRUE(fits(schema, good)) << good;
  }
  for (const char* bad : {"{n:2}", "{n:13}", "{n:3.5}", "{s:''}", "{s:'abcd'}", "{t:'abc'}", "{l:[1]}",
                          "{l:[1,2,3,4]}", "{x:0}", "{x:-1}"}) {
    EXPECT_FALSE(fits(schema, bad)) << bad;
  }
}

TEST_F(CallSchema, WhatTheGrammarTakesTheParserReads) {
  const std::string body = "call:f{a:'x',b:[1,2]}";
  std::vector<TokenId> ids{kCall};
  for (const char c : body)
    ids.push_back(c == '\'' ? kStringMark : kFirstByte + static_cast<unsigned char>(c));
  ids.push_back(kCallEnd);
  ASSERT_TRUE(
      fits(R"({"properties":{"a":{"type":"string"},"b":{"type":"array","items":{"type":"integer"}}}})",
           body.substr(6)));
  OutputParser parser(tokenizer_, TurnSyntax::of(tokenizer_, tokenizer_.turn_end_ids()), {.tools = true});
  const OutputDelta out = parser.push(ids);
  ASSERT_EQ(out.calls.size(), 1u);
  EXPECT_EQ(out.calls[0].arguments, R"({"a":"x","b":[1,2]})");
}

TEST_F(CallSchema, WhatWouldNotBeEnforcedIsRefused) {
  const auto property = [](const std::string& schema) { return R"({"properties":{"a":)" + schema + "}}"; };
  refused("[]", ErrorCode::data, "no JSON object");
  refused(R"({"type":"string"})", ErrorCode::data, "arguments of a call are an object");
  refused(property(R"({"type":"string","pattern":"a"})"), ErrorCode::unsupported, "\"pattern\"");
  refused(property(R"({"type":"string","format":"date"})"), ErrorCode::unsupported, "\"format\"");
  refused(property(R"({"type":"integer","minimum":"1"})"), ErrorCode::data, "minimum: expected a number");
  refused(property(R"({"type":"string","maxLength":-1})"), ErrorCode::data, "maxLength");
  refused(property(R"({"type":"string","maxLength":2001})"), ErrorCode::limit, "maxLength");
  refused(property(R"({"type":"string","minLength":3,"maxLength":2})"), ErrorCode::data, "above");
  refused(property(R"({"type":"array","minItems":3,"maxItems":2})"), ErrorCode::data, "above");
  refused(property(R"({"oneOf":[]})"), ErrorCode::unsupported, "\"oneOf\"");
  refused(property(R"({"type":"objekt"})"), ErrorCode::data, "no type");
  refused(property(R"({"$ref":"http://x"})"), ErrorCode::unsupported, "$ref");
  refused(property("3"), ErrorCode::data, "expected a schema");
  refused(property("false"), ErrorCode::data, "expected a schema");
  refused(R"({"properties":{"a":{}},"additionalProperties":{"type":"string"}})", ErrorCode::unsupported,
          "additionalProperties");
  refused(R"({"properties":{},"required":["a"]})", ErrorCode::unsupported, "\"a\" is required");
  refused(
      R"({"$defs":{"n":{"properties":{"next":{"$ref":"#/$defs/n"}}}},"properties":{"a":{"$ref":"#/$defs/n"}}})",
      ErrorCode::unsupported, "hold themselves");
  refused(R"({"$defs":{"n":{"$ref":"#/$defs/n"}},"properties":{"a":{"$ref":"#/$defs/n"}}})", ErrorCode::data,
          "leads to itself");
  std::string deep = R"({"type":"string"})";
  for (int i = 0; i < 40; ++i) deep = R"({"type":"array","items":)" + deep + "}";
  refused(property(deep), ErrorCode::limit, "nested deeper");
  std::string wide = R"({"properties":{)";
  for (int i = 0; i < 2100; ++i) wide += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":{}";
  refused(wide + "}}", ErrorCode::limit, "rules");
}

}  // namespace
}  // namespace lapidary
