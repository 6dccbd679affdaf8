// `lapidary kv bytes` as a user runs it.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

std::string golden(const std::string& name) {
  return data_path("models/" + name).string();
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(KvBytes, LooksBelowAtAndPastTheWindow) {
  const Outcome outcome = Program().run({"kv", "bytes", golden("gemma4-e2b-tiny")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  EXPECT_EQ(outcome.err, "");
  for (const char* part : {"below the window", "at the window", "past the window", "length 8", "reads L8",
                           "ok    touched: bytes that the step read = formula", "sliding 8"})
    EXPECT_TRUE(has(outcome.out, part)) << part << "\n" << outcome.out;
  EXPECT_FALSE(has(outcome.out, "FAIL")) << outcome.out;
}

// Two global owners, three global layers: 2 and 3 times one KV head of 16, K and V, in two bytes.
TEST(KvBytes, SlopesPastTheWindow) {
  const json::object out = Program().json(
      {"kv", "bytes", golden("gemma4-e2b-tiny"), "--length", "64,96", "--kv-dtype", "bf16", "--json"});
  EXPECT_TRUE(out.at("ok").as_bool());
  const json::value& slope = out.at("slopes").at(0);
  const json::object plan = Program().json(
      {"kv", "plan", golden("gemma4-e2b-tiny"), "--length", "64,96", "--kv-dtype", "bf16", "--json"});
  EXPECT_EQ(slope.at("stored_bytes_per_token"), plan.at("kv_per_token").at("stored_past_window_bytes"));
  EXPECT_EQ(slope.at("touched_bytes_per_token"), plan.at("kv_per_token").at("engine_read_past_window_bytes"));
  for (size_t i = 0; i < 2; ++i) {
    const json::value &planned = plan.at("lengths").at(i), &run = out.at("lengths").at(i);
    EXPECT_EQ(run.at("needed_bytes"), planned.at("needed_bytes"));
    EXPECT_EQ(run.at("touched_bytes"), planned.at("engine_read_bytes"));
    EXPECT_EQ(run.at("pool_bytes"), planned.at("views").at(1).at("bytes"));
    EXPECT_EQ(run.at("pages"), planned.at("pages"));
  }
}

TEST(KvBytes, APromptIsItsLengthAndMoreComesAfterIt) {
  const Program program;
  const std::string model = data_path("gguf/models/gemma4-e2b-tiny-F32.gguf").string();
  const json::object ids = program.json({"tokenize", model, "the end of the line", "--json"});
  const int64_t count = ids.at("count").to_number<int64_t>();
  ASSERT_GT(count, 2);
  const json::object alone = program.json({"kv", "bytes", model, "the end of the line", "--json"});
  ASSERT_EQ(alone.at("lengths").as_array().size(), 1u);
  EXPECT_EQ(alone.at("lengths").at(0).at("length").as_int64(), count);
  const json::object longer =
      program.json({"kv", "bytes", model, "the end of the line", "--json", "--length", "60,2"});
  EXPECT_EQ(longer.at("lengths").at(0).at("length").as_int64(), 2);
  EXPECT_EQ(longer.at("lengths").at(1).at("length").as_int64(), 60);
}

TEST(KvBytes, EveryLayerAndCsv) {
  const Program program;
  const Outcome all = program.run({"kv", "bytes", golden("gemma4-31b-tiny"), "--length", "40", "--layers"});
  const Outcome few = program.run({"kv", "bytes", golden("gemma4-31b-tiny"), "--length", "40"});
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  EXPECT_EQ(lines(all.out) - lines(few.out), 6 - 2) << all.out << few.out;
  const Outcome csv = program.run({"kv", "bytes", golden("gemma4-31b-tiny"), "--length", "9,40", "--csv"});
  EXPECT_EQ(lines(csv.out), 1 + 2 * 6) << csv.out;
}

TEST(KvBytes, KeepBehindShowsAsRounding) {
  const json::object out = Program().json(
      {"kv", "bytes", golden("gemma4-31b-tiny"), "--length", "200", "--keep-behind", "64", "--json"});
  EXPECT_TRUE(out.at("ok").as_bool());
  EXPECT_GT(out.at("lengths").at(0).at("page_rounding_bytes").as_int64(), 0);
}

TEST(KvBytes, WrongUsageIsNamed) {
  const Program program;
  const auto refused = [&](std::vector<std::string> arguments, int code, const std::string& part) {
    arguments.insert(arguments.begin(), {"kv", "bytes", golden("llama-tiny")});
    expect_refusal(program.run(arguments), code, part);
  };
  refused({"--kv-dtype", "q4_0"}, 2, "q4_0");
  refused({"--length", "0"}, 2, "0 is less than 1");
  refused({"--length", "513"}, 2, "length 513: the model was made for at most 512 positions");
  refused({""}, 2, "the value is empty");
  refused({"--json", "--csv"}, 2, "--json excludes --csv");
  expect_refusal(program.run({"kv", "bytes", data_path("configs/e2b/config.json").string()}), 2,
                 "is a configuration without weights");
}

TEST(RealKvBytes, SmolLm2WithTheSourcesPrompt) {
  const Program program;
  const json::object out =
      program.json({.arguments = {"kv", "bytes", "smollm2-135m-instruct", "The capital of France is",
                                  "--length", "5,15", "--json"},
                    .user_cache = true});
  EXPECT_TRUE(out.at("ok").as_bool());
  EXPECT_EQ(out.at("lengths").at(0).at("needed_bytes").as_int64(), 115'200);
  EXPECT_EQ(out.at("lengths").at(0).at("stored_bytes").as_int64(), 115'200);
  EXPECT_EQ(out.at("lengths").at(1).at("stored_bytes").as_int64(), 15 * 23'040);
}

}  // namespace
}  // namespace lapidary::test
