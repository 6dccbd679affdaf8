// `lapidary pack`, and the packed model wherever a MODEL may stand.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>

#include "support/golden.h"
#include "support/program.h"
#include "support/small_files.h"

namespace lapidary::test {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

std::string gguf_model(const std::string& name) {
  return data_path("gguf/models/" + name + ".gguf").string();
}

std::string error_of(const Outcome& outcome) {
  return outcome.exit_code == 0 ? "" : outcome.err;
}

void pack(const Program& program, const std::string& model, const std::string& out) {
  const Outcome outcome = program.run({"pack", model, out});
  ASSERT_EQ(error_of(outcome), "");
}

json::value without_times(json::object object) {
  for (const char* key : {"model", "timings", "memory", "seconds"}) object.erase(key);
  return object;
}

TEST(PackCommand, WhatItWroteRunsAndScoresAsTheModelDoes) {
  const Program program;
  ASSERT_EQ(error_of(program.run({"convert", gguf_model("gemma4-e2b-tiny-Q8_0"), "folder"})), "");
  for (const std::string& model : {std::string("folder"), gguf_model("gemma4-e2b-wide-Q4_K_M"),
                                   gguf_model("gemma3-tiny-Q8_0"), gguf_model("llama3-tiny-Q4_1")}) {
    pack(program, model, "m.lapidary");
    for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--weights", "copy"}}) {
      const auto answer = [&](const std::string& name) {
        std::vector<std::string> arguments = {"run", "--raw", name, "the quick", "-n", "12", "--json"};
        if (name == "m.lapidary") arguments.insert(arguments.end(), more.begin(), more.end());
        return without_times(program.json(arguments));
      };
      EXPECT_EQ(answer("m.lapidary"), answer(model)) << model;
    }
    const auto score = [&](const std::string& name) {
      return without_times(program.json({"score", name, "--ids", "3,4,5,6,7", "--json"}));
    };
    EXPECT_EQ(score("m.lapidary"), score(model)) << model;
    const auto ids = [&](const std::string& name) {
      return program.run({"tokenize", name, "Füße,  12 <bos> tokens\n"}).out;
    };
    EXPECT_EQ(ids("m.lapidary"), ids(model)) << model;
    ASSERT_TRUE(fs::remove(program.folder().path() / "m.lapidary"));
  }
}

TEST(PackCommand, SaysWhatItWrote) {
  const Program program;
  const std::string model = gguf_model("gemma4-e2b-wide-Q4_0");
  const json::object report = program.json({"pack", model, "m.lapidary", "--json"});
  const auto bytes = static_cast<int64_t>(fs::file_size(program.folder().path() / "m.lapidary"));
  EXPECT_EQ(report.at("bytes").as_int64(), bytes);
  const auto part = [&](const char* name) { return report.at(name).at("bytes").as_int64(); };
  EXPECT_LE(part("packed") + part("plain") + part("text"), bytes);
  const json::object inspected = program.json({"inspect", "m.lapidary", "--json"});
  EXPECT_EQ(inspected.at("format").as_string(), "packed v1");
  EXPECT_EQ(inspected.at("file_bytes").as_int64(), bytes);
  const json::object source = program.json({"inspect", model, "--json"});
  for (const char* key : {"family", "layers", "parameters", "kv", "pattern"})
    EXPECT_EQ(inspected.at(key), source.at(key)) << key;
  const Outcome text = program.run({"inspect", "m.lapidary"});
  EXPECT_NE(text.out.find("packed from gemma4-e2b-wide-Q4_0.gguf (gguf v3)"), std::string::npos) << text.out;
}

TEST(PackCommand, AStateGoesOnInEitherForm) {
  const Program program;
  const std::string model = gguf_model("llama-tiny-Q8_0");
  pack(program, model, "m.lapidary");
  const auto save = [&](const std::string& name, const char* state) {
    const Outcome outcome =
        program.run({"run", "--raw", name, "the quick", "-n", "4", "--save-state", state});
    EXPECT_EQ(error_of(outcome), "");
  };
  save(model, "plain.state");
  save("m.lapidary", "packed.state");
  for (const auto& [name, state] :
       {std::pair{model, "packed.state"}, {std::string("m.lapidary"), "plain.state"}}) {
    const json::object answer =
        program.json({"run", "--raw", name, "the quick brown", "-n", "2", "--load-state", state, "--json"});
    EXPECT_GT(answer.at("cache").at("used_tokens").as_int64(), 0) << name;
  }
}

