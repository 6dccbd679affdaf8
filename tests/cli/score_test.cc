// `lapidary score`: windows, log-probabilities, and the dump against the goldens.
#include "cli/score.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <numeric>

#include "support/compare.h"
#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

std::string ids_text(const std::vector<int64_t>& ids) {
  std::string text;
  for (const int64_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

TEST(Windows, ScoreEveryTokenButTheFirstOnce) {
  for (const int64_t tokens : {2, 7, 8, 9, 100}) {
    for (const int64_t stride : {1, 3, 6}) {
      for (const int64_t reserved : {0, 1}) {
        int64_t next = 1;
        for (const ScoreWindow& window : plan_windows(tokens, 8, stride, reserved)) {
          EXPECT_EQ(window.first_scored, next);
          EXPECT_LT(window.begin, window.first_scored) << "a token is scored with none before it";
          EXPECT_LE(window.end - window.begin + (window.begin > 0 ? reserved : 0), 8);
          next = window.end;
        }
        EXPECT_EQ(next, tokens) << tokens << " tokens, stride " << stride;
      }
    }
  }
}

TEST(Windows, KeepTheirContext) {
  const std::vector<ScoreWindow> windows = plan_windows(20, 10, 4, 0);
  ASSERT_EQ(windows.size(), 4u);
  EXPECT_EQ(windows[1].begin, 4);
  EXPECT_EQ(windows[1].first_scored, 10);
  EXPECT_EQ(windows[1].end, 14);
  EXPECT_EQ(windows[3].end, 20);
}

TEST(Windows, RefuseAStrideThatLeavesTokensOut) {
  expect_error([] { plan_windows(100, 8, 8, 0); }, ErrorCode::usage, "--stride 8");
  EXPECT_EQ(plan_windows(8, 8, 8, 0).size(), 1u);
}

TEST(LogProbability, IsExactForKnownCases) {
  const std::vector<double> even(1000, 3.5);
  EXPECT_NEAR(log_probability(even, 17), -std::log(1000.0), 1e-12);
  const std::vector<double> far{30000.0, 0.0, 29999.0};
  EXPECT_NEAR(log_probability(far, 0), -std::log1p(std::exp(-1.0)), 1e-12);
  EXPECT_NEAR(log_probability(far, 1), -30000.0 - std::log1p(std::exp(-1.0)), 1e-9);
}

class ScoreDumps : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, ScoreDumps,
                         testing::Values("gemma4-e2b-tiny", "gemma4-26b-tiny", "gemma3-tiny", "llama3-tiny"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(ScoreDumps, HoldTheGoldenTensorsUnderTheirNames) {
  const Program program;
  const std::string name = GetParam();
  const Golden golden(data_path("cases/" + name + ".safetensors"));
  const Outcome outcome =
      program.run({"score", data_path("models/" + name).string(), "--ids", ids_text(golden.ints("input_ids")),
                   "--dump", "out.safetensors", "--chunk", "7", "--kv-dtype", "f32", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Golden dump(program.folder().path() / "out.safetensors");
  EXPECT_EQ(dump.ints("input_ids"), golden.ints("input_ids"));
  int compared = 0;
  for (const auto& [tensor, view] : dump.file().tensors) {
    if (tensor == "input_ids") continue;
    ASSERT_TRUE(golden.has(tensor)) << tensor;
    EXPECT_EQ(dump.shape(tensor), golden.shape(tensor)) << tensor;
    expect_close(dump.floats(tensor), golden.floats(tensor), 2e-4, name + " " + tensor);
    ++compared;
  }
  for (const auto& [tensor, view] : golden.file().tensors) {
    if (tensor.starts_with("kv.")) {
      EXPECT_TRUE(dump.has(tensor)) << tensor;
    }
  }
  EXPECT_GE(compared, 4 + 2);
  const json::array logprobs = json::parse(outcome.out).at("logprobs").as_array();
  EXPECT_EQ(logprobs.size() + 1, golden.ints("input_ids").size());
}

TEST(Score, JsonAddsUp) {
  const Program program;
  const Golden golden(data_path("cases/llama-tiny.safetensors"));
  const json::object out = program.json({"score", data_path("models/llama-tiny").string(), "--ids",
                                         ids_text(golden.ints("input_ids")), "--kv-dtype", "f32", "--json"});
  const std::vector<float> expected = golden.floats("logprobs");
  const auto logprobs = json::value_to<std::vector<double>>(out.at("logprobs"));
  const double sum = std::accumulate(logprobs.begin(), logprobs.end(), 0.0);
  expect_close(std::vector<float>(logprobs.begin(), logprobs.end()), expected, 5e-4, "logprobs");
  EXPECT_NEAR(out.at("logprob_sum").as_double(), sum, 1e-9);
  EXPECT_NEAR(out.at("perplexity").as_double(), std::exp(-sum / static_cast<double>(logprobs.size())), 1e-9);
  EXPECT_EQ(out.at("windows").as_int64(), 1);
}

TEST(Score, ChunksAndThreadsDoNotMoveABit) {
  const Program program;
  const std::string model = data_path("models/gemma4-e2b-tiny").string();
  const std::string ids = ids_text(Golden(data_path("cases/gemma4-e2b-tiny.safetensors")).ints("input_ids"));
  const json::object one =
      program.json({"score", model, "--ids", ids, "--json", "--chunk", "1", "--threads", "1"});
  const json::object two =
      program.json({"score", model, "--ids", ids, "--json", "--chunk", "48", "--threads", "2"});
  EXPECT_EQ(one.at("logprobs"), two.at("logprobs"));
}

TEST(Score, KvDtypeIsUsed) {
  const Program program;
  const std::string model = data_path("models/llama-tiny").string();
  const std::string ids = ids_text(Golden(data_path("cases/llama-tiny.safetensors")).ints("input_ids"));
  const json::object exact = program.json({"score", model, "--ids", ids, "--json", "--kv-dtype", "f32"});
  const json::object rounded = program.json({"score", model, "--ids", ids, "--json", "--kv-dtype", "bf16"});
  EXPECT_NE(exact.at("logprobs"), rounded.at("logprobs"));
  EXPECT_NEAR(exact.at("logprob_mean").as_double(), rounded.at("logprob_mean").as_double(), 0.05);
}

TEST(Score, WindowsOverlapByWhatTheStrideLeaves) {
  const Program program;
  const std::string model = data_path("models/llama-tiny").string();
  const std::vector<int64_t> ids = Golden(data_path("cases/llama-tiny.safetensors")).ints("input_ids");
  const json::object whole = program.json({"score", model, "--ids", ids_text(ids), "--json"});
  const json::object cut =
      program.json({"score", model, "--ids", ids_text(ids), "--json", "--window", "20", "--stride", "10"});
  EXPECT_GT(cut.at("windows").as_int64(), 2);
  const auto full = json::value_to<std::vector<double>>(whole.at("logprobs"));
  const auto parts = json::value_to<std::vector<double>>(cut.at("logprobs"));
  ASSERT_EQ(full.size(), parts.size());
  for (size_t i = 0; i < 19; ++i) EXPECT_EQ(full[i], parts[i]) << "the first window sees the same tokens";
  EXPECT_NE(full.back(), parts.back());
}

TEST(Score, ReadsIdsFromJsonFiles) {
  const Program program;
  program.folder().write("ids.json", "[1, 5, 9, 4]");
  const std::string model = data_path("models/llama-tiny").string();
  const json::object file = program.json({"score", model, "--ids", "ids.json", "--json"});
  const json::object list = program.json({"score", model, "--ids", "1,5,9,4", "--json"});
  EXPECT_EQ(file.at("logprobs"), list.at("logprobs"));
}

TEST(Score, NamesWhatItCannotScore) {
  const Program program;
  const std::string model = data_path("models/llama-tiny").string();
  const auto score = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"score", model});
    return program.run(more);
  };
  expect_refusal(score({"--ids", "1,x"}), 2, "--ids: \"x\" is no token id");
  expect_refusal(score({"--ids", "1,999999"}), 2, "token 1 is 999999, outside the vocabulary of");
  expect_refusal(score({"--ids", "1"}), 2, "a single token has none before it");
  expect_refusal(score({"--ids", ""}), 2, "nothing to score");
  expect_refusal(score({"--ids", "missing.json"}), 1, "missing.json");
  expect_refusal(score({"file.txt", "--ids", "1,2"}), 2, "FILE and --ids cannot be given together");
  expect_refusal(
      score({"--ids", "1,2,3,4,5,6,7,8,9", "--window", "4", "--stride", "2", "--dump", "x.safetensors"}), 2,
      "--dump needs the whole text in one window");
  expect_refusal(score({"--ids", "1,2,3", "--window", "100000000"}), 2,
                 "--window 100000000: the context holds");
  expect_refusal(score({"--ids", "1,2,3", "--context", "100000000"}), 2, "the model was made for at most");
  expect_refusal(score({"--ids", "1,2,3", "--kv-dtype", "q4"}), 2, "--kv-dtype");
  expect_refusal(score({"--ids", "1,2,3", "--dump", "no/such/folder/x.safetensors"}), 1, "no/such/folder");
  EXPECT_FALSE(std::filesystem::exists(program.folder().path() / "x.safetensors"));
}

}  // namespace
}  // namespace lapidary::test
