// Flags, help and the words of refusals, the same for every command.
#include <gtest/gtest.h>

#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

const Program& program() {
  static const Program kProgram;
  return kProgram;
}

void expect_help(const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
  const Outcome outcome = program().run(arguments);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
  for (const std::string& part : parts)
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
}

TEST(Usage, VersionIsOneLine) {
  const Outcome outcome = program().run({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out.find("lapidary 0."), 0u) << outcome.out;
  EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1);
}

TEST(Usage, HelpAtEveryLevelShowsExamplesAndDefaults) {
  expect_help({"--help"},
              {"Examples:", "run", "inspect", "tokenize", "score", "Exit codes", "LAPIDARY_CACHE"});
  expect_help({"run", "--help"}, {"Examples:", "--raw", "--system", "--think", "--stop", "--seed",
                                  "--kv-dtype", "else greedy", "default 1024", "Ctrl-C"});
  expect_help({"inspect", "--help"}, {"Examples:", "--layers", "--kv-dtype", "--json"});
  expect_help({"tokenize", "--help"}, {"Examples:", "--pieces", "--no-bos", "--decode"});
  expect_help({"score", "--help"}, {"Examples:", "--stride", "--window", "--dump", "--ids"});
}

TEST(Usage, MissingCommandAndMissingModelAreNamed) {
  expect_refusal(program().run(std::vector<std::string>{}), 2, "a command is required");
  for (const char* command : {"run", "inspect", "tokenize", "score"}) {
    const Outcome outcome = program().run({command});
    expect_refusal(outcome, 2, "MODEL is required");
    EXPECT_NE(outcome.err.find(std::string("lapidary ") + command + " --help"), std::string::npos)
        << outcome.err;
  }
}

TEST(Usage, UnknownWordsComeWithTheNearestKnownOne) {
  expect_refusal(program().run({"inspct", "x"}), 2, "unknown command \"inspct\"; did you mean inspect?");
  expect_refusal(program().run({"run", "x", "y", "--tmp", "1"}), 2,
                 "unknown flag \"--tmp\"; did you mean --temp?");
  expect_refusal(program().run({"run", "x", "y", "--thread=2"}), 2, "did you mean --threads?");
  expect_refusal(program().run({"score", "x", "--strid", "2"}), 2, "did you mean --stride?");
  expect_refusal(program().run({"inspect", "x", "--layer"}), 2, "did you mean --layers?");
  expect_refusal(program().run({"tokenize", "x", "--zebra"}), 2, "unknown flag \"--zebra\"");
  expect_refusal(program().run({"inspect", "x", "one", "two"}), 2, "unexpected argument \"one\"");
}

TEST(Usage, ValuesOutOfRangeNameTheirFlag) {
  expect_refusal(program().run({"run", "x", "y", "--threads", "0"}), 2,
                 "--threads: 0 is not between 1 and 1024");
  expect_refusal(program().run({"run", "x", "y", "--threads", "many"}), 2, "--threads");
  expect_refusal(program().run({"run", "x", "y", "--chunk", "0"}), 2, "--chunk");
  expect_refusal(program().run({"run", "x", "y", "-n", "-3"}), 2, "--max-tokens: -3 is less than 0");
  expect_refusal(program().run({"run", "x", "y", "--temp", "warm"}), 2, "--temp");
  expect_refusal(program().run({"run", "x", "y", "--kv-dtype", "k=q8"}), 2,
                 "expected f32, f16, bf16 or q8, or one for each as in k=q8,v=f16, got \"k=q8\"");
  expect_refusal(program().run({"run", "x", "y", "--seed", "-1"}), 2, "--seed: -1 is no whole number");
  expect_refusal(program().run({"tokenize", "x", "y", "--decode", "--pieces"}), 2, "excludes");
}

TEST(Usage, UnknownModelSaysWhatTheCacheHoldsAndHowToFetch) {
  program().folder().write(".cache/lapidary/models/tiny-model.gguf", "x");
  for (const char* command : {"run", "inspect", "tokenize", "score"}) {
    const Outcome outcome = program().run({command, "tiny-modle", "y"}, "y");
    if (std::string(command) == "inspect") {
      expect_refusal(program().run({command, "tiny-modle"}), 1, "did you mean tiny-model?");
      continue;
    }
    expect_refusal(outcome, 1, "did you mean tiny-model?");
    EXPECT_NE(outcome.err.find("in the cache: tiny-model"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("tools/fetch_model.py"), std::string::npos) << outcome.err;
  }
}

TEST(Usage, DamagedModelFilesAreNamed) {
  program().folder().write("bad.gguf", "this is no GGUF file at all, only some text");
  expect_refusal(program().run({"inspect", "bad.gguf"}), 1, "bad.gguf");
  expect_refusal(program().run({"run", "bad.gguf", "x"}), 1, "bad.gguf");
  program().folder().write("bad/config.json", R"({"model_type": "llama"})");
  program().folder().write("bad/model.safetensors", "short");
  expect_refusal(program().run({"run", "bad", "x"}), 1, "config.json");
}

TEST(Usage, FullDiskIsAnError) {
  const Outcome outcome = program().run(Invocation{.arguments = {"--version"}});
  ASSERT_EQ(outcome.exit_code, 0);
  const std::string command = std::string(LAPIDARY_BINARY) + " inspect " +
                              data_path("configs/e2b/config.json").string() + " > /dev/full 2> " +
                              (program().folder().path() / "err").string();
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_NE(read_text_file(program().folder().path() / "err").find("cannot write to standard output"),
            std::string::npos);
}

}  // namespace
}  // namespace lapidary::test
