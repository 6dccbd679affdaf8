// Requests as JSON, read strictly.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "serve/api/api_error.h"
#include "serve/api/fields.h"

namespace lapidary::serve {
namespace {

namespace json = boost::json;

ApiError error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const ApiError& error) {
    return error;
  }
  return {0, "", "", "", "nothing was thrown"};
}

void expect_no_json(const std::string& text, const std::string& part) {
  const ApiError error = error_of([&] { parse_json(text, 64); });
  EXPECT_EQ(error.status(), 400) << text;
  EXPECT_EQ(error.code(), "invalid_json") << text;
  EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what() << "\n" << text;
}

TEST(ApiJson, WhatIsNoJsonIsRefusedWithItsPlace) {
  expect_no_json("{\"a\": 1,\n  oops}", "line 2, column 3");
  expect_no_json("{\"a\": 1", "ends too early");
  expect_no_json("", "ends too early");
  expect_no_json("{} {}", "line 1, column 4: something follows");
  expect_no_json("{'a': 1}", "line 1, column 2");
  expect_no_json("[1,]", "line 1, column 4");
  expect_no_json("{\"é\": nul}", "line 1");
  expect_no_json("[01]", "line 1");
  expect_no_json("[NaN]", "line 1, column 2");
  expect_no_json("[\"\x01\"]", "line 1");
  expect_no_json("\xEF\xBB\xBF{}", "line 1, column 1");
}

TEST(ApiJson, WhatParsersLetPassIsRefusedToo) {
  expect_no_json(R"({"a": 1, "b": {"a": 2}, "a": 3})", "the key \"a\" stands twice");
  expect_no_json("{\"a\": 1, \"\\u0061\": 3}", "the key \"a\" stands twice");
  expect_no_json(R"(["\ud800"])", "line 1, column 9");
  expect_no_json(R"(["\ud800\u0041"])", "surrogate");
  expect_no_json(R"(["\udc00"])", "surrogate");
  expect_no_json("[\"\xff\"]", "not UTF-8");
  expect_no_json("[\"\xed\xa0\x80\"]", "not UTF-8");
  expect_no_json("[1e999]", "too large");
  expect_no_json("[123456789012345678901234567890]", "too large");
  expect_no_json(std::string(65, '[') + std::string(65, ']'), "too deep");
}

TEST(ApiJson, SoundJsonComesThrough) {
  EXPECT_EQ(parse_json(R"({"a": [1, -2.5, "\ud83d\ude00", null, true, 18446744073709551615]})", 64),
            json::value({{"a", {1, -2.5, "\xF0\x9F\x98\x80", nullptr, true, UINT64_MAX}}}));
  EXPECT_NO_THROW(parse_json(std::string(64, '[') + std::string(64, ']'), 64));
}

TEST(ApiJson, ABodyIsAnObjectOfTypeJson) {
  HttpRequest request;
  request.body = "[1]";
  EXPECT_EQ(error_of([&] { parse_body(request, 8); }).code(), "invalid_type");
  request.body = "";
  EXPECT_EQ(error_of([&] { parse_body(request, 8); }).code(), "invalid_json");
  request.body = "{}";
  request.headers = {{"content-type", "text/plain"}};
  EXPECT_EQ(error_of([&] { parse_body(request, 8); }).status(), 415);
  for (const char* type :
       {"application/json", "Application/JSON; charset=utf-8", "application/problem+json"}) {
    request.headers = {{"content-type", type}};
    EXPECT_TRUE(parse_body(request, 8).empty()) << type;
  }
}

