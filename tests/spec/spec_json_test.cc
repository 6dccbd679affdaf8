#include <gtest/gtest.h>

#include <bit>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "spec/json_fields.h"
#include "spec/specs.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

double any_double(uint64_t seed, uint64_t index) {
  const auto bits = philox(seed, 7, index);
  return std::bit_cast<double>(static_cast<uint64_t>(bits[0]) << 32 | bits[1]);
}

// A finite positive number of any magnitude.
double positive(uint64_t index) {
  for (uint64_t seed = 1;; ++seed) {
    const double value = std::fabs(any_double(seed, index));
    if (std::isfinite(value) && value > 0) return value;
  }
}

TEST(SpecJson, RoundTripsEverySpecExactly) {
  for (const ModelSpec& spec : {gemma_like(), llama_like(), expert_like()}) {
    EXPECT_EQ(spec_from_json(spec_to_json(spec)), spec);
  }
}

TEST(SpecJson, KeepsCutSublayersAndDivisors) {
  ModelSpec spec = gemma_like();
  spec.layers[2].attention.reset();
  spec.layers[2].post_attention_norm = false;
  spec.layers[3].ffn.reset();
  spec.layers[3].post_ffn_norm = false;
  for (const size_t i : {1, 3}) {
    RopeSpec& rope = spec.layers[i].attention->rope;
    rope.kind = RopeKind::divisors;
    rope.divisors = {1.0f,          0.1f,           1e30f,   std::numeric_limits<float>::denorm_min(),
                     3.4028235e38f, 1.1754944e-38f, 7.7e-9f, 2.0f};
  }
  EXPECT_EQ(spec_from_json(spec_to_json(spec)), spec);
}

TEST(SpecJson, KeepsEveryBitOfDoubles) {
  for (uint64_t i = 0; i < 2000; ++i) {
    ModelSpec spec = llama_like();
    spec.norm_eps = positive(4 * i);
    spec.embed_scale = positive(4 * i + 1);
    spec.layers[1].attention->scale = positive(4 * i + 2);
    spec.layers[0].attention->rope.theta = positive(4 * i + 3);
    ASSERT_EQ(spec_from_json(spec_to_json(spec)), spec) << i;
  }
}

TEST(JsonNumber, IsReadBackBitForBit) {
  std::vector<double> values = {0.0,
                                -0.0,
                                1.0,
                                1e-6,
                                1e22,
                                1e23,
                                0.1,
                                std::numeric_limits<double>::max(),
                                std::numeric_limits<double>::denorm_min(),
                                9007199254740993.0};
  for (uint64_t i = 0; i < 100000; ++i) {
    const double value = any_double(3, i);
    if (std::isfinite(value)) values.push_back(value);
  }
  for (const double value : values) {
    const json::value parsed = parse_json(json_number(value, "x"), "x");
    ASSERT_TRUE(parsed.is_double()) << value;
    ASSERT_EQ(std::bit_cast<uint64_t>(parsed.get_double()), std::bit_cast<uint64_t>(value)) << value;
  }
  expect_error([] { json_number(std::nan(""), "eps"); }, ErrorCode::data,
               "eps: expected a finite number, got nan");
}

// Long decimal forms too: what another program writes must be rounded as IEEE asks.
TEST(JsonNumber, RoundsSeventeenDigitsCorrectly) {
  for (uint64_t i = 0; i < 20000; ++i) {
    const double value = positive(i);
    const std::string text = fmt::format("{:.17e}", value);
    ASSERT_EQ(parse_json(text, "x").get_double(), value) << text;
  }
}

// Visits every object in a JSON value: f(object, path of it).
void each_object(json::value& value, const std::function<void(json::object&)>& f) {
  if (json::array* array = value.if_array()) {
    for (json::value& element : *array) each_object(element, f);
  } else if (json::object* object = value.if_object()) {
    f(*object);
    for (auto& member : *object) each_object(member.value(), f);
  }
}

size_t count_objects(json::value& root) {
  size_t n = 0;
  each_object(root, [&](json::object&) { ++n; });
  return n;
}

