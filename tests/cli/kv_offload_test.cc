// `lapidary kv offload`: what it prints, its files, and what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "cli/kv/disk_tier.h"
#include "formats/mapped_file.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/small_files.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

const std::string kModel = data_path("models/gemma4-e2b-tiny").string();  // windows of 8, borrowers
const std::string kTextModel = data_path("gguf/models/gemma4-e2b-tiny-F32.gguf").string();

std::vector<std::string> offload(std::vector<std::string> more, const std::string& model = kModel) {
  std::vector<std::string> arguments{"kv", "offload", model};
  if (more.front() != "--state") more.insert(more.end(), {"--repeats", "1"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

class KvOffload : public testing::Test {
 protected:
  Program program_;
  std::string folder(const std::string& name = "") const {
    return (program_.folder().path() / name).string();
  }
};

TEST_F(KvOffload, PrintsWhatWasHeldAgainstWhat) {
  const Outcome outcome = program_.run(offload({"--length", "73", "--curve", "8,40", "--claim"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  for (const char* part :
       {"gemma4-e2b-tiny: 73 tokens saved, overwritten with NaN, restored, 16 more decoded",
        "owner, window 8",
        "reads layer",
        "only owners are saved",
        "earliest restart: 71 of 73",
        "--keep-behind",
        "poisoned before: a restore that does nothing cannot pass",
        "every page as before",
        "next logits equal, bit for bit",
        "restore GB/s",
        "fsync",
        "in memory as the load began",
        "damage on purpose",
        "0 missed",
        "header, version",
        "rope theta: expected",
        "a bomb: ",
        "swap two parts",
        "computing again against loading",
        "(a) ",
        "(f) ",
        "passed: "})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  EXPECT_EQ(outcome.out.find("FAILED"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.err, "");
}

TEST_F(KvOffload, IsOneJsonObject) {
  const json::object out = program_.json(
      offload({"--length", "73", "--curve", "8,40", "--claim", "--json", "--kv-dtype", "k=q8,v=bf16"}));
  EXPECT_EQ(out.at("schema").as_string(), "lapidary.kv.offload");
  EXPECT_TRUE(out.at("passed").as_bool());
  EXPECT_EQ(out.at("kv_dtype").as_string(), "k=q8,v=bf16");
  const json::object& state = out.at("state").as_object();
  int64_t pages = 0, layers = 0;
  for (const json::value& layer : state.at("layers").as_array()) {
    layers += layer.at("kv_bytes").as_int64();
    const auto* hashes = layer.as_object().if_contains("page_hashes");
    if (hashes == nullptr) continue;
    for (const json::value& page : hashes->as_array()) {
      pages += page.at("kv_bytes").as_int64();
      EXPECT_EQ(page.at("keys_xxh3").as_string().size(), 32u);
    }
  }
  EXPECT_EQ(pages, state.at("kv_bytes").as_int64());
  EXPECT_EQ(layers, state.at("kv_bytes").as_int64());
  EXPECT_EQ(state.at("kv_bytes"), state.at("expected_kv_bytes"));
  std::set<std::string> ways;
  for (const json::value& tier : out.at("tiers").as_array()) {
    ways.insert(std::string(tier.at("way").as_string()));
    EXPECT_EQ(tier.at("kv_bytes_restored"), state.at("kv_bytes"));
  }
  EXPECT_EQ(ways, (std::set<std::string>{"ram", "disk", "disk, cold", "zstd", "zstd, cold"}));
  const json::object& counts = out.at("mutation_counts").as_object();
  EXPECT_EQ(counts.at("missed").as_int64(), 0);
  EXPECT_EQ(counts.at("misnamed").as_int64(), 0);
  EXPECT_GT(counts.at("caught").as_int64(), 100);
  EXPECT_EQ(out.at("curve").as_array().size(), 2u);
  EXPECT_EQ(out.at("break_even").as_array().size(), 5u);
  EXPECT_EQ(out.at("claim").as_array().size(), 6u);
  EXPECT_EQ(out.at("replay").at("earliest_restart").as_int64(), 71);
}

// Hashes, tokens and checks are the same in every run; times are not.
TEST_F(KvOffload, IsDeterministicButForTimes) {
  const auto facts = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--length", "50", "--no-curve", "--json"});
    json::object out = program_.json(offload(more));
    return json::serialize(
        json::array{out.at("state"), out.at("tokens"), out.at("replay"), out.at("mutations")});
  };
  EXPECT_EQ(facts({"--tier", "ram"}), facts({"--tier", "zstd,ram", "--threads", "2", "--chunk", "7"}));
}

TEST_F(KvOffload, CsvIsTheCurve) {
  const Outcome outcome =
      program_.run(offload({"--length", "5", "--curve", "4,40", "--tier", "ram,zstd", "--csv"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("length,state_bytes,way,recompute_seconds,reload_seconds,speed_up,"), 0u);
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1 + 2 * 3);
  EXPECT_NE(outcome.out.find("\n40,"), std::string::npos);
}

TEST_F(KvOffload, KeepsItsFilesOnlyWhereAsked) {
  fs::create_directory(folder("kept"));
  fs::create_directory(folder("tmp"));
  const Invocation nowhere{.arguments = offload({"--length", "9", "--curve", "4"}),
                           .environment = {{"TMPDIR", folder("tmp")}}};
  EXPECT_EQ(program_.run(nowhere).exit_code, 0);
  EXPECT_EQ(names_in(folder("tmp")), std::set<std::string>{});
  EXPECT_EQ(program_.run(offload({"--length", "9", "--curve", "4", "--dir", folder("kept")})).exit_code, 0);
  EXPECT_EQ(names_in(folder("kept")), (std::set<std::string>{"kv-offload.state", "kv-offload.state.zst"}));
}

TEST_F(KvOffload, AStateIsCheckedAndComputedAgain) {
  ASSERT_EQ(
      program_.run(offload({"--length", "73", "--no-curve", "--no-mutations", "--dir", folder()})).exit_code,
      0);
  for (const char* name : {"kv-offload.state", "kv-offload.state.zst"}) {
    const Outcome sound = program_.run(offload({"--state", folder(name)}));
    EXPECT_EQ(sound.exit_code, 0) << sound.out << sound.err;
    for (const char* part :
         {"73 tokens", "keys xxh3", "{\"mode\":\"raw\"}", "computed again", "earliest restart: 71", "passed"})
      EXPECT_NE(sound.out.find(part), std::string::npos) << part << "\n" << sound.out;
  }
  const auto spoilt = [&](const std::string& name, size_t at) {
    std::string bytes;
    {
      const MappedFile file{fs::path(folder(name))};
      bytes.assign(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    }
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    return program_.folder().write("spoilt", std::string_view(bytes)).string();
  };
  Outcome refused = program_.run(offload({"--state", spoilt("kv-offload.state", 180)}));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.out.find("map of layers, layer 0: kind: expected an owner"), std::string::npos)
      << refused.out;
  refused = program_.run(offload({"--state", spoilt("kv-offload.state.zst", 900)}));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.out.find("damaged: zstd frame"), std::string::npos) << refused.out;
  refused = program_.run(offload({"--state", folder("kv-offload.state"), "--kv-dtype", "f32"}));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.out.find("key dtype: expected f32, got f16"), std::string::npos) << refused.out;
  refused = program_.run(offload({"--state", kModel + "/config.json", "--json"}));
  EXPECT_EQ(refused.exit_code, 1);
  const json::object told = json::parse(refused.out).as_object();
  EXPECT_FALSE(told.at("passed").as_bool());
  EXPECT_NE(told.at("error").as_string().find("magic: expected a saved state"), json::string::npos);
  expect_refusal(program_.run(offload({"--state", folder("none")})), 1, "none: ");
}

TEST_F(KvOffload, RunAndTheLabReadEachOthersStates) {
  const std::string text = "the end of the line the end of the line the end of the line";
  ASSERT_EQ(program_
                .run(offload({text, "--no-curve", "--no-mutations", "--tier", "disk", "--dir", folder()},
                             kTextModel))
                .exit_code,
            0);
  const std::vector<std::string> cold{"run", "--raw", kTextModel,     text + " of it",
                                      "-n",  "6",     "--ignore-eos", "--json"};
  std::vector<std::string> warm = cold;
  warm.insert(warm.end(), {"--load-state", folder("kv-offload.state"), "--save-state", folder("ours")});
  const json::object went_on = program_.json(warm);
  EXPECT_EQ(went_on.at("ids"), program_.json(cold).at("ids"));
  EXPECT_GT(went_on.at("memory").at("kv_bytes_restored").as_int64(), 0);
  EXPECT_EQ(program_.run(offload({"--state", folder("ours")}, kTextModel)).exit_code, 0);
}

TEST_F(KvOffload, AFullDiskAndAForbiddenFolderLeaveNothing) {
  fs::create_directory(folder("d"));
  {
    const SmallFiles full_disk(2000);
    expect_refusal(program_.run(offload({"--length", "40", "--no-curve", "--no-mutations", "--tier", "disk",
                                         "--dir", folder("d")})),
                   1, "kv-offload.state: cannot write");
  }
  EXPECT_EQ(names_in(folder("d")), std::set<std::string>{});
  expect_refusal(program_.run(offload({"--length", "9", "--dir", folder("none")})), 1, "none");
  program_.folder().write("file", std::string_view("x"));
  expect_refusal(program_.run(offload({"--length", "9", "--dir", folder("file")})), 1, "file");
  const Invocation no_tmp{.arguments = offload({"--length", "9"}),
                          .environment = {{"TMPDIR", folder("none")}}};
  expect_refusal(program_.run(no_tmp), 1, "the folder for temporary files (TMPDIR, else /tmp): ");
}

TEST_F(KvOffload, FullStdoutIsNoSuccess) {
  const Outcome outcome = program_.run(offload({"--length", "9", "--no-curve", "--tier", "ram"}));
  EXPECT_EQ(outcome.exit_code, 0);
  const std::string command = std::string(LAPIDARY_BINARY) + " kv offload " + kModel +
                              " --length 9 --no-curve --no-mutations --tier ram > /dev/full 2> " +
                              folder("err");
  EXPECT_NE(std::system(command.c_str()), 0);
}

TEST_F(KvOffload, WrongUseIsNamed) {
  const auto refused = [&](std::vector<std::string> more, const std::string& part) {
    const Outcome outcome = program_.run(offload(more));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << "\n" << outcome.err;
  };
  refused({"--tier", "ram,tape"}, "tape");
  refused({"--kv-dtype", "f8"}, "f8");
  refused({"--length", "0"}, "0");
  refused({"--level", "99"}, "99");
  refused({"--length", "5", "--ids", "1,2"}, "--ids");
  refused({"--state", "s", "--claim"}, "--state excludes --claim");
  refused({"--claim", "--no-curve"}, "--claim needs the curve");
  refused({"--csv", "--no-curve"}, "--csv is the curve");
  refused({"--curve", "100000000"}, "100000000");
  refused({"--curve", "1000000"}, "positions");
  refused({"--ids", "1,x"}, "x");
  refused({"--ids", "1,999999"}, "999999");
}

TEST(DiskTier, HoldsWhatItGotAndSaysWhatIsInMemory) {
  const TempDir folder;
  const fs::path path = folder.path() / "s";
  std::vector<std::byte> bytes(300'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
  {
    DiskTier tier(path, DiskTier::Keep::no);
    tier.store(bytes);
    EXPECT_EQ(tier.load(), bytes);
    EXPECT_EQ(tier.stored_bytes(), 300'000);
    EXPECT_TRUE(tier.cool());
    const std::optional<double> share = tier.cached_share();
    ASSERT_TRUE(share);
    EXPECT_GE(*share, 0);
    EXPECT_LE(*share, 1);
    EXPECT_EQ(tier.load(), bytes) << "forgotten by the memory, not by the file";
    bytes.resize(10);
    tier.store(bytes);
    EXPECT_EQ(tier.load(), bytes);
    EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"s"});
  }
  EXPECT_FALSE(fs::exists(path));
  {
    DiskTier tier(path, DiskTier::Keep::yes);
    tier.store(bytes);
  }
  EXPECT_TRUE(fs::exists(path));
  fs::remove(path);
  DiskTier gone(path, DiskTier::Keep::no);
  gone.store(bytes);
  fs::remove(path);
  EXPECT_TRUE(throws_error([&] { gone.load(); }, ErrorCode::not_found, path.string()));
}

TEST(KvExactOnly, OffloadAndPrefixHaveNoFastMode) {
  const Program program;
  for (const char* command : {"offload", "prefix"})
    expect_refusal(program.run({"kv", command, "model", "--mode", "fast"}), 2, "unknown flag \"--mode\"");
}

}  // namespace
}  // namespace lapidary::test
