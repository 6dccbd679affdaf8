// `lapidary verify` and `score --executor reference` as a user runs them.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <set>

#include "formats/artifact.h"
#include "formats/mapped_file.h"
#include "support/compare.h"
#include "support/golden_models.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

std::string gguf(const std::string& name) {
  return data_path("gguf/models/" + name + ".gguf").string();
}
std::string folder(const std::string& name) {
  return data_path("models/" + name).string();
}

const json::object& first_prompt(const json::object& report, const char* step) {
  return report.at(step).at("prompts").as_array()[0].as_object();
}
std::string engine_of(const json::object& report, const char* step) {
  return std::string(report.at(step).at("engine").as_string());
}

TEST(VerifyCommand, ReportsAndPasses) {
  const Program program;
  const Outcome outcome = program.run({"verify", gguf("gemma4-e2b-tiny-Q8_0"), "--self-test"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  for (const char* part :
       {"tokenizer  ok", "past the window", "libtorch, f64", "layer_scalar := 1",
        "structure: exact, f32 accumulation, kv f32", "shipped mode: exact, a16, f32 accumulation, kv f16",
        "low terms of activations lost", "PASSED"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
  EXPECT_EQ(outcome.out.find("MISSED"), std::string::npos);
}

TEST(VerifyCommand, AModelWithoutATokenizerIsVerifiedOnRandomIds) {
  const Program program;
  const json::object report =
      program.json({"verify", folder("gemma4-26b-tiny"), "--kv-dtype", "f32", "--json"});
  EXPECT_TRUE(report.at("passed").as_bool());
  EXPECT_TRUE(report.at("tokenizer").as_array().empty());
  EXPECT_TRUE(report.at("shipped").is_null()) << "float weights: the first step says all";
  EXPECT_EQ(report.at("shipped_note").as_string(), "float as above, nothing more to judge");
  const json::array& prompts = report.at("structure").at("prompts").as_array();
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(prompts[0].at("name").as_string(), "random 1");
  EXPECT_EQ(prompts[0].at("layers").as_array().size(), 6u);
}

// What ships is what is checked: the engine runs on the mapped sections, the reference on what they decode
// to.
TEST(VerifyCommand, APackedModelIsCheckedAsItIs) {
  const Program program;
  for (const std::string& model : {gguf("gemma4-e2b-wide-Q4_K_M"), folder("gemma4-26b-tiny")}) {
    ASSERT_EQ(program.run({"pack", model, "m.lapidary", "--force"}).exit_code, 0) << model;
    const json::object report = program.json({"verify", "m.lapidary", "--self-test", "--json"});
    EXPECT_TRUE(report.at("passed").as_bool()) << json::serialize(report.at("failures"));
    EXPECT_NE(std::string(report.at("file").as_string()).find("each as its checksum says"),
              std::string::npos);
  }
}

// The blocks of the source, decoded by code that knows nothing of packing, are the judge.
TEST(VerifyCommand, APackedModelIsHeldToItsSource) {
  const Program program;
  const std::string source = gguf("gemma4-12b-wide-Q4_K_M");
  ASSERT_EQ(program.run({"pack", source, "m.lapidary"}).exit_code, 0);
  const json::object report = program.json({"verify", "m.lapidary", "--against", source, "--json"});
  EXPECT_TRUE(report.at("passed").as_bool()) << json::serialize(report.at("failures"));
  EXPECT_EQ(report.at("structure").at("tolerances").at("logits").as_double(), 2e-4)
      << "judged, not only stated";
  const json::object other =
      program.json({"verify", "m.lapidary", "--against", gguf("gemma4-12b-wide-Q8_0"), "--json"});
  EXPECT_EQ(other.at("structure").at("tolerances").at("logits").as_double(), 0.0)
      << "other weights: the cost is stated";
}

TEST(VerifyCommand, DamageInAPackedModelIsNamed) {
  const Program program;
  ASSERT_EQ(program.run({"pack", gguf("llama-tiny-Q8_0"), "m.lapidary"}).exit_code, 0);
  const auto path = program.folder().path() / "m.lapidary";
  const MappedFile whole(path);
  std::vector<std::byte> bytes(whole.bytes().begin(), whole.bytes().end());
  const Artifact artifact = parse_artifact(bytes, "m");
  const ArtifactSection* down = artifact.find("layers.1.down");
  ASSERT_NE(down, nullptr);
  bytes[static_cast<size_t>(down->offset + 5)] ^= std::byte{1};
  program.folder().write("damaged.lapidary", std::span<const std::byte>(bytes));
  expect_refusal(program.run({"verify", "damaged.lapidary"}), 1,
                 "damaged.lapidary: section \"layers.1.down\": checksum: expected ");
}

TEST(VerifyCommand, TakesPromptsOfTheUser) {
  const Program program;
  program.folder().write(
      "prompts.jsonl",
      std::string_view("{\"text\": \"the end\", \"name\": \"mine\"}\n{\"ids\": [2, 5, 7]}\n"));
  const json::object report = program.json({"verify", gguf("llama-tiny-F32"), "--prompts", "prompts.jsonl",
                                            "--json", "-n", "4", "--dtype", "f32"});
  const json::array& prompts = report.at("structure").at("prompts").as_array();
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].at("name").as_string(), "mine");
  EXPECT_EQ(prompts[1].at("tokens").to_number<int>(), 3);
  EXPECT_EQ(prompts[1].at("greedy").at("steps").to_number<int>(), 4);

  const std::pair<const char*, const char*> refusals[] = {
      {R"({"txt": "b"})", "bad.jsonl:2: txt"},
      {"[1]", "bad.jsonl:2: expected an object"},
      {R"({"text": "a", "ids": [1]})",
       "bad.jsonl:2: expected one of \"text\", \"ids\" and \"messages\", got 2"},
      {R"({"name": "x"})", "bad.jsonl:2: expected one of \"text\", \"ids\" and \"messages\", got 0"},
      {R"({"ids": 5})", "bad.jsonl:2: ids: expected an array"},
      {R"({"ids": [1, 99999999999]})",
       "bad.jsonl:2: ids[1]: expected a token id, got the number 99999999999"},
      {R"({"messages": [{"role": "user"}]})", "bad.jsonl:2: messages[0].content"},
      {R"({"text": )", "bad.jsonl:2"},
  };
  for (const auto& [line, message] : refusals) {
    program.folder().write("bad.jsonl", std::string_view(std::string("{\"text\": \"a\"}\n") + line + "\n"));
    expect_refusal(program.run({"verify", gguf("llama-tiny-F32"), "--prompts", "bad.jsonl"}), 1, message);
  }
  program.folder().write("outside.jsonl", std::string_view("{\"ids\": [2, 99999]}\n"));
  expect_refusal(program.run({"verify", gguf("llama-tiny-F32"), "--prompts", "outside.jsonl"}), 2,
                 "token 1 is 99999, outside the vocabulary of 320");
}

TEST(VerifyCommand, SaysWhenNoPromptReachesPastTheWindow) {
  const Program program;
  const json::object report = program.json({"verify", gguf("gemma3-tiny-F32"), "--json"});
  EXPECT_EQ(report.at("window_note").as_string(), "");
  program.folder().write("short.txt", std::string_view("a\n"));
  const json::object unchecked =
      program.json({"verify", gguf("gemma3-tiny-F32"), "--prompts", "short.txt", "--json"});
  EXPECT_EQ(unchecked.at("window_note").as_string().find("not checked: a window of "), 0u);
}

TEST(VerifyCommand, RefusesFlagsThatCannotBeObeyed) {
  const Program program;
  expect_refusal(program.run({"verify", gguf("llama-tiny-F32"), "--context", "40"}), 1,
                 "positions with those decoded, the context holds 40");
  expect_refusal(
      program.run({"verify", gguf("llama-tiny-Q8_0"), "--self-test", "--against", gguf("llama-tiny-F32")}), 2,
      "--self-test and --against");
}

TEST(VerifyCommand, StatesWhatQuantisationCosts) {
  const Program program;
  const json::object report = program.json(
      {"verify", gguf("gemma4-e2b-tiny-Q8_0"), "--against", gguf("gemma4-e2b-tiny-F32"), "--json"});
  EXPECT_TRUE(report.at("passed").as_bool());
  for (const char* step : {"structure", "shipped"}) {
    const json::object& logits = first_prompt(report, step).at("logits").as_object();
    EXPECT_GT(logits.at("max").to_number<double>(), 1e-3) << "Q8_0 is not free";
    EXPECT_GT(logits.at("kl_mean").to_number<double>(), 0);
    EXPECT_EQ(report.at(step).at("tolerances").at("mean_kl").to_number<double>(), 0) << "not judged";
  }
  expect_refusal(program.run({"verify", gguf("llama-tiny-Q8_0"), "--against", gguf("llama3-tiny-F32")}), 2,
                 "another model: its spec differs");
}

TEST(VerifyCommand, LossyKvIsACostAndFullDtypeTakesItAway) {
  const Program program;
  const json::object lossy =
      program.json({"verify", folder("gemma4-e2b-tiny"), "--kv-dtype", "bf16", "--json"});
  EXPECT_TRUE(lossy.at("passed").as_bool());
  EXPECT_NE(engine_of(lossy, "structure").find("kv f32"), std::string::npos);
  EXPECT_NE(engine_of(lossy, "shipped").find("kv bf16"), std::string::npos);
  const json::object full =
      program.json({"verify", folder("gemma4-e2b-tiny"), "--kv-dtype", "bf16", "--full-dtype", "--json"});
  EXPECT_TRUE(full.at("shipped").is_null());
  const auto worst = [](const json::object& report, const char* step) {
    return first_prompt(report, step).at("logits").at("max").to_number<double>();
  };
  EXPECT_EQ(worst(lossy, "structure"), worst(full, "structure"));
  EXPECT_GT(worst(lossy, "shipped"), 10 * worst(lossy, "structure"));
}

TEST(VerifyCommand, IntegerActivationsAreACostAndSeeBitsFlip) {
  const Program program;
  for (const char* arithmetic : {"a16", "a8"}) {
    const json::object report = program.json(
        {"verify", gguf("gemma4-e2b-wide-Q4_0"), "--arithmetic", arithmetic, "--self-test", "--json"});
    EXPECT_TRUE(report.at("passed").as_bool()) << json::serialize(report.at("failures"));
    EXPECT_NE(engine_of(report, "shipped").find(arithmetic), std::string::npos);
    EXPECT_EQ(engine_of(report, "structure").find("exact, f32 accumulation"), 0u);
    const json::object& all = report.at("shipped").at("all").as_object();
    EXPECT_GT(all.at("kl_mean").to_number<double>(), 0);
    EXPECT_NEAR(all.at("perplexity").to_number<double>() / all.at("reference_perplexity").to_number<double>(),
                1, 0.1);
    const json::object& lost = report.at("mutations").as_array().back().as_object();
    EXPECT_EQ(lost.at("name").as_string(), "low terms of activations lost");
    EXPECT_EQ(lost.at("outcome").as_string(),
              std::string_view(arithmetic) == "a16" ? "caught" : "not applicable");
  }
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--full-dtype"}, {"--arithmetic", "f32", "--kv-dtype", "f32"}}) {
    std::vector<std::string> command{"verify", gguf("gemma4-e2b-wide-Q4_0"), "--json"};
    command.insert(command.end(), flags.begin(), flags.end());
    EXPECT_TRUE(program.json(command).at("shipped").is_null()) << flags[0];
  }
}

TEST(VerifyCommand, TheFastModeIsJudgedAsWhatShipsNeverAsStructure) {
  const Program program;
  const json::object quantised =
      program.json({"verify", gguf("gemma4-e2b-wide-Q4_0"), "--mode", "fast", "--json"});
  EXPECT_EQ(engine_of(quantised, "structure").find("exact, f32 accumulation"), 0u);
  EXPECT_EQ(engine_of(quantised, "shipped").find("fast, a16/a8, f32 accumulation"), 0u);
  const json::object floats =
      program.json({"verify", folder("llama-tiny"), "--kv-dtype", "f32", "--mode", "fast", "--json"});
  EXPECT_EQ(engine_of(floats, "structure").find("exact, "), 0u);
  EXPECT_EQ(engine_of(floats, "shipped").find("fast, f32 accumulation"), 0u) << "another order to judge";
}

TEST(VerifyCommand, NamesACorruptedTokenizerBeforeAnythingRuns) {
  const Program program;
  std::string bytes = read_text_file(gguf("llama-tiny-F32"));
  const std::string key = "tokenizer.ggml.eos_token_id";
  const size_t at = bytes.find(key);
  ASSERT_NE(at, std::string::npos);
  bytes[at + key.size() + 4] = 99;  // after the type: the id's lowest byte
  program.folder().write("damaged.gguf", std::string_view(bytes));
  const Outcome outcome = program.run({"verify", "damaged.gguf"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.out.find("tokenizer  FAILED  special ids: eos 99 is"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("hidden"), std::string::npos) << "no model was run";

  const std::string model = (program.folder().path() / "model").string();
  std::filesystem::copy(folder("llama-tiny"), model);
  program.folder().write("model/tokenizer.json",
                         std::string_view("{\"model\": {\"type\": \"BPE\", \"vocab\": {"));
  expect_refusal(program.run({"verify", model}), 1, "tokenizer.json");
}

TEST(VerifyCommand, WithoutTheModuleItSaysWhatToDo) {
  const Program program;
  Invocation invocation{.arguments = {"verify", folder("llama-tiny")}};
  invocation.environment["LAPIDARY_REFERENCE"] = (program.folder().path() / "none.so").string();
  const Outcome outcome = program.run(invocation);
  expect_refusal(outcome, 1, "no reference executor");
  EXPECT_NE(outcome.err.find("make reference"), std::string::npos) << outcome.err;
  program.folder().write("none.so", std::string_view("not a library"));
  expect_refusal(program.run(invocation), 1, "the reference executor does not load");
}

class ScoreExecutors : public testing::TestWithParam<const char*> {};

TEST_P(ScoreExecutors, WriteTheGoldensLayout) {
  const std::string name = GetParam();
  const Golden golden = golden_case(name);
  const Program program;
  json::array ids;
  for (const int64_t id : golden.ints("input_ids")) ids.push_back(id);
  program.folder().write("ids.json", std::string_view(json::serialize(ids)));
  for (const std::string dtype : {"f64", "f32"}) {
    const json::object result =
        program.json({"score", folder(name), "--ids", "ids.json", "--executor", "reference", "--dtype", dtype,
                      "--dump", "out.safetensors", "--json"});
    EXPECT_EQ(result.at("numeric_mode").as_string(), "reference (libtorch), " + dtype);
    const Golden dump(program.folder().path() / "out.safetensors");
    std::set<std::string> expected_names;
    for (const auto& [tensor, view] : golden.file().tensors) {
      if (tensor.starts_with("greedy") || tensor.starts_with("batch.") || tensor == "logits_bf16") continue;
      expected_names.insert(tensor);
      if (tensor == "input_ids") continue;
      EXPECT_EQ(dump.shape(tensor), view.shape) << tensor;
      expect_close(dump.floats(tensor), golden.floats(tensor), 1e-4, tensor);
    }
    std::set<std::string> names;
    for (const auto& [tensor, view] : dump.file().tensors) names.insert(tensor);
    EXPECT_EQ(names, expected_names);
  }
}

INSTANTIATE_TEST_SUITE_P(, ScoreExecutors,
                         testing::Values("gemma4-e2b-tiny", "gemma4-26b-tiny", "llama-tiny"),
                         [](const auto& name) { return test_name(name.param); });

TEST(ScoreExecutor, RefusesFlagsOfTheOther) {
  const Program program;
  const std::string model = folder("llama-tiny");
  expect_refusal(program.run({"score", model, "--ids", "2,5,7", "--dtype", "f64"}), 2,
                 "--dtype is the reference's");
  for (const auto& [flag, value] : {std::pair<const char*, const char*>{"--kv-dtype", "bf16"},
                                    {"--arithmetic", "a16"},
                                    {"--chunk", "8"}}) {
    expect_refusal(program.run({"score", model, "--ids", "2,5,7", "--executor", "reference", flag, value}), 2,
                   flag);
  }
}

TEST(ScoreExecutor, WindowsAgreeWithTheEngines) {
  const Program program;
  const std::string model = folder("gemma3-tiny");
  std::string ids = "2";
  for (int i = 0; i < 60; ++i) ids += "," + std::to_string((i * 37 + 11) % 300);
  const std::vector<std::string> common{"score", model,      "--ids", ids,     "--window",
                                        "16",    "--stride", "8",     "--json"};
  std::vector<std::string> reference = common;
  reference.insert(reference.end(), {"--executor", "reference"});
  std::vector<std::string> engine = common;
  engine.insert(engine.end(), {"--kv-dtype", "f32"});
  const json::array ours = program.json(engine).at("logprobs").as_array(),
                    theirs = program.json(reference).at("logprobs").as_array();
  ASSERT_EQ(ours.size(), 60u);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_NEAR(ours[i].to_number<double>(), theirs[i].to_number<double>(), 1e-4);
  }
}

}  // namespace
}  // namespace lapidary::test
