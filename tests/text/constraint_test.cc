// Thinking first, then the schema; calls in place of an answer.
#include "text/constraint.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "text/goldens.h"
#include "text/output_parser.h"

namespace lapidary {
namespace {

constexpr TokenId kOpen = 100, kClose = 101, kCall = 48, kCallEnd = 49, kTurnEnd = 106;
constexpr const char* kSchema =
    R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false})";

const Tokenizer& gemma4() {
  return goldens::tokenizer("gemma4", "json");
}

const GrammarEnv& env() {
  static const std::vector<TokenId> stops = {1, 106, 50};
  static const GrammarEnv made(gemma4(), stops);
  return made;
}

TurnSyntax syntax() {
  return TurnSyntax::of(gemma4(), env().stop_ids());
}

Grammar calls() {
  return env().call_body(std::vector<std::string>{"f", "g"});
}

Constraint make(const ConstraintOptions& options, const char* schema = kSchema) {
  return Constraint(env(), syntax(), env().json_schema(schema), options);
}

// Takes special tokens and text, each id checked against the mask before.
void feed(Constraint& constraint, std::string_view text) {
  for (const TokenId id : gemma4().encode(text, true)) {
    ASSERT_TRUE(mask_has(constraint.mask(), id)) << gemma4().token_name(id) << " in " << text;
    constraint.take(id);
  }
}

bool allows(Constraint& constraint, TokenId id) {
  const bool allowed = mask_has(constraint.mask(), id);
  Constraint copy = constraint.fork();
  if (allowed) {
    EXPECT_NO_THROW(copy.take(id));
  } else {
    EXPECT_THROW(copy.take(id), Error);
  }
  return allowed;
}

std::vector<TokenId> specials_allowed(Constraint& constraint) {
  std::vector<TokenId> ids;
  const std::span<const uint32_t> mask = constraint.mask();
  for (TokenId id = 0; id < env().vocab_size(); ++id) {
    if (gemma4().is_special(id) && mask_has(mask, id)) ids.push_back(id);
  }
  return ids;
}

using Ids = std::vector<TokenId>;

TEST(Constraint, ContentOnlyWithoutThinkingAndTools) {
  Constraint constraint = make({});
  EXPECT_EQ(specials_allowed(constraint), Ids{});
  EXPECT_FALSE(allows(constraint, kOpen));
  EXPECT_FALSE(allows(constraint, kCall));
  feed(constraint, "{\"a\":1");
  EXPECT_EQ(specials_allowed(constraint), Ids{});
  EXPECT_FALSE(constraint.complete());
  feed(constraint, "}");
  EXPECT_TRUE(constraint.complete());
  EXPECT_EQ(specials_allowed(constraint), (Ids{1, 50, 106}));
  EXPECT_FALSE(allows(constraint, 107));
  feed(constraint, "<turn|>");
  EXPECT_TRUE(constraint.complete());
}

TEST(Constraint, AThoughtComesFirstAndOnce) {
  Constraint constraint = make({.thinking = true});
  EXPECT_EQ(specials_allowed(constraint), Ids{kOpen});
  feed(constraint, "<|channel>thought\nAny text {at] all \"\n\n");
  EXPECT_EQ(specials_allowed(constraint), Ids{kClose}) << "a thought is no place to end";
  feed(constraint, "<channel|>");
  EXPECT_EQ(specials_allowed(constraint), Ids{});
  EXPECT_FALSE(allows(constraint, kOpen));
  EXPECT_FALSE(allows(constraint, *gemma4().find("so")));
  feed(constraint, "{\"a\": 22}");
  EXPECT_TRUE(constraint.complete());
}

TEST(Constraint, ThinkingMayBeLeftOut) {
  Constraint constraint = make({.thinking = true});
  feed(constraint, "{\"a\":1");
  EXPECT_FALSE(allows(constraint, kOpen)) << "within the content";
  feed(constraint, "}<eos>");
}

TEST(Constraint, AThoughtThatThePromptOpenedIsClosedFirst) {
  Constraint constraint = make({.thinking = true, .in_thought = true});
  EXPECT_EQ(specials_allowed(constraint), Ids{kClose});
  feed(constraint, "so be it<channel|>{\"a\":1}<turn|>");
}

TEST(Constraint, CallsInPlaceOfContent) {
  Constraint constraint = make({.thinking = true, .calls = calls()});
  EXPECT_EQ(specials_allowed(constraint), (Ids{kCall, kOpen}));
  feed(constraint, "<|channel>thought\nhm");
  EXPECT_EQ(specials_allowed(constraint), (Ids{kCall, kClose}));
  feed(constraint, "<|tool_call>call:f{x:<|\"|>{\"<|\"|>,y:[1]");
  EXPECT_FALSE(allows(constraint, kCallEnd)) << "the body is not whole";
  EXPECT_FALSE(allows(constraint, kTurnEnd));
  feed(constraint, "}");
  EXPECT_EQ(specials_allowed(constraint), Ids{kCallEnd});
  EXPECT_FALSE(constraint.complete());
  feed(constraint, "<tool_call|>");
  EXPECT_EQ(specials_allowed(constraint), (Ids{1, kCall, 50, 106}));
  feed(constraint, "<|tool_call>call:g{}<tool_call|><|tool_response>");
  EXPECT_EQ(specials_allowed(constraint), (Ids{1, 50, 106}));
}

TEST(Constraint, ContentRulesOutCalls) {
  Constraint constraint = make({.calls = calls()});
  feed(constraint, "{\"a\":1}");
  EXPECT_FALSE(allows(constraint, kCall));
}

