// MODEL → path, and what is said when there is none.
#include "cli/model_path.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "formats/checkpoint.h"
#include "support/compare.h"
#include "support/temp_dir.h"

namespace lapidary::test {
namespace {

namespace fs = std::filesystem;

class ModelPath : public testing::Test {
 protected:
  ModelPath() {
    for (const char* name : kVariables) {
      if (const char* value = std::getenv(name)) before_[name] = value;
    }
    setenv("LAPIDARY_CACHE", (home_.path() / "cache").c_str(), 1);
    setenv("HOME", home_.path().c_str(), 1);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("XDG_STATE_HOME");
  }
  ~ModelPath() override {  // other tests run programs in the environment of this one
    for (const char* name : kVariables) {
      unsetenv(name);
      if (before_.count(name) != 0) setenv(name, before_[name].c_str(), 1);
    }
  }
  fs::path cached(const std::string& name) { return home_.write("cache/models/" + name, "x"); }
  TempDir home_;

 private:
  static constexpr const char* kVariables[] = {"LAPIDARY_CACHE", "HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"};
  std::map<std::string, std::string> before_;
};

TEST_F(ModelPath, CacheFollowsTheEnvironment) {
  EXPECT_EQ(model_cache(), home_.path() / "cache/models");
  unsetenv("LAPIDARY_CACHE");
  EXPECT_EQ(model_cache(), home_.path() / ".cache/lapidary/models");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(model_cache(), "/x/lapidary/models");
  EXPECT_EQ(state_folder(), home_.path() / ".local/state/lapidary");
}

TEST_F(ModelPath, NamesInTheCacheAreFound) {
  const fs::path file = cached("tiny.gguf");
  cached("folder/config.json");
  cached("folder/model.safetensors");
  const fs::path inside = cached("nested/only.gguf");
  cached("tiny.licence");
  EXPECT_EQ(resolve_model("tiny", false), file);
  EXPECT_EQ(resolve_model("tiny.gguf", false), file);
  EXPECT_EQ(resolve_model("folder", false), home_.path() / "cache/models/folder");
  EXPECT_EQ(resolve_model("nested", false), inside);
  EXPECT_EQ(cached_models(model_cache()), (std::vector<std::string>{"folder", "nested", "tiny"}));
}

TEST_F(ModelPath, UnknownNameListsTheCacheAndTheNearest) {
  cached("smollm.gguf");
  const auto unknown = [] { resolve_model("smolm", false); };
  expect_error(unknown, ErrorCode::not_found, "no model \"smolm\"");
  expect_error(unknown, ErrorCode::not_found, "did you mean smollm?");
  expect_error(unknown, ErrorCode::not_found, "in the cache: smollm");
  expect_error(unknown, ErrorCode::not_found, "tools/fetch_model.py");
}

TEST_F(ModelPath, EmptyCacheIsSaidToBeEmpty) {
  expect_error([] { resolve_model("any", false); }, ErrorCode::not_found, "the cache is empty");
}

TEST_F(ModelPath, MissingPathIsNotTakenForAName) {
  cached("x.gguf");
  expect_error([] { resolve_model("./x", false); }, ErrorCode::not_found, "no such file or folder: \"./x\"");
}

TEST_F(ModelPath, FirstPartStandsForASplitSet) {
  const fs::path first = home_.write("m-00001-of-00002.gguf", "x");
  const fs::path second = home_.write("m-00002-of-00002.gguf", "x");
  EXPECT_EQ(resolve_model(first.string(), false), first);
  EXPECT_EQ(resolve_model(home_.path().string(), false), first);
  expect_error([&] { resolve_model(second.string(), false); }, ErrorCode::usage, "is part 2 of a split set");
}

TEST_F(ModelPath, FolderWithSeveralModelsIsNotGuessedAt) {
  home_.write("a.gguf", "x");
  home_.write("b.gguf", "x");
  expect_error([&] { resolve_model(home_.path().string(), false); }, ErrorCode::usage, "holds 2 GGUF models");
  expect_error([&] { resolve_model(home_.path().string(), false); }, ErrorCode::usage, "a.gguf, b.gguf");
}

TEST_F(ModelPath, ConfigurationAloneIsForInspect) {
  const fs::path config = home_.write("m/config.json", "{}");
  EXPECT_EQ(resolve_model(config.string(), true), config);
  EXPECT_EQ(resolve_model(config.parent_path().string(), true), config);
  expect_error([&] { resolve_model(config.string(), false); }, ErrorCode::usage,
               "only inspect and kv plan can do with that");
  expect_error([&] { resolve_model(config.parent_path().string(), false); }, ErrorCode::usage,
               "no .safetensors weights");
}

// A link that leads to itself stands for all that the system does not tell of (root may look at all else).
TEST_F(ModelPath, WhatCannotBeLookedAtIsNamed) {
  const fs::path folder = home_.path() / "looped", cache = home_.path() / "cache/models/looped";
  for (const fs::path& at : {folder, cache}) {
    fs::create_directories(at);
    fs::create_symlink("config.json", at / "config.json");
  }
  const std::string config = (folder / "config.json").string();
  expect_error([&] { resolve_model(folder.string(), false); }, ErrorCode::io, config + ": cannot look at: ");
  expect_error([&] { open_checkpoint(folder); }, ErrorCode::io, config + ": cannot look at: ");
  expect_error([&] { resolve_model("unknown", false); }, ErrorCode::not_found, "no model \"unknown\"");
  fs::create_symlink("self", home_.path() / "self");
  expect_error([&] { open_checkpoint(home_.path() / "self"); }, ErrorCode::io, "self: cannot look at: ");
}

TEST_F(ModelPath, OtherThingsAreNoModels) {
  const fs::path text = home_.write("notes.txt", "x"), weights = home_.write("w/model.safetensors", "x");
  expect_error([&] { resolve_model(text.string(), false); }, ErrorCode::usage, "is no model");
  expect_error([&] { resolve_model(weights.string(), false); }, ErrorCode::usage,
               "name the folder that holds it");
  expect_error([&] { resolve_model(weights.parent_path().string(), false); }, ErrorCode::usage,
               "is no model folder");
  expect_error([&] { resolve_model("", false); }, ErrorCode::usage, "MODEL is empty");
}

}  // namespace
}  // namespace lapidary::test
