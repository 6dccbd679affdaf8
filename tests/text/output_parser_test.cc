// The parts of a turn: every golden in every division of its ids, and what was decided beyond them.
#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <cctype>
#include <random>
#include <variant>

#include "base/error.h"
#include "text/goldens.h"

namespace lapidary {
namespace {

using goldens::ids_of;
using goldens::text_of;

const std::vector<TokenId> kStops = {1, 106, 50};
constexpr TokenId kOpen = 100, kClose = 101, kCall = 48, kCallEnd = 49, kMark = 52, kTurnEnd = 106;

struct Parsed {
  std::string content, reasoning;
  std::vector<ToolCall> calls;
  FinishReason finish = FinishReason::stop;
  bool operator==(const Parsed&) const = default;
};

void append(Parsed& all, const OutputDelta& delta) {
  all.content += delta.content;
  all.reasoning += delta.reasoning;
  all.calls.insert(all.calls.end(), delta.calls.begin(), delta.calls.end());
}

// `next`: how many ids of the rest come in the next piece.
template <class Next>
Parsed parse(const Tokenizer& tokenizer, std::span<const TokenId> ids, const OutputOptions& options,
             Next next) {
  OutputParser parser(tokenizer, TurnSyntax::of(tokenizer, kStops), options);
  Parsed all;
  while (!ids.empty()) {
    const size_t n = std::min<size_t>(next(ids.size()), ids.size());
    append(all, parser.push(ids.first(n)));
    ids = ids.subspan(n);
  }
  append(all, parser.finish());
  all.finish = parser.finish_reason();
  return all;
}

Parsed parse_whole(const Tokenizer& tokenizer, std::span<const TokenId> ids, const OutputOptions& options) {
  return parse(tokenizer, ids, options, [](size_t left) { return left; });
}

const Tokenizer& gemma4() {
  return goldens::tokenizer("gemma4", "json");
}

// Text becomes ordinary tokens.
std::vector<TokenId> ids(std::initializer_list<std::variant<TokenId, const char*>> parts) {
  std::vector<TokenId> all;
  for (const auto& part : parts) {
    if (const TokenId* id = std::get_if<TokenId>(&part)) {
      all.push_back(*id);
    } else {
      const std::vector<TokenId> text = gemma4().encode(std::get<const char*>(part), false);
      all.insert(all.end(), text.begin(), text.end());
    }
  }
  return all;
}

// One way for all of a case: whole, and id by id, must be the same.
Parsed turn(const std::vector<TokenId>& turn_ids, OutputOptions options = {.tools = true}) {
  const Parsed whole = parse_whole(gemma4(), turn_ids, options);
  EXPECT_EQ(whole, parse(gemma4(), turn_ids, options, [](size_t) { return size_t{1}; }));
  return whole;
}

// The arguments of one call, or the text that the body became.
std::string arguments(std::initializer_list<std::variant<TokenId, const char*>> body) {
  std::vector<TokenId> all = ids({kCall, "call:f"});
  const std::vector<TokenId> inner = ids(body);
  all.insert(all.end(), inner.begin(), inner.end());
  all.insert(all.end(), {kCallEnd, kTurnEnd});
  const Parsed parsed = turn(all);
  if (parsed.calls.size() != 1) return "content " + parsed.content;
  EXPECT_EQ(parsed.content, "");
  EXPECT_EQ(parsed.calls[0].name, "f");
  return parsed.calls[0].arguments;
}

// JSON with the numbers as they are spelt where they are integers: those keep their digits.
std::string canonical(const std::string& json) {
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < json.size();) {
    const char c = json[i];
    if (quoted || c == '"') {
      if (c == '\\') out += json[i++];
      if (c == '"') quoted = !quoted;
      out += json[i++];
      continue;
    }
    const size_t end = json.find_first_not_of("-+.eE0123456789", i);
    const std::string word = json.substr(i, end - i);
    if (word.empty() || !(std::isdigit(c) != 0 || c == '-')) {
      out += json[i++];
    } else {
      out += word.find_first_of(".eE") == std::string::npos ? word : fmt::format("{:a}", std::stod(word));
      i += word.size();
    }
  }
  return out;
}

struct Case {
  std::string id;
  std::vector<TokenId> ids;
  OutputOptions options;
  Parsed expected;
};

std::vector<Case> golden_cases() {
  std::vector<Case> cases;
  for (const auto& row : goldens::read_cases("parse/cases.jsonl")) {
    Case c;
    c.id = text_of(row.at("id"));
    c.ids = ids_of(row.at("ids"));
    c.options = {.tools = !row.at("tools").as_array().empty(),
                 .in_thought = row.at("prompt_state") == "thought"};
    const auto& expected = row.at("expected").as_object();
    c.expected.content = text_of(expected.at("content"));
    c.expected.reasoning = text_of(expected.at("reasoning_content"));
    for (const auto& call : expected.at("tool_calls").as_array())
      c.expected.calls.push_back({text_of(call.at("name")), text_of(call.at("arguments"))});
    const std::string finish = text_of(expected.at("finish_reason"));
    c.expected.finish = finish == "stop"     ? FinishReason::stop
                        : finish == "length" ? FinishReason::length
                                             : FinishReason::tool_calls;
    EXPECT_EQ(finish_reason_name(c.expected.finish), finish);
    cases.push_back(std::move(c));
  }
  return cases;
}

void expect_equal(Parsed got, const Case& golden) {
  EXPECT_EQ(got.content, golden.expected.content);
  EXPECT_EQ(got.reasoning, golden.expected.reasoning);
  EXPECT_EQ(got.finish, golden.expected.finish);
  ASSERT_EQ(got.calls.size(), golden.expected.calls.size());
  for (size_t i = 0; i < got.calls.size(); ++i) {
    EXPECT_EQ(got.calls[i].name, golden.expected.calls[i].name);
    EXPECT_EQ(canonical(got.calls[i].arguments), canonical(golden.expected.calls[i].arguments));
  }
}

TEST(OutputParserGolden, EveryCaseWholeAndIdById) {
  const std::vector<Case> cases = golden_cases();
  EXPECT_EQ(cases.size(), 107u);
  for (const char* source : {"json", "gguf"}) {
    const Tokenizer& tokenizer = goldens::tokenizer("gemma4", source);
    for (const Case& c : cases) {
      SCOPED_TRACE(c.id);
      expect_equal(parse_whole(tokenizer, c.ids, c.options), c);
      expect_equal(parse(tokenizer, c.ids, c.options, [](size_t) { return size_t{1}; }), c);
    }
  }
}

TEST(OutputParserGolden, EveryCaseInManyDivisions) {
  std::mt19937 random(2026);
  for (const Case& c : golden_cases()) {
    SCOPED_TRACE(c.id);
    const Parsed whole = parse_whole(gemma4(), c.ids, c.options);
    for (int round = 0; round < 200; ++round) {
      const size_t most = 1 + random() % 7;
      const Parsed split = parse(gemma4(), c.ids, c.options, [&](size_t) { return random() % (most + 1); });
      ASSERT_EQ(split, whole);
    }
  }
}

// Streams of any ids, delimiters among them, divide in any way as well.
TEST(OutputParser, AnyIdsInManyDivisions) {
  std::mt19937 random(7);
  const std::vector<TokenId> marks = {kOpen, kClose, kCall, kCallEnd, kMark, 45518, 107, 478, 397, 409, 406};
  const std::vector<TokenId> body = ids({"call:f{a:1,b:", kMark, "x", kMark, "}"});
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> stream;
    while (stream.size() < 40) {
      const unsigned kind = random() % 8;
      if (kind < 5) stream.push_back(marks[random() % marks.size()]);
      if (kind == 5) stream.push_back(static_cast<TokenId>(random() % 262144));
      if (kind == 6) stream.insert(stream.end(), body.begin(), body.end());
      if (kind == 7 && random() % 20 == 0) stream.push_back(kTurnEnd);
    }
    const OutputOptions options{.tools = random() % 2 == 0, .in_thought = random() % 2 == 0};
    const Parsed whole = parse_whole(gemma4(), stream, options);
    for (int division = 0; division < 10; ++division)
      ASSERT_EQ(parse(gemma4(), stream, options, [&](size_t) { return 1 + random() % 5; }), whole);
    for (const char* spelling : {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"}) {
      ASSERT_EQ(whole.content.find(spelling), std::string::npos);
      ASSERT_EQ(whole.reasoning.find(spelling), std::string::npos);
    }
  }
}

TEST(OutputParser, HandsOutWhatIsCertainAtOnce) {
  OutputParser parser(gemma4(), TurnSyntax::of(gemma4(), kStops), {.tools = true});
  const auto push = [&](std::vector<TokenId> more) { return parser.push(more); };
  EXPECT_TRUE(push({kOpen, 45518}).empty());
  EXPECT_EQ(push(ids({"\nI think"})).reasoning, "I think");
  EXPECT_EQ(parser.part(), TurnTracker::Part::thought);
  EXPECT_TRUE(push({107}).empty());  // a newline that the end of the thought would swallow
  EXPECT_TRUE(push({kClose}).empty());
  EXPECT_EQ(parser.part(), TurnTracker::Part::content);
  EXPECT_EQ(push(ids({"Let me"})).content, "Let me");
  EXPECT_TRUE(push({478, 397, 409}).empty());
  EXPECT_EQ(push({406}).content, "\xF0\x9F\xAB\xA8");
  EXPECT_TRUE(push(ids({kCall, "call:f{a:1}"})).empty());
  EXPECT_EQ(parser.part(), TurnTracker::Part::call);
  EXPECT_EQ(push({kCallEnd}).calls, (std::vector<ToolCall>{{"f", R"({"a":1})"}}));
  EXPECT_FALSE(parser.ended());
  EXPECT_TRUE(push({50, 48, 100}).empty());
  EXPECT_TRUE(parser.ended());
  EXPECT_TRUE(parser.finish().empty());
  EXPECT_EQ(parser.finish_reason(), FinishReason::tool_calls);
}

TEST(OutputParser, AnIdOutsideOfTheVocabularyIsAnError) {
  OutputParser parser(gemma4(), TurnSyntax::of(gemma4(), kStops), {});
  const std::vector<TokenId> bad = {-1};
  EXPECT_THROW(parser.push(bad), Error);
}

TEST(OutputParserDecided, CallEndWinsOverAnOpenString) {
  const Parsed parsed = turn(ids({kCall, "call:f{a:", kMark, "x", kCallEnd, "y", kMark, "}", kTurnEnd}));
  EXPECT_EQ(parsed.content, "call:f{a:xy}");
  EXPECT_TRUE(parsed.calls.empty());
  EXPECT_EQ(parsed.finish, FinishReason::stop);
}

TEST(OutputParserDecided, ACallOpenerWithinACallIsDropped) {
  const Parsed parsed = turn(ids({kCall, "call:f{", kCall, "a:1}", kCallEnd, 50}));
  EXPECT_EQ(parsed.calls, (std::vector<ToolCall>{{"f", R"({"a":1})"}}));
  EXPECT_EQ(parsed.finish, FinishReason::tool_calls);
}

TEST(OutputParserDecided, TheNameOfTheChannelIsAWholeLine) {
  EXPECT_EQ(turn(ids({kOpen, "thoughtful", kClose, "x", kTurnEnd})).reasoning, "thoughtful");
  EXPECT_EQ(turn(ids({kOpen, "thought process\nx", kClose, kTurnEnd})).reasoning, "thought process\nx");
  EXPECT_EQ(turn(ids({kOpen, "thought", kClose, kTurnEnd})).reasoning, "");
  EXPECT_EQ(turn(ids({kOpen, "thought", kTurnEnd})).reasoning, "");
  EXPECT_EQ(turn(ids({kOpen, "though", kClose, kTurnEnd})).reasoning, "though");
  EXPECT_EQ(turn(ids({kOpen, "thought\n", kClose, kTurnEnd})).reasoning, "");
  EXPECT_EQ(turn(ids({kOpen, "thought", kCall, "call:f{}", kCallEnd, 50})).reasoning, "");
}

TEST(OutputParserDecided, AThoughtThatThePromptOpenedHasNoName) {
  const OutputOptions options{.tools = true, .in_thought = true};
  EXPECT_EQ(turn(ids({"thought\nx", kClose, "y", kTurnEnd}), options).reasoning, "thought\nx");
  EXPECT_EQ(turn(ids({"thought", kClose, "y", kTurnEnd}), options).reasoning, "thought");
  // Only the first one.
  EXPECT_EQ(turn(ids({"a", kClose, kOpen, "thought\nb", kClose, kTurnEnd}), options).reasoning, "a\nb");
}

TEST(OutputParserDecided, SpecialTokensWithinAThoughtAreDropped) {
  EXPECT_EQ(turn(ids({kOpen, "thought\na", kMark, "b", 98, kCallEnd, 0, "c", kClose, kTurnEnd})).reasoning,
            "abc");
}

TEST(OutputParserDecided, WithoutToolsACallStaysInItsThought) {
  const Parsed parsed =
      turn(ids({kOpen, "thought\na", kCall, "call:f{}", kCallEnd, "b", kClose, "c", kTurnEnd}), {});
  EXPECT_EQ(parsed.reasoning, "acall:f{}b");
  EXPECT_EQ(parsed.content, "c");
}

TEST(OutputParserDecided, KeysAndNumbersThatBreakABody) {
  EXPECT_EQ(arguments({"{a:1,b:2,a:3}"}), R"({"a":3,"b":2})");
  EXPECT_EQ(arguments({"{", kMark, kMark, ":1}"}), "content call:f{:1}");
  EXPECT_EQ(arguments({"{:1}"}), "content call:f{:1}");
  EXPECT_EQ(arguments({" {a:1}"}), "content call:f {a:1}");
  EXPECT_EQ(turn(ids({kCall, "call: f{}", kCallEnd, 50})).content, "call: f{}");
  for (const char* number : {"1e999", "-1e999", "123456789e400", "1.5e99999999999999999999", "0.1e310"})
    EXPECT_EQ(arguments({"{a:", number, "}"}), fmt::format("content call:f{{a:{}}}", number));
  for (const char* number :
       {"1e-999", "0e999", "1.5e308", "0.00001e312", "-0", "-0.0", "1E+2", "0.0e99999999999999999999"})
    EXPECT_EQ(arguments({"{a:", number, "}"}), fmt::format(R"({{"a":{}}})", number));
  const std::string digits(400, '7');
  EXPECT_EQ(arguments({"{a:", digits.c_str(), "}"}), fmt::format(R"({{"a":{}}})", digits));
  for (const char* word :
       {"01", "+1", ".5", "1.", "1e", "--1", "nan", "tru", "TRUE", "1x", "- 1", "'a'", "\"a\""})
    EXPECT_EQ(arguments({"{a:", word, "}"}), fmt::format("content call:f{{a:{}}}", word));
}

TEST(OutputParserDecided, CommasThatBreakABody) {
  for (const char* body : {"{a:1,}", "{,a:1}", "{a:[1,]}", "{a:[,1]}", "{a:1 b:2}", "{a}", "{a:}",
                           "{a:[1 2]}", "{a:{b}}", "{a:1", "{a:[1}", "{a:1]}"})
    EXPECT_EQ(arguments({body}), fmt::format("content call:f{}", body));
}

TEST(OutputParserDecided, NestingOf64IsReadAndMoreIsBroken) {
  const auto nested = [](size_t lists) {
    return "{a:" + std::string(lists, '[') + "1" + std::string(lists, ']') + "}";
  };
  EXPECT_EQ(arguments({nested(63).c_str()}),
            "{\"a\":" + std::string(63, '[') + "1" + std::string(63, ']') + "}");
  EXPECT_EQ(arguments({nested(64).c_str()}), "content call:f" + nested(64));
  EXPECT_EQ(arguments({nested(20000).c_str()}), "content call:f" + nested(20000));
  std::string objects, ends;
  for (int i = 0; i < 3000; ++i) objects += "{a:", ends += '}';
  EXPECT_EQ(arguments({(objects + "1" + ends).c_str()}), "content call:f" + objects + "1" + ends);
}

TEST(OutputParserDecided, AnUndeclaredNameIsStillACall) {
  EXPECT_EQ(turn(ids({kCall, "call:nobody.knows-me_2{}", kCallEnd, 50})).calls.at(0).name,
            "nobody.knows-me_2");
}

TEST(OutputParserDecided, StringsAreEscapedAsJsonWants) {
  EXPECT_EQ(arguments({"{a:", kMark, "\x01\x1f\b\f\x7f/\xE2\x80\xA8", kMark, "}"}),
            "{\"a\":\"\\u0001\\u001f\\b\\f\x7f/\xE2\x80\xA8\"}");
}

// Bytes of one character on both sides of a mark are two broken characters, not one.
TEST(OutputParserDecided, CharactersDoNotReachOverStringMarks) {
  EXPECT_EQ(arguments({"{a:", kMark, 478, 397, kMark, "}"}), "{\"a\":\"\xEF\xBF\xBD\"}");
}

TEST(OutputParser, BlankContentIsKeptWithoutCallsAndDroppedWithThem) {
  EXPECT_EQ(turn(ids({" \n ", kTurnEnd})).content, " \n ");
  EXPECT_EQ(turn(ids({" \n ", kCall, "call:f{}", kCallEnd, "\n", 50})).content, "");
  EXPECT_EQ(turn(ids({" ", kCall, "call:f{}", kCallEnd, "\nx", 50})).content, " \nx");
  EXPECT_EQ(turn(ids({" ", kCall, "broken", kCallEnd, " ", 50})).content, " broken ");
}

TEST(OutputParser, OtherVocabulariesHaveContentOnly) {
  for (const char* model : {"smollm2", "gemma3"}) {
    const Tokenizer& tokenizer = goldens::tokenizer(model, "json");
    const std::vector<TokenId> stops = tokenizer.turn_end_ids();
    ASSERT_FALSE(stops.empty());
    const TurnSyntax syntax = TurnSyntax::of(tokenizer, stops);
    EXPECT_FALSE(syntax.thought_open || syntax.thought_close || syntax.call_open || syntax.call_close);
    std::vector<TokenId> stream =
        tokenizer.encode("<|channel>thought\nx<channel|> caf\xC3\xA9 <|tool_call>", false);
    stream.insert(stream.end(), {stops[0], stream[0]});
    OutputParser parser(tokenizer, syntax, {.tools = true, .in_thought = true});
    Parsed all;
    for (const TokenId id : stream) append(all, parser.push({&id, 1}));
    append(all, parser.finish());
    EXPECT_EQ(all.content, "<|channel>thought\nx<channel|> caf\xC3\xA9 <|tool_call>");
    EXPECT_EQ(all.reasoning, "");
    EXPECT_EQ(parser.finish_reason(), FinishReason::stop);
  }
}

TEST(TurnSyntax, FindsGemma4sDelimitersAndWherePromptsEnd) {
  const TurnSyntax syntax = TurnSyntax::of(gemma4(), kStops);
  EXPECT_EQ(syntax.thought_open, kOpen);
  EXPECT_EQ(syntax.thought_close, kClose);
  EXPECT_EQ(syntax.call_open, kCall);
  EXPECT_EQ(syntax.call_close, kCallEnd);
  EXPECT_EQ(syntax.string_mark, kMark);
  EXPECT_TRUE(ends_in_thought(syntax, ids({105, "model\n", kOpen, "thought\n"})));
  EXPECT_FALSE(ends_in_thought(syntax, ids({105, "model\n", kOpen, "thought\n", kClose})));
  EXPECT_FALSE(ends_in_thought(syntax, ids({kOpen, "x", kTurnEnd, 105, "model\n"})));
  EXPECT_FALSE(ends_in_thought(syntax, ids({"<|channel>thought\n"})));
  EXPECT_FALSE(ends_in_thought(syntax, {}));
}

}  // namespace
}  // namespace lapidary