TEST(PackCommand, ReplacesOnlyWhenAsked) {
  const Program program;
  const std::string model = gguf_model("llama-tiny-Q8_0");
  program.folder().write("m.lapidary", std::string_view("precious"));
  expect_refusal(program.run({"pack", model, "m.lapidary"}), 1,
                 "m.lapidary: expected nothing there, got a file that would be replaced (--force does)");
  EXPECT_EQ(fs::file_size(program.folder().path() / "m.lapidary"), 8u);
  EXPECT_EQ(error_of(program.run({"pack", model, "m.lapidary", "--force"})), "");
  EXPECT_GT(fs::file_size(program.folder().path() / "m.lapidary"), 1000u);
}

TEST(PackCommand, RefusesWhatItCannotDo) {
  const Program program;
  const std::string model = gguf_model("llama-tiny-Q8_0");
  expect_refusal(program.run({"pack", model, "m.gguf"}), 2,
                 "OUT: expected a name that ends in .lapidary, got \"m.gguf\"");
  expect_refusal(program.run({"pack", model, "none/m.lapidary"}), 1, "none: no such folder");
  pack(program, model, "m.lapidary");
  expect_refusal(program.run({"pack", "m.lapidary", "n.lapidary"}), 2,
                 "a packed model cannot be the source of pack; take the model that it was packed from, "
                 "\"llama-tiny-Q8_0.gguf\"");
  expect_refusal(program.run({"convert", "m.lapidary", "n.gguf"}), 2,
                 "a packed model cannot be the source of convert");
  expect_refusal(program.run({"run", "m.lapidary", "x", "--weights", "swap"}), 2, "--weights");
  program.folder().write("other.lapidary", std::string_view("GIF89a"));
  expect_refusal(program.run({"run", "other.lapidary", "x"}), 1,
                 "expected a model folder, a GGUF file, a packed model or a config.json, got another file");
}

TEST(PackCommand, LeavesNothingWhenTheDiskIsFull) {
  const Program program;
  const Outcome outcome = [&] {
    const SmallFiles full_disk(100'000);
    return program.run({"pack", gguf_model("llama-tiny-F32"), "m.lapidary"});
  }();
  expect_refusal(outcome, 1, "m.lapidary: cannot write: File too large (");
  EXPECT_TRUE(fs::is_empty(program.folder().path()));
}

TEST(PackCommand, DamageOfTheFileIsToldByName) {
  const Program program;
  pack(program, gguf_model("llama-tiny-Q8_0"), "m.lapidary");
  const fs::path path = program.folder().path() / "m.lapidary";
  const auto size = fs::file_size(path);
  fs::resize_file(path, size - 1);
  expect_refusal(
      program.run({"run", "--raw", "m.lapidary", "x", "-n", "1"}), 1,
      "m.lapidary: expected the end of a packed model in the last 64 bytes, got something else: cut off?");
}

// The real models: what they hold in memory, and that a packed one says the same.
class RealPacked : public testing::TestWithParam<const char*> {
 protected:
  json::object run(const std::string& model) const {
    return program.json(
        {.arguments = {"run", "--raw", model, "The capital of France is", "-n", "4", "--json"},
         .user_cache = true});
  }
  // Packed weights, the cache in use and the workspace, all that is meant to be held.
  static double planned(const json::object& memory) {
    double sum = 0;
    for (const char* key : {"weight_bytes", "kv_bytes_in_use", "workspace_bytes"})
      sum += static_cast<double>(memory.at(key).as_int64());
    return sum;
  }
  Program program;
};

TEST_P(RealPacked, SaysTheSameAndHoldsNoMoreThanPlanned) {
  const Outcome packed = program.run({.arguments = {"pack", GetParam(), "m.lapidary"}, .user_cache = true});
  ASSERT_EQ(error_of(packed), "");
  const json::object from_file = run("m.lapidary"), from_source = run(GetParam());
  EXPECT_EQ(from_file.at("text"), from_source.at("text"));
  EXPECT_EQ(from_file.at("ids"), from_source.at("ids"));
  // Beyond what is planned there are the program and a vocabulary of up to 262,144 tokens.
  for (const json::object& answer : {from_file, from_source}) {
    const json::object& memory = answer.at("memory").as_object();
    EXPECT_LT(static_cast<double>(memory.at("peak_rss_bytes").as_int64()), 1.10 * planned(memory) + 40e6)
        << json::serialize(memory);
  }
}

INSTANTIATE_TEST_SUITE_P(, RealPacked, testing::Values("smollm2-135m-instruct", "gemma3-270m"),
                         [](const auto& test) {
                           return std::string(test.index == 0 ? "SmolLM2" : "Gemma3");
                         });

}  // namespace
}  // namespace lapidary::test
