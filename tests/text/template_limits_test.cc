// Templates come with model files: whatever they do, a render ends soon, in text or in an error that says
// what was wrong.
#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "text/chat.h"

namespace lapidary {
namespace {

std::string repeated(std::string_view text, size_t count) {
  std::string all;
  while (count-- > 0) all += text;
  return all;
}

std::string rendered(const std::string& source, const std::string& options = "{}") {
  ChatRequest request;
  request.messages_json = R"([{"role":"user","content":"hi"}])";
  request.options_json = options;
  request.now = "2026-11-30T12:00:00";
  return ChatTemplate(source).render(request);
}

void expect_error(const std::string& source, ErrorCode code, const std::string& part,
                  const std::string& options = "{}") {
  SCOPED_TRACE(source.substr(0, 120));
  const auto start = std::chrono::steady_clock::now();
  try {
    ADD_FAILURE() << "rendered " << rendered(source, options).substr(0, 80);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// `body` runs n * n times in a namespace `ns` whose `s` starts as `seed`.
std::string loop(const std::string& seed, const std::string& body, const std::string& after = "") {
  return "{% set ns = namespace(s=" + seed + ") %}{% for i in range(99999) %}{% for j in range(99999) %}" +
         body + "{% endfor %}{% endfor %}" + after;
}

TEST(TemplateLimits, EndlessLoopsRunOutOfFuel) {
  const std::string fuel = "ran out of fuel";
  expect_error(loop("1", ""), ErrorCode::limit, fuel);
  expect_error(loop("1", "x"), ErrorCode::limit, fuel);
  expect_error(loop("''", "{% set ns.s = ns.s + 'x' %}"), ErrorCode::limit, fuel);
  expect_error("{{ ('a ' * 1000000).split() | length }}", ErrorCode::limit, fuel);
}

TEST(TemplateLimits, DeepRecursionIsRefused) {
  const std::string limit = "recursion limit";
  expect_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ErrorCode::limit, limit);
  expect_error("{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
               ErrorCode::limit, limit);
  expect_error("{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}", ErrorCode::limit, limit);
}

TEST(TemplateLimits, DeeplyNestedSourceIsRefusedOrRenders) {
  const std::string limit = "exceeds maximum recursion limits";
  expect_error("{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}", ErrorCode::limit, limit);
  expect_error("{{ " + repeated("[", 100000) + "1" + repeated("]", 100000) + " }}", ErrorCode::limit, limit);
  expect_error(repeated("{% if 1 %}", 20000), ErrorCode::limit, limit);
  EXPECT_EQ(rendered("{{ 0" + repeated("+1", 100000) + " }}"), "100000");
  EXPECT_EQ(rendered("{{ " + repeated("-", 200000) + "1 }}"), "1");
  EXPECT_EQ(rendered("{{ 1" + repeated("|abs", 60000) + " }}"), "1");
}

TEST(TemplateLimits, HugeOutputIsRefusedBeforeItIsMade) {
  const std::string fuel = "ran out of fuel";
  expect_error("{{ 'x' * 1000000000 }}", ErrorCode::limit, fuel);
  expect_error("{{ ('x' * 90000000) * 90000000 }}", ErrorCode::limit, fuel);
  expect_error("{{ range(100000) | join('x' * 100000) }}", ErrorCode::limit, fuel);
  expect_error(loop("'x'", "{% set ns.s = ns.s + ns.s %}"), ErrorCode::limit, fuel);
  expect_error("{{ ('x' * 100000) | replace('x', 'y' * 100000) }}", ErrorCode::limit, fuel);
  expect_error("{{ '%1000000000d' | format(1) }}", ErrorCode::limit, fuel);
  expect_error("{{ range(100000000) | list }}", ErrorCode::data, "too many elements");
}

TEST(TemplateLimits, NestedValuesNeitherOverflowNorPrintForEver) {
  const std::string fuel = "ran out of fuel";
  expect_error(loop("[]", "{% set ns.s = [ns.s] %}"), ErrorCode::limit, fuel);
  expect_error(loop("{}", "{% set ns.s = {'a': ns.s} %}"), ErrorCode::limit, fuel);
  expect_error(loop("1", "{% set ns.s = namespace(s=ns.s) %}"), ErrorCode::limit, fuel);
  const std::string shared =
      "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}";
  expect_error(shared + "{{ ns.s }}", ErrorCode::limit, fuel);
  expect_error(shared + "{{ ns.s | tojson }}", ErrorCode::limit, fuel);
  expect_error(shared + "{{ ns.s | string }}", ErrorCode::limit, fuel);
  const std::string deep =
      "{% set ns = namespace(s=[]) %}{% for i in range(5000) %}{% set ns.s = [ns.s] %}{% endfor %}";
  expect_error(deep + "{{ ns.s }}", ErrorCode::data, "nested deeper than 128");
  expect_error(deep + "{{ ns.s | tojson }}", ErrorCode::data, "nested deeper than 128");
  expect_error("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", ErrorCode::data,
               "nested deeper than 128");
}

// Work that the engine does not count is stopped by time, and such a template is not started again.
TEST(TemplateLimits, UncountedWorkIsStoppedByTime) {
  const ChatTemplate chat(
      "{% if messages %}{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, "
      "ns.s] %}"
      "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}{% endif %}");
  ChatRequest request;
  EXPECT_EQ(chat.render(request), "");
  request.messages_json = "[1]";
  for (const char* part : {"takes more than 5 seconds", "had to be stopped before"}) {
    try {
      ADD_FAILURE() << chat.render(request);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::limit);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

// The leak checker of sanitized builds holds these to their word: nothing is left of a namespace that holds
// itself.
TEST(TemplateLimits, NamespacesThatHoldThemselvesAreFreed) {
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns.x.x.x is defined }}"), "True");
  EXPECT_EQ(
      rendered(
          "{% set a = namespace({'k': [1]}) %}{% set b = namespace(c=a) %}{% set a.x = [b] %}{{ b.c.k }}"),
      "[1]");
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.in = {'a': ns} %}x"), "x");
}

// A loop that remembers itself is out of our hands, so such a template is not run for ever.
TEST(TemplateLimits, TemplatesThatLoseMemoryAreStopped) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "loses memory, which the leak checker would report";
#endif
  const ChatTemplate chat("{% for i in [1] %}{{ loop.changed([loop, 'x' * 4000000]) }}{% endfor %}");
  size_t renders = 0;
  try {
    while (renders < 100) {
      EXPECT_EQ(chat.render(ChatRequest{}), "True");
      ++renders;
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::limit);
    EXPECT_NE(std::string(error.what()).find("had to be stopped before"), std::string::npos) << error.what();
  }
  EXPECT_EQ(renders, 5U);  // 16 MiB
  const ChatTemplate sound("{% for i in [1, 2] %}{{ loop.changed([i, 'x' * 4000000]) }}{% endfor %}");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(sound.render(ChatRequest{}), "TrueTrue");
}

TEST(TemplateLimits, LargeSourceIsRefused) {
  expect_error(repeated("x", 300000), ErrorCode::limit, "300000 bytes, the limit is 262144");
}

TEST(TemplateErrors, NameTheLineAndTheReason) {
  expect_error("a\nb\n{% if %}", ErrorCode::data, "line 3: unexpected end of block");
  expect_error("a\n{{ nosuch() }}", ErrorCode::data, "line 2: nosuch is unknown");
  expect_error("{{ 'x' | nosuch }}", ErrorCode::data, "filter nosuch is unknown");
  expect_error("{{ 'x'.nosuch() }}", ErrorCode::data, "string has no method named nosuch");
  expect_error("\n\n{{ raise_exception('no system role here') }}", ErrorCode::data,
               "line 3: no system role here");
  expect_error("{{ messages.foo.bar }}", ErrorCode::data, "undefined value");
  expect_error("{{ strftime_now('%Q') }}", ErrorCode::data, "unknown directive %Q");
  expect_error("{{ range | tojson }}", ErrorCode::data, "is not JSON serializable");
}

TEST(TemplateErrors, NothingOutsideTheRequestIsInReach) {
  expect_error("{% include '/etc/passwd' %}", ErrorCode::data, "unknown statement include");
  expect_error("{% import 'os' as os %}", ErrorCode::data, "unknown statement import");
  expect_error("{% extends 'base' %}", ErrorCode::data, "unknown statement extends");
  EXPECT_EQ(rendered("{{ ''.__class__ is defined }}"), "False");
}

TEST(TemplateErrors, BadRequestsAreNamed) {
  expect_error("x", ErrorCode::data, "options: not JSON at byte 1", "{");
  expect_error("x", ErrorCode::data, "options: expected an object", "[]");
  expect_error("x", ErrorCode::data, "options: messages belongs beside the options", R"({"messages":[]})");
  expect_error("x", ErrorCode::data, "control character", "{\"a\":\"\n\"}");
  expect_error("x", ErrorCode::data, "half of a surrogate pair", R"({"a":"\ud83d"})");
  expect_error("x", ErrorCode::data, "leading zero", R"({"a":01})");
  expect_error("x", ErrorCode::data, "text after the value", "{} {}");
  expect_error("x", ErrorCode::data, "nested deeper than 128", R"({"a":)" + repeated("[", 100000));
  expect_error("x", ErrorCode::data, "options: not UTF-8 at byte 6", "{\"a\":\"\xFF\"}");
  ChatRequest request;
  request.now = "yesterday";
  EXPECT_THROW(ChatTemplate("x").render(request), Error);
}

// What Python prints, where the engine would print otherwise.
TEST(TemplateValues, PrintAsPythonPrintsThem) {
  const std::string options =
      R"({"a":1e22,"b":1e-7,"c":5.0,"d":-0.0,"e":123456789012345678901234567890123456789012345,"f":0.1,"g":1e15,"h":1e16,)"
      R"("l":[1.0,null,true,"it's","q\"'"],"m":{"b":1,"a":{"x":[]}},"big":12345678901234567890})";
  EXPECT_EQ(rendered("{{ a }} {{ b }} {{ c }} {{ d }} {{ e }} {{ f }} {{ g }} {{ h }} {{ big }}", options),
            "1e+22 1e-07 5.0 -0.0 123456789012345678901234567890123456789012345 0.1 1000000000000000.0 1e+16 "
            "12345678901234567890");
  EXPECT_EQ(rendered("{{ none }} {{ true }} {{ l }} {{ m }}", options),
            R"(None True [1.0, None, True, "it's", 'q"\''] {'b': 1, 'a': {'x': []}})");
  EXPECT_EQ(
      rendered("{{ l | tojson }} {{ m | tojson }} {{ e | tojson }} {{ a | tojson }}", options),
      R"([1.0, null, true, "it's", "q\"'"] {"b": 1, "a": {"x": []}} 123456789012345678901234567890123456789012345 1e+22)");
  EXPECT_EQ(rendered("{{ m | tojson(indent=2) }}", options),
            "{\n  \"b\": 1,\n  \"a\": {\n    \"x\": []\n  }\n}");
  EXPECT_EQ(rendered("{{ m | tojson(sort_keys=true, separators=(',', ':')) }}", options),
            R"({"a":{"x":[]},"b":1})");
  EXPECT_EQ(rendered("{{ '<é&\U0001F642>' | tojson }} {{ 'é\U0001F642' | tojson(ensure_ascii=true) }}"),
            "\"<é&\U0001F642>\" \"\\u00e9\\ud83d\\ude42\"");
}

TEST(TemplateValues, ClockIsTheCallersOrTheMachines) {
  EXPECT_EQ(rendered("{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%A, %B %-d, %Y %I:%M %p, %j') }}"),
            "30 Nov 2026|Monday, November 30, 2026 12:00 PM, 334");
  const std::string year = ChatTemplate("{{ strftime_now('%Y') }}").render(ChatRequest{});
  EXPECT_GE(std::stoi(year), 2024);
}

}  // namespace
}  // namespace lapidary
