// `lapidary kv recompute`: its flags, its exit codes, and both of its views.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <sstream>

#include "support/golden_models.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

std::string tiny(const std::string& name = "llama-tiny") {
  return data_path("models/" + name).string();
}

std::vector<std::string> command(std::vector<std::string> more) {
  std::vector<std::string> arguments{"kv", "recompute", tiny(), "--ids", "1,5,9,13,2,7,21,30,4", "-n", "4"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(KvRecompute, ShowsExactAndFastSideBySide) {
  const Outcome outcome = Program().run(command({"--no-reference"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"9 tokens of prompt, 4 decode calls, 13 positions cached", "runner-up",
                           "decode of single tokens", "calls of 7 tokens", "one prefill", "first to differ",
                           "exact: 100.0 % of ", " have the same bits in 6 recomputations", "fast: down to "})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  EXPECT_EQ(outcome.out.find("reference"), std::string::npos);
}

TEST(KvRecompute, JsonNamesModesTypesAndMaps) {
  const boost::json::object out = Program().json(command(
      {"--no-reference", "--json", "--kv-dtype", "k=q8,v=bf16", "--chunks", "3,all", "--threads", "2"}));
  EXPECT_EQ(out.at("schema").as_string(), "lapidary.kv.recompute");
  EXPECT_EQ(out.at("positions").as_int64(), 13);
  EXPECT_EQ(out.at("repro").at("model_hash").as_string().size(), 32u);
  ASSERT_EQ(out.at("runs").as_array().size(), 2u);
  const boost::json::object& exact = out.at("runs").at(0).as_object();
  EXPECT_EQ(exact.at("key_type").as_string(), "q8");
  EXPECT_EQ(exact.at("value_type").as_string(), "bf16");
  EXPECT_TRUE(exact.at("promised_exact").as_bool());
  EXPECT_EQ(exact.at("numeric_mode").as_string().find("exact, "), 0u);
  EXPECT_EQ(out.at("runs").at(1).at("numeric_mode").as_string().find("fast, "), 0u);
  ASSERT_EQ(exact.at("recomputations").as_array().size(), 2u);
  EXPECT_EQ(exact.at("recomputations").at(0).at("chunk").as_int64(), 3);
  EXPECT_EQ(exact.at("recomputations").at(0).at("calls").as_int64(), 5);
  EXPECT_EQ(exact.at("recomputations").at(1).at("chunk").as_int64(), 0);
  EXPECT_EQ(exact.at("recomputations").at(1).at("kv").at("equal_percent").to_number<double>(), 100);
}

TEST(KvRecompute, AModeByItselfIsOneRun) {
  const boost::json::object out = Program().json(command({"--no-reference", "--json", "--mode", "fast"}));
  ASSERT_EQ(out.at("runs").as_array().size(), 1u);
  EXPECT_EQ(out.at("runs").at(0).at("name").as_string(), "fast");
}

TEST(KvRecompute, CsvHasALineForEachRecomputationAndLayer) {
  const Outcome outcome = Program().run(command({"--no-reference", "--csv", "--chunks", "1,all"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto layers = static_cast<int64_t>(open_golden_model("llama-tiny").spec.layers.size());
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1 + 2 * 2 * 2 * layers);
  const auto commas_of = [](const std::string& line) {  // outside of quotes
    bool quoted = false;
    int64_t commas = 0;
    for (const char c : line) {
      if (c == '"') quoted = !quoted;
      commas += c == ',' && !quoted ? 1 : 0;
    }
    return commas;
  };
  std::istringstream lines(outcome.out);
  std::string heading;
  std::getline(lines, heading);
  for (std::string line; std::getline(lines, line);) EXPECT_EQ(commas_of(line), commas_of(heading)) << line;
  expect_refusal(Program().run(command({"--json", "--csv"})), 2, "--csv");
}

TEST(KvRecompute, SaysPlainlyThatTheReferenceIsMissing) {
  const Invocation invocation{.arguments = command({"--chunks", "all", "--threads", "1"}),
                              .environment = {{"LAPIDARY_REFERENCE", "/nowhere/liblapidary_reference.so"}}};
  const Outcome outcome = Program().run(invocation);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("no comparison with the truth: this build has no reference executor"),
            std::string::npos)
      << outcome.out;
  Invocation as_executor = invocation;
  as_executor.arguments.insert(as_executor.arguments.end(), {"--executor", "reference"});
  expect_refusal(Program().run(as_executor), 1, "this build has no reference executor");
}

TEST(KvRecompute, WrongUseIsRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {command({"--mode", "quick"}), "--mode"},
      {command({"--chunks", "7,some"}), "--chunks: expected numbers from 1 on, or all, got \"some\""},
      {command({"--chunks", "0"}), "--chunks"},
      {command({"--threads", "0"}), "--threads"},
      {command({"--dtype", "f16"}), "--dtype"},
      {command({"--dtype", "bf16"}), "bf16 is no truth"},
      {command({"--dtype", "f32", "--no-reference"}), "--dtype"},
      {command({"--executor", "reference", "--mode", "exact"}), "belongs to the engine"},
      {command({"--executor", "reference", "--kv-dtype", "f32"}), "belongs to the engine"},
      {command({"words"}), "PROMPT and --ids cannot be given together"},
      {{"kv", "recompute", tiny()}, "a PROMPT or --ids is required"},
      {{"kv", "recompute", tiny(), "--ids", "1,999999"}, "token 1 is 999999"}};
  for (const auto& [arguments, part] : cases) expect_refusal(Program().run(arguments), 2, part);
}

TEST(KvRecompute, MorePositionsThanTheModelHasAreRefused) {
  expect_refusal(Program().run({"kv", "recompute", tiny(), "--ids", "1", "-n", "100000"}), 1, "was made for");
}

TEST(ModeFlag, IsObeyedNamedAndRefusedWhereItMeansNothing) {
  const Program program;
  const auto mode_of = [&](const std::string& mode) {
    const boost::json::object out =
        program.json({"score", tiny(), "--ids", "1,5,9,13,2,7,21,30,4,8", "--mode", mode, "--json"});
    return std::pair(std::string(out.at("numeric_mode").as_string()),
                     boost::json::serialize(out.at("logprobs")));
  };
  const auto [exact_name, exact] = mode_of("exact");
  const auto [fast_name, fast] = mode_of("fast");
  EXPECT_EQ(exact_name.find("exact, "), 0u);
  EXPECT_EQ(fast_name.find("fast, "), 0u);
  EXPECT_NE(exact, fast);
  expect_refusal(program.run({"score", tiny(), "--ids", "1,5", "--mode", "quick"}), 2, "--mode");
  expect_refusal(program.run({"score", tiny(), "--ids", "1,5", "--executor", "reference", "--mode", "fast"}),
                 2, "belongs to the engine");
}

}  // namespace
}  // namespace lapidary::test
