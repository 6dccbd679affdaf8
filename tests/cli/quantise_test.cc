// --quantise: a float model run in 8 or 4 bits at once is the model that convert would have written.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>

#include "cli/convert_tool.h"
#include "formats/quantised_tensors.h"
#include "support/golden_models.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

std::string folder(const std::string& name) {
  return data_path("models/" + name).string();
}

TEST(Quantise, MatricesHaveTheBytesThatConvertWrites) {
  const TempDir dir;
  for (const std::string name : {"gemma4-e2b-wide", "gemma4-12b-wide", "gemma4-26b-tiny", "llama3-tiny"}) {
    for (const std::string type : {"Q8_0", "Q4_0", "Q4_K_M"}) {
      const auto file = dir.path() / (name + type + ".gguf");
      convert(folder(name), file, {.type = type});
      const Checkpoint wanted = open_checkpoint(file), plain = open_checkpoint(folder(name));
      Checkpoint got = plain;
      quantise_weights(got, type, 2);
      int64_t quantised = 0;
      for_each_tensor(plain.spec, [&](const TensorInfo& info) {
        const bool tied = plain.spec.tied_head && info.slot.kind == TensorKind::token_embedding;
        const bool as_it_was = !info.is_matrix() && !tied;
        const TensorData data = got.tensors->read(info.slot),
                         theirs = (as_it_was ? plain : wanted).tensors->read(info.slot);
        EXPECT_EQ(data.view.dtype, theirs.view.dtype) << slot_name(info.slot);
        EXPECT_TRUE(std::ranges::equal(data.view.bytes, theirs.view.bytes)) << name << slot_name(info.slot);
        quantised += is_quantised(data.view.dtype);
      });
      EXPECT_GT(quantised, 4) << name << type;
      int64_t bytes = 0;
      for (const auto& [dtype, n] : got.dtype_bytes) bytes += n;
      int64_t read = 0;
      for_each_tensor(plain.spec, [&](const TensorInfo& info) {
        read += static_cast<int64_t>(got.tensors->read(info.slot).view.bytes.size());
      });
      EXPECT_EQ(bytes, read) << name << type;
    }
  }
}

TEST(Quantise, RunsScoresAndPacksAsTheConvertedModel) {
  const Program program;
  const std::string model = folder("llama-tiny");
  ASSERT_EQ(program.run({"convert", model, "m.gguf", "--type", "Q4_0"}).exit_code, 0);
  ASSERT_EQ(program.run({"pack", model, "m.lapidary", "--quantise", "Q4_0"}).exit_code, 0);
  const auto score = [&](std::vector<std::string> arguments) {
    for (const char* more : {"--ids", "3,4,5,6,7,8", "--json"}) arguments.emplace_back(more);
    boost::json::object out = program.json(arguments);
    for (const char* key : {"model", "timings", "memory", "seconds"}) out.erase(key);
    return out;
  };
  const auto wanted = score({"score", "m.gguf"});
  EXPECT_EQ(score({"score", model, "--quantise", "q4_0"}), wanted);
  EXPECT_EQ(score({"score", "m.lapidary"}), wanted);
  EXPECT_NE(score({"score", model}), wanted);
}

TEST(Quantise, TheLabLooksAtTheQuantisedModel) {
  const Program program;
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"kv", "trace", folder("llama-tiny"), "--ids", "1,5,9", "-n", "2"},
        {"kv", "bytes", folder("llama-tiny"), "--length", "8"},
        {"kv", "recompute", folder("llama-tiny"), "--ids", "1,5,9", "-n", "2", "--mode", "exact",
         "--no-reference"},
        {"kv", "offload", folder("llama-tiny"), "--length", "8", "--no-curve", "--no-mutations"}}) {
    for (const bool quantised : {false, true}) {
      std::vector<std::string> arguments = command;
      arguments.emplace_back("--json");
      if (quantised) arguments.insert(arguments.end(), {"--quantise", "Q4_0"});
      const std::string repro = boost::json::serialize(program.json(arguments));
      EXPECT_EQ(repro.find("exact, a16") != std::string::npos, quantised) << command[1];
    }
  }
}

TEST(Quantise, RefusalsNameTheReason) {
  const Program program;
  const std::string gguf = data_path("gguf/models/llama-tiny-Q8_0.gguf").string();
  expect_refusal(program.run({"score", gguf, "--quantise", "Q4_0", "--ids", "1,2"}), 2,
                 "is q8_0 already: expected a model of floats, to be quantised to Q4_0");
  expect_refusal(program.run({"score", folder("llama-tiny"), "--quantise", "Q9", "--ids", "1,2"}), 2,
                 "expected one of Q8_0, Q4_0, Q4_K_S, Q4_K_M, Q5_K_M, Q6_K");
  expect_refusal(program.run({"score", folder("llama-tiny"), "--quantise", "BF16", "--ids", "1,2"}), 2,
                 "\"BF16\": expected one of");
  ASSERT_EQ(program.run({"pack", gguf, "m.lapidary"}).exit_code, 0);
  expect_refusal(program.run({"score", "m.lapidary", "--quantise", "Q4_0", "--ids", "1,2"}), 2,
                 "a packed model's weights are fixed");
}

}  // namespace
}  // namespace lapidary::test