class ApiFields : public testing::Test {
 protected:
  // What reading one field of the text makes of it: an error's param and message.
  template <typename Read>
  void refused(const std::string& text, Read read, const std::string& param, const std::string& part) {
    const json::object object = json::parse(text).as_object();
    Fields fields(object, "outer");
    const ApiError error = error_of([&] { read(fields); });
    EXPECT_EQ(error.status(), 400) << text;
    EXPECT_EQ(error.param(), param) << text;
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
};

TEST_F(ApiFields, KindsAndRangesAreChecked) {
  refused(R"({"n": "1"})", [](Fields& f) { f.integer("n", 0); }, "outer.n",
          "expected an integer, got a string");
  refused(R"({"n": 1.5})", [](Fields& f) { f.integer("n", 0); }, "outer.n",
          "expected an integer, got a number");
  refused(R"({"n": true})", [](Fields& f) { f.integer("n", 0); }, "outer.n", "got a boolean");
  refused(R"({"n": -1})", [](Fields& f) { f.integer("n", 0); }, "outer.n", "expected 0 or more, got -1");
  refused(R"({"n": 18446744073709551615})", [](Fields& f) { f.integer("n", 0, 9); }, "outer.n", "0 to 9");
  refused(R"({"x": 3})", [](Fields& f) { f.number("x", 0, 2); }, "outer.x", "expected 0 to 2, got 3");
  refused(R"({"x": "3"})", [](Fields& f) { f.number("x", 0, 2); }, "outer.x", "expected a number");
  refused(R"({"b": 1})", [](Fields& f) { f.flag("b"); }, "outer.b", "expected a boolean, got an integer");
  refused(R"({"t": []})", [](Fields& f) { f.text("t"); }, "outer.t", "expected a string, got an array");
  refused(R"({"t": "abc"})", [](Fields& f) { f.text("t", 2); }, "outer.t", "at most 2 bytes, got 3");
  refused(R"({"o": 1})", [](Fields& f) { f.object("o"); }, "outer.o", "expected an object");
  refused(R"({"a": [1,2]})", [](Fields& f) { f.array("a", 1); }, "outer.a", "at most 1 items, got 2");
  refused(R"({"a": ["x",2]})", [](Fields& f) { f.texts("a", 9, 9); }, "outer.a[1]", "expected a string");
  refused(R"({"a": 2})", [](Fields& f) { f.texts("a", 9, 9); }, "outer.a", "a string or an array of strings");
  refused(R"({})", [](Fields& f) { f.needed("a"); }, "outer.a", "missing");
  refused(R"({"a": null})", [](Fields& f) { f.needed_text("a"); }, "outer.a", "missing");
  refused(R"({"a": 1})", [](Fields& f) { f.refuse_if_present("a", "no such thing"); }, "outer.a",
          "no such thing");
  static constexpr std::string_view words[] = {"one", "two"};
  refused(R"({"w": "three"})", [](Fields& f) { f.choice("w", words); }, "outer.w", "one of one, two");
}

TEST_F(ApiFields, UnknownFieldsAreNamedWithTheNearestKnown) {
  const auto read = [](Fields& f) {
    f.number("temperature", 0, 2);
    f.text("model");
    f.done();
  };
  refused(R"({"temperatur": 1})", read, "outer.temperatur", "did you mean outer.temperature?");
  refused(R"({"zzzzzzz": 1})", read, "outer.zzzzzzz", "there is no such field");
  refused(R"({"zzzzzzz": null})", read, "outer.zzzzzzz", "there is no such field");
  refused("{\"a\\u0000\\n\": 1}", read, "outer.a\\x00\\x0a", "no such field");
}

TEST_F(ApiFields, ValuesComeThrough) {
  const json::object object =
      json::parse(
          R"({"i": 7, "r": 7.0, "x": 1, "b": false, "t": "s", "l": ["p", "q"], "one": "p", "z": null})")
          .as_object();
  Fields fields(object, "");
  EXPECT_EQ(fields.integer("i", 0), 7);
  EXPECT_EQ(fields.integer("r", 0), 7) << "whole, however it is written";
  EXPECT_EQ(fields.number("x", 0, 2), 1.0);
  EXPECT_EQ(fields.flag("b"), false);
  EXPECT_EQ(fields.text("t"), "s");
  EXPECT_EQ(fields.texts("l", 2, 9), (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(fields.texts("one", 2, 9), std::vector<std::string>{"p"});
  EXPECT_EQ(fields.integer("z", 0), std::nullopt);
  EXPECT_EQ(fields.integer("absent", 0), std::nullopt);
  EXPECT_EQ(fields.path("i"), "i");
  EXPECT_NO_THROW(fields.done());
}

TEST_F(ApiFields, IdsAreWithinTheVocabulary) {
  EXPECT_EQ(ids_of(json::parse("[0, 9]").as_array(), "p", 10), (std::vector<TokenId>{0, 9}));
  EXPECT_EQ(error_of([] { ids_of(json::parse("[0, 10]").as_array(), "p", 10); }).param(), "p[1]");
  EXPECT_EQ(error_of([] { ids_of(json::parse("[-1]").as_array(), "p", 10); }).param(), "p[0]");
  EXPECT_EQ(error_of([] { ids_of(json::parse("[1.0]").as_array(), "p", 10); }).param(), "p[0]");
}

}  // namespace
}  // namespace lapidary::serve
