// `lapidary kv plan` as a user runs it.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/error.h"
#include "cli/byte_sizes.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

std::string config(const std::string& name) {
  return data_path("configs/" + name + "/config.json").string();
}

int64_t number(const json::value& object, const char* name) {
  return object.at(name).as_int64();
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(KvPlan, E2bInText) {
  const Outcome outcome =
      Program().run({"kv", "plan", config("e2b"), "--kv-dtype", "bf16", "--length", "512,513,131072"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos) << "colours belong to terminals";
  for (const char* part :
       {"weights, as if in bf16", "18,432", "43,008", "6,144", "14,336", "811,597,824", "774 MiB",
        "reads L13", "SSSSF ×3", "×2.98", "15 own their K and V, 20 read another's"})
    EXPECT_TRUE(has(outcome.out, part)) << part << "\n" << outcome.out;
  EXPECT_LT(outcome.seconds, 1.0);
}

TEST(KvPlan, LengthsAreSortedAndDefaultToPowersOfFour) {
  const Program program;
  const json::object sorted =
      program.json({"kv", "plan", config("smollm2-135m"), "--json", "--length", "9,3,9"});
  ASSERT_EQ(sorted.at("lengths").as_array().size(), 2u);
  EXPECT_EQ(number(sorted.at("lengths").at(0), "length"), 3);
  const json::object own = program.json({"kv", "plan", config("smollm2-135m"), "--json"});
  EXPECT_EQ(number(own.at("lengths").as_array().back(), "length"), 8192);
  EXPECT_EQ(number(own.at("lengths").at(0), "length"), 1024);
  EXPECT_EQ(number(own.at("crossover"), "stored_length"), 11'677);
  EXPECT_TRUE(own.at("crossover").at("stored_past_max_position").as_bool());
}

TEST(KvPlan, VendorsContextOfLlama3) {
  const Outcome outcome = Program().run({"kv", "plan", config("llama-3.1-70b"), "--length", "112000"});
  EXPECT_TRUE(has(outcome.out, "36,700,160,000")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "34.2 GiB")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "327,680")) << outcome.out;
  const Outcome old =
      Program().run({"kv", "plan", config("llama-3-70b"), "--length", "112000", "--max-position", "131072"});
  EXPECT_TRUE(has(old.out, "36,700,160,000")) << old.out;
  EXPECT_TRUE(has(old.out, "the model was made for 8,192")) << old.out;
}

// The weights of a file are its own; --weight-dtype prices another.
TEST(KvPlan, ReadsHeadersOfAModel) {
  const Program program;
  const std::string gguf = data_path("gguf/models/gemma4-e2b-wide-Q4_K_M.gguf").string();
  const json::object plan = program.json({"kv", "plan", gguf, "--json"});
  const json::object seen = program.json({"inspect", gguf, "--json"});
  int64_t bytes = 0;
  for (const auto& [dtype, n] : seen.at("dtype_bytes").as_object()) bytes += n.as_int64();
  EXPECT_EQ(plan.at("weights").at("source").as_string(), "file");
  EXPECT_EQ(number(plan.at("weights"), "resident_bytes"), bytes);
  EXPECT_EQ(number(plan.at("weights"), "resident_elements"), number(seen.at("parameters"), "resident"));
  EXPECT_EQ(number(plan.at("kv_per_token"), "stored_past_window_bytes"),
            number(seen.at("kv"), "bytes_per_token_past_window"));
  const json::object other = program.json({"kv", "plan", gguf, "--json", "--weight-dtype", "f32"});
  EXPECT_EQ(number(other.at("weights"), "resident_bytes"), 4 * number(seen.at("parameters"), "resident"));
  const std::string folder = data_path("models/gemma4-26b-tiny").string();
  EXPECT_EQ(number(program.json({"kv", "plan", folder, "--json"}).at("weights"), "resident_bytes"),
            2 * number(program.json({"inspect", folder, "--json"}).at("parameters"), "resident"))
      << "bf16, experts in one piece or in two";
}

TEST(KvPlan, APackedModelHoldsItsPanels) {
  const Program program;
  const std::string gguf = data_path("gguf/models/gemma4-e2b-wide-Q4_0.gguf").string();
  const Outcome packed = program.run({"pack", gguf, "model.lapidary"});
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  const json::object plan = program.json({"kv", "plan", "model.lapidary", "--json"});
  EXPECT_TRUE(has(json::serialize(plan.at("weights").at("by_dtype")), "packed q4_0"));
  EXPECT_GT(number(plan.at("weights"), "resident_bytes"), 0);
  EXPECT_LT(number(plan.at("weights"), "touched_bytes_per_token"),
            number(plan.at("weights"), "resident_bytes"));
}

TEST(KvPlan, RanksAndBudgetInText) {
  const Outcome outcome = Program().run({"kv", "plan", config("12b"), "--tp", "2", "--budget", "48GiB",
                                         "--reserve", "1GiB", "--sequences", "4", "--length", "32768"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part :
       {"replicated: 2 ranks do not divide 1 head", "48.0 GiB (51.5 GB) a rank", "set aside",
        "longest, 4 sequences", "the model; memory for", "sequences of 32,768"})
    EXPECT_TRUE(has(outcome.out, part)) << part << "\n" << outcome.out;
}

TEST(KvPlan, TypesOfOthersArePricedAndMarked) {
  const Outcome outcome =
      Program().run({"kv", "plan", config("smollm2-135m"), "--kv-dtype", "k=q8_0,v=q4_0"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "k=q8_0,v=q4_0 (not run here)")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "9,360")) << outcome.out;
  EXPECT_FALSE(has(outcome.out, "this engine's pages")) << outcome.out;
  const json::object plan =
      Program().json({"kv", "plan", config("smollm2-135m"), "--kv-dtype", "q4_0", "--json"});
  EXPECT_FALSE(plan.at("kv_dtype").at("runs_here").as_bool());
}

TEST(KvPlan, CsvHasALineForEachLength) {
  const Outcome outcome = Program().run({"kv", "plan", config("e2b"), "--csv", "--length", "4096,32768"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("length,sequences,weight_bytes,")) << outcome.out;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 3);
}

TEST(KvPlan, EveryLayerOnDemand) {
  const std::string grouped = Program().run({"kv", "plan", config("31b")}).out;
  const std::string full = Program().run({"kv", "plan", config("31b"), "--layers"}).out;
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  EXPECT_EQ(lines(full) - lines(grouped), 60 - 2) << full;
}

TEST(KvPlan, WrongUsageIsNamed) {
  const Program program;
  const auto refused = [&](std::vector<std::string> arguments, int code, const std::string& part) {
    arguments.insert(arguments.begin(), {"kv", "plan", config("smollm2-135m")});
    expect_refusal(program.run(arguments), code, part);
  };
  refused({"--kv-dtype", "fp8"}, 2, "--kv-dtype: expected f32, f16, bf16, q8");
  refused({"--weight-dtype", "i8"}, 2, "--weight-dtype: expected f32, f16, bf16, q8_0");
  refused({"--length", "0"}, 2, "0 is less than 1");
  refused({"--length", "8193"}, 2, "expected 1 to 8192 positions, what the model was made for, got 8193");
  refused({"--tp", "2"}, 2, "divides the query heads, and layer 0 has 9");
  refused({"--budget", "16"}, 2, "as in 16GiB, got \"16\"");
  refused({"--budget", "16G"}, 2, "as in 16GiB, got \"16G\"");
  refused({"--budget", "-1GiB"}, 2, "got \"-1GiB\"");
  refused({"--budget", "200MiB"}, 1, "do not hold the weights");
  refused({"--budget", "269030017B"}, 1, "one page of every layer");
  refused({"--reserve", "1GiB"}, 2, "--reserve is a part of --budget");
  refused({"--json", "--csv"}, 2, "--json excludes --csv");
  expect_refusal(program.run({"kv", "plan", "no-such-model"}), 1, "no-such-model");
  expect_refusal(program.run({"kv"}), 2, "plan");
}

TEST(ByteSizes, AreReadAndWrittenWithTheirUnits) {
  EXPECT_EQ(parse_byte_size("16GiB", ""), int64_t{16} << 30);
  EXPECT_EQ(parse_byte_size("16 GB", ""), 16'000'000'000);
  EXPECT_EQ(parse_byte_size("1.5TiB", ""), (int64_t{3} << 40) / 2);
  EXPECT_EQ(parse_byte_size("7B", ""), 7);
  EXPECT_EQ(parse_byte_size("2kB", ""), 2000);
  EXPECT_EQ(parse_byte_size("2KiB", ""), 2048);
  for (const char* wrong : {"", "GiB", "16", "16gib", "16 GiBs", "nanGB", "infGB", "0x10GB", "9e18GB"})
    expect_error([&] { parse_byte_size(wrong, "--budget"); }, ErrorCode::usage, "--budget: ", wrong);
  EXPECT_EQ(binary_text(36'700'160'000), "34.2 GiB");
  EXPECT_EQ(both_units_text(36'700'160'000), "34.2 GiB (36.7 GB)");
  EXPECT_EQ(binary_text(1023), "1023 B");
  EXPECT_EQ(binary_text(1024), "1.00 KiB");
  EXPECT_EQ(both_units_text(12), "12 B");
}

}  // namespace
}  // namespace lapidary::test
