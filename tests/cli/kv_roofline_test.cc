// `lapidary kv roofline`: its flags, its formats and its refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <sstream>

#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

std::vector<std::string> quick(const std::vector<std::string>& more,
                               const std::string& model = "llama-tiny") {
  std::vector<std::string> arguments{"kv",      "roofline",   data_path("models/" + model).string(),
                                     "--steps", "3",          "--warmup",
                                     "1",       "--probe-mb", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(KvRoofline, SaysAllInJson) {
  const Program program;
  const json::object out = program.json(
      quick({"--lengths", "40,12", "--threads", "1,2", "--expand-gqa", "--concat-append", "--json"}));
  EXPECT_EQ(out.at("schema"), "lapidary.kv.roofline");
  EXPECT_TRUE(out.at("passed").as_bool());
  EXPECT_EQ(out.at("plan").at("lengths"), (json::array{12, 40}));
  EXPECT_EQ(out.at("model").at("kv_dtype"), "f16");
  EXPECT_EQ(out.at("model").at("kv_read_bytes_per_token_global"), 4 * 2 * 16 * 2 * 2);
  EXPECT_EQ(out.at("machine").at("probe_bytes"), 1 << 20);
  ASSERT_EQ(out.at("runs").as_array().size(), 2u);
  const json::object& run = out.at("runs").at(1).as_object();
  EXPECT_EQ(run.at("threads"), 2);
  const json::object& length = run.at("lengths").at(0).as_object();
  EXPECT_EQ(length.at("kv_bytes_total"), (10 + 11 + 12) * 4 * 2 * 16 * 2 * 2);
  EXPECT_EQ(length.at("kv_bytes_per_step").as_double(), 11 * 4 * 2 * 16 * 2 * 2);
  EXPECT_EQ(run.at("ablations").at(0).at("name"), "expand-gqa");
  EXPECT_EQ(run.at("ablations").at(0).at("expected_passes").as_double(), 7);
  EXPECT_EQ(run.at("ablations").at(1).at("expected_passes").as_double(), 3);
  EXPECT_TRUE(run.at("fit").is_object());
  EXPECT_EQ(run.at("drift").at("length"), 12);
  EXPECT_FALSE(run.at("verdict").at("sentences").as_array().empty());
  EXPECT_EQ(out.at("runs").at(0).at("lengths").at(1).at("logits_xxh3"),
            run.at("lengths").at(1).at("logits_xxh3"));
}

TEST(KvRoofline, LengthsTakeTurns) {
  const Program program;
  for (const auto& [steps, rounds] : {std::pair("3", 1), {"10", 2}, {"11", 1}, {"25", 5}}) {
    const json::object out =
        program.json({"kv", "roofline", data_path("models/llama-tiny").string(), "--lengths", "40,100",
                      "--steps", steps, "--probe-mb", "1", "--json"});
    EXPECT_EQ(out.at("plan").at("rounds"), rounds) << steps;
    EXPECT_TRUE(out.at("passed").as_bool());
  }
}

TEST(KvRoofline, HelpSaysWhatTheNumbersMean) {
  const Program program;
  const Outcome outcome = program.run({"kv", "roofline", "--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* part : {"Examples:", "passes:", "--expand-gqa", "--concat-append", "drift:", "overhead:"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part;
}

TEST(KvRoofline, ShowsPeopleTheSame) {
  const Program program;
  const Outcome outcome = program.run(quick({"--lengths", "12,40", "--expand-gqa"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"passes over the cache", "fit: t =", "expand-gqa", "the same bits",
                           "drift:", "counters equal the formula", "from memory"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
}

TEST(KvRoofline, HasALineOfCsvForEachLength) {
  const Program program;
  const Outcome outcome =
      program.run(quick({"--lengths", "12,40,33", "--concat-append", "--csv"}, "gemma4-e2b-tiny"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<std::string> lines = lines_of(outcome.out);
  ASSERT_EQ(lines.size(), 7u) << outcome.out;
  const auto commas = [](const std::string& line) { return std::count(line.begin(), line.end(), ','); };
  for (const std::string& line : lines) EXPECT_EQ(commas(line), commas(lines[0])) << line;
}

TEST(KvRoofline, LeavesOutUsualLengthsThatDoNotFit) {
  const Program program;
  const json::object out = program.json(quick({"--json"}));
  EXPECT_EQ(out.at("plan").at("lengths"), (json::array{512}));
  EXPECT_EQ(out.at("plan").at("left_out").as_array().size(), 6u);
  EXPECT_EQ(out.at("plan").at("left_out").at(0).at("length"), 1024);
  EXPECT_TRUE(out.at("runs").at(0).at("fit").is_null());
}

TEST(KvRoofline, RefusesWhatMakesNoSense) {
  const Program program;
  expect_refusal(program.run(quick({"--lengths", "12,600"})), 2, "--lengths 600: the model was made for 512");
  expect_refusal(program.run(quick({"--lengths", "4"})), 2, "--lengths 4");
  expect_refusal(program.run(quick({"--lengths", "12", "--kv-dtype", "f8"})), 2, "f8");
  expect_refusal(program.run(quick({"--lengths", "12", "--json", "--csv"})), 2, "--csv");
  expect_refusal(program.run(quick({"--lengths", "12", "--threads", "0"})), 2, "--threads");
  expect_refusal(program.run(quick({"--lengths", "12", "--steps", "0"})), 2, "--steps");
}

// A packed model steps as the model does; its projections cannot be repeated row by row.
TEST(KvRoofline, TakesPackedModelsButCannotExpandThem) {
  const Program program;
  const std::string model = data_path("gguf/models/llama3-tiny-Q4_1.gguf").string();
  ASSERT_EQ(program.run({"pack", model, "m.lapidary"}).exit_code, 0);
  const std::vector<std::string> flags{"--lengths", "12,40", "--steps",    "3",
                                       "--warmup",  "1",     "--probe-mb", "1"};
  const auto command = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"kv", "roofline", name};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  const json::object plain = program.json(command(model, {"--json"})),
                     packed = program.json(command("m.lapidary", {"--json", "--concat-append"}));
  for (const char* field : {"logits_xxh3", "kv_bytes_total", "weight_bytes_per_step"})
    EXPECT_EQ(plain.at("runs").at(0).at("lengths").at(1).at(field),
              packed.at("runs").at(0).at("lengths").at(1).at(field))
        << field;
  expect_refusal(program.run(command("m.lapidary", {"--expand-gqa"})), 2, "a packed model");
}

}  // namespace
}  // namespace lapidary::test