TEST(SpecJson, NamesEveryMissingField) {
  json::value whole = parse_json(spec_to_json(expert_like()), "spec");
  size_t removed = 0;
  for (size_t target = 0; target < count_objects(whole); ++target) {
    std::vector<std::string> keys;
    size_t at = 0;
    each_object(whole, [&](json::object& object) {
      if (at++ != target) return;
      for (const auto& member : object) keys.emplace_back(member.key().data(), member.key().size());
    });
    for (const std::string& key : keys) {
      json::value copy = whole;
      at = 0;
      each_object(copy, [&](json::object& object) {
        if (at++ == target) object.erase(key);
      });
      expect_error([&] { spec_from_json(json::serialize(copy)); }, ErrorCode::data,
                   fmt::format("{}: expected a value, got no such field", key));
      ++removed;
    }
  }
  EXPECT_EQ(removed, 10u + 7u + 11u + 8u + 3u + 3u);  // model, layer, attention, rope, ffn, moe
}

TEST(SpecJson, NamesAnUnknownFieldAnywhere) {
  json::value whole = parse_json(spec_to_json(expert_like()), "spec");
  const size_t objects = count_objects(whole);
  ASSERT_EQ(objects, 6u);
  for (size_t target = 0; target < objects; ++target) {
    json::value copy = whole;
    size_t at = 0;
    each_object(copy, [&](json::object& object) {
      if (at++ == target) object["n_legs"] = 3;
    });
    expect_error([&] { spec_from_json(json::serialize(copy)); }, ErrorCode::data,
                 "n_legs: expected a known field, got an unknown one");
  }
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(SpecJson, NamesUnknownEnumsWrongTypesAndContradictions) {
  const std::string good = spec_to_json(gemma_like());
  const auto expect = [&](std::string_view from, std::string_view to, ErrorCode code, std::string_view part) {
    const std::string text = replaced(good, from, to);
    expect_error([&] { spec_from_json(text); }, code, part);
  };
  expect("\"gelu_tanh\"", "\"relu\"", ErrorCode::unsupported,
         "spec: layers[0].ffn.activation: expected one of gelu_tanh, silu, got \"relu\"");
  expect("\"plain\"", "\"yarn\"", ErrorCode::unsupported,
         "spec: layers[0].attention.rope.kind: expected one of plain, proportional, llama3, divisors, got "
         "\"yarn\"");
  expect("\"add\"", "\"mul\"", ErrorCode::unsupported, "spec: layers[0].residual: expected add, got \"mul\"");
  expect("\"spec_version\": 1", "\"spec_version\": 2", ErrorCode::unsupported,
         "spec: spec_version: expected 1, got 2");
  expect("\"vocab_size\": 96", "\"vocab_size\": \"96\"", ErrorCode::data,
         "spec: vocab_size: expected an integer of 64 bits, got the string \"96\"");
  expect("\"vocab_size\": 96", "\"vocab_size\": 96.5", ErrorCode::data,
         "spec: vocab_size: expected an integer of 64 bits");
  expect("\"tied_head\": true", "\"tied_head\": 1", ErrorCode::data,
         "spec: tied_head: expected true or false");
  expect("\"n_heads\": 4", "\"n_heads\": 5", ErrorCode::data,
         "spec: layers[0].attention.n_kv_heads: expected a divisor of n_heads (5), got 2");
}

TEST(ParseJson, NamesPlaceAndFault) {
  expect_error([] { parse_json("{\"a\": 1,\n \"a\": 2}", "file"); }, ErrorCode::data,
               "file: line 2, column 4: expected each key once, got \"a\" twice");
  expect_error([] { parse_json("{\"a\": 1e999}", "file"); }, ErrorCode::data,
               "expected a number within the range of a double");
  expect_error([] { parse_json("{\"a\": }", "file"); }, ErrorCode::data,
               "file: line 1, column 7: expected valid JSON");
  expect_error([] { parse_json("{} {}", "file"); }, ErrorCode::data,
               "file: line 1, column 4: expected the end of the JSON text");
  expect_error([] { parse_json("", "file"); }, ErrorCode::data,
               "file: line 1, column 1: expected valid JSON");
  expect_error([] { parse_json(std::string(100, '['), "file"); }, ErrorCode::data, "expected valid JSON");
  expect_error([] { parse_json("[\"\xff\"]", "file"); }, ErrorCode::data, "expected valid JSON");
}

}  // namespace
}  // namespace lapidary::test