TEST(Constraint, ContentThatMayGoOnMayAlsoEnd) {
  Constraint constraint = make({}, R"({"type":"integer"})");
  feed(constraint, "12");
  EXPECT_FALSE(constraint.complete());
  EXPECT_TRUE(allows(constraint, kTurnEnd));
  EXPECT_TRUE(allows(constraint, *gemma4().find("3")));
  feed(constraint, "3<turn|>");
  EXPECT_TRUE(constraint.complete());
  EXPECT_FALSE(allows(constraint, *gemma4().find("3")));
}

TEST(Constraint, VocabulariesWithoutDelimitersHaveContentOnly) {
  const Tokenizer& tokenizer = goldens::tokenizer("smollm2", "json");
  const GrammarEnv words(tokenizer, tokenizer.turn_end_ids());
  Constraint constraint(words, TurnSyntax::of(tokenizer, words.stop_ids()), words.json_schema(kSchema),
                        {.thinking = true, .in_thought = true});
  for (const TokenId id : tokenizer.encode("{\"a\":1}", false)) constraint.take(id);
  EXPECT_TRUE(constraint.complete());
}

// Whatever is drawn under the mask, the parser finds a turn whose content fits or calls that parse.
TEST(Constraint, RandomTurnsParseAsTheyWereBound) {
  std::mt19937 random(3);
  int answers = 0, called = 0, thoughts = 0;
  for (int round = 0; round < 60; ++round) {
    Constraint constraint = make({.thinking = true, .calls = calls()});
    OutputParser parser(gemma4(), syntax(), {.tools = true});
    std::string content, reasoning;
    std::vector<ToolCall> found;
    const auto add = [&](const OutputDelta& delta) {
      content += delta.content, reasoning += delta.reasoning;
      found.insert(found.end(), delta.calls.begin(), delta.calls.end());
    };
    Ids ids;
    while (!parser.ended() && ids.size() < 3000) {
      Ids special, plain;
      const std::span<const uint32_t> mask = constraint.mask();
      for (TokenId id = 0; id < env().vocab_size(); ++id) {
        if (mask_has(mask, id)) (gemma4().is_special(id) ? special : plain).push_back(id);
      }
      // Closing punctuation comes often, or texts would never end.
      Ids closing;
      for (const char* mark : {"}", "\"", "]", "1", ":", "{"}) {
        const TokenId id = gemma4().find(mark).value();
        if (mask_has(mask, id)) closing.push_back(id);
      }
      const Ids* from = &plain;
      if (!special.empty() && (plain.empty() || random() % 3 == 0)) from = &special;
      else if (!closing.empty() && random() % 3 != 0) from = &closing;
      ASSERT_FALSE(from->empty());
      const TokenId id = (*from)[random() % from->size()];
      constraint.take(id);
      ids.push_back(id);
      add(parser.push({&id, 1}));
    }
    add(parser.finish());
    SCOPED_TRACE(gemma4().decode(ids, true).substr(0, 2000));
    if (!parser.ended()) continue;
    thoughts += reasoning.empty() ? 0 : 1;
    if (found.empty()) {
      ++answers;
      const auto value = boost::json::parse(content).as_object();
      EXPECT_EQ(value.size(), 1u);
      EXPECT_TRUE(value.at("a").is_number());
    } else {
      ++called;
      EXPECT_EQ(content, "");
      EXPECT_EQ(parser.finish_reason(), FinishReason::tool_calls);
      for (const ToolCall& call : found) {
        EXPECT_TRUE(call.name == "f" || call.name == "g");
        EXPECT_NO_THROW(boost::json::parse(call.arguments)) << call.arguments;
      }
    }
  }
  EXPECT_GT(answers, 5);
  EXPECT_GT(called, 5);
  EXPECT_GT(thoughts, 5);
}

TEST(Constraint, WithoutAGrammarOnlyCallsAreBound) {
  Constraint constraint(env(), syntax(), std::nullopt, {.calls = calls()});
  feed(constraint, "some text, ");
  EXPECT_TRUE(allows(constraint, kCall));
  EXPECT_TRUE(allows(constraint, kTurnEnd));
  EXPECT_FALSE(allows(constraint, kCallEnd));
  EXPECT_FALSE(constraint.complete());
  feed(constraint, "<|tool_call>call:f{}<tool_call|>");
  EXPECT_TRUE(allows(constraint, kTurnEnd));
  Constraint bad(env(), syntax(), std::nullopt, {.calls = calls()});
  feed(bad, "<|tool_call>call:");
  EXPECT_THROW(bad.take(gemma4().encode("x", false)[0]), Error) << "no tool is called so";
}

TEST(Constraint, ACallThatMustCome) {
  Constraint constraint(env(), syntax(), std::nullopt,
                        {.thinking = true, .calls = calls(), .must_call = true});
  EXPECT_TRUE(allows(constraint, kOpen));
  EXPECT_TRUE(allows(constraint, kCall));
  EXPECT_FALSE(allows(constraint, kTurnEnd));
  for (const TokenId id : gemma4().encode("text", false)) EXPECT_FALSE(allows(constraint, id));
  feed(constraint, "<|channel>hm<channel|>");
  EXPECT_FALSE(allows(constraint, kTurnEnd));
  feed(constraint, "<|tool_call>call:g{}<tool_call|>");
  EXPECT_TRUE(allows(constraint, kTurnEnd));
  EXPECT_THROW(Constraint(env(), syntax(), std::nullopt, {.must_call = true}), Error);
}

}  // namespace
}  // namespace lapidary
