// The engine against what other stacks computed: every golden model, every position, every layer.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "engine/harness.h"
#include "engine/sampler.h"
#include "support/compare.h"
#include "support/probability.h"

namespace lapidary::test {
namespace {

constexpr double kTolerance = 2e-4;  // of max(1, |expected|); docs/numerics.md says where it comes from

class GoldenModel : public testing::TestWithParam<std::string> {
 protected:
  GoldenModel()
      : checkpoint(open_golden_model(GetParam())),
        golden(golden_case(GetParam())),
        tokens(tokens_of(golden)) {}
  std::unique_ptr<Engine> engine(const EngineOptions& options = in_float()) const {
    return std::make_unique<Engine>(checkpoint.spec, *checkpoint.tensors, options);
  }
  size_t vocab() const { return static_cast<size_t>(checkpoint.spec.vocab_size); }

  Checkpoint checkpoint;
  Golden golden;
  Tokens tokens;
};

TEST_P(GoldenModel, LogitsHiddenStatesAndKv) {
  const auto e = engine();
  Recorder seen;
  const std::vector<float> logits = run_alone(*e, tokens, 0, &seen);
  expect_close(logits, golden.floats("logits"), kTolerance, "logits [T, V]");
  expect_close(Recorder::joined(seen.final_norm()), golden.floats("final_norm"), kTolerance,
               "final_norm [T, D]");

  const std::vector<float> hidden = golden.floats("hidden");
  const size_t layer_size = tokens.size() * static_cast<size_t>(checkpoint.spec.d_model);
  ASSERT_EQ(hidden.size(), layer_size * checkpoint.spec.layers.size());
  ASSERT_EQ(seen.hidden().size(), checkpoint.spec.layers.size());
  for (const auto& [layer, rows] : seen.hidden()) {
    expect_close(Recorder::joined(rows), row_of(hidden, static_cast<size_t>(layer), layer_size), kTolerance,
                 fmt::format("hidden of layer {} [T, D]", layer));
  }

  std::set<std::string> owners;
  for (const auto& [name, tensor] : golden.file().tensors) {
    if (name.starts_with("kv.")) owners.insert(name.substr(3, name.rfind('.') - 3));
  }
  ASSERT_FALSE(owners.empty());
  EXPECT_EQ(seen.keys().size(), owners.size()) << "owners report K and V, borrowers do not";
  for (const std::string& owner : owners) {
    const int64_t layer = std::stoll(owner);
    ASSERT_EQ(seen.keys().count(layer), 1u) << "layer " << layer << " owns KV";
    expect_close(Recorder::joined(seen.keys().at(layer)), by_position(golden, "kv." + owner + ".k"),
                 kTolerance, "K of layer " + owner + " [T, K*Hd]");
    expect_close(Recorder::joined(seen.values().at(layer)), by_position(golden, "kv." + owner + ".v"),
                 kTolerance, "V of layer " + owner + " [T, K*Hd]");
  }
}

TEST_P(GoldenModel, LogProbabilities) {
  const auto e = engine();
  const std::vector<float> logits = run_alone(*e, tokens);
  std::vector<float> actual;
  for (size_t t = 1; t < tokens.size(); ++t)
    actual.push_back(static_cast<float>(log_probability(row_of(logits, t - 1, vocab()), tokens[t])));
  expect_close(actual, golden.floats("logprobs"), kTolerance, "logprobs [T-1]");
}

TEST_P(GoldenModel, GreedyWithTheCache) {
  const auto e = engine();
  const Tokens expected = tokens_of(golden, "greedy");
  const std::vector<float> expected_logits = golden.floats("greedy_logits");
  ASSERT_EQ(expected.size(), 32u);
  Sampler greedy({}, checkpoint.spec.vocab_size);
  const int32_t sequence = e->open();
  std::vector<float> logits = feed_last(*e, sequence, tokens);
  Tokens actual;
  for (size_t step = 0; step < expected.size(); ++step) {
    expect_close(logits, row_of(expected_logits, step, vocab()), kTolerance,
                 fmt::format("logits of greedy step {}", step));
    actual.push_back(greedy.sample(logits, step));
    logits = feed_last(*e, sequence, std::span(actual).last(1));
  }
  EXPECT_EQ(actual, expected);
}

TEST_P(GoldenModel, BatchOfRaggedRows) {
  constexpr size_t kRows = 3, kSteps = 12;
  const auto e = engine(in_float(2));
  std::vector<Tokens> prompts, answers(kRows);
  std::vector<std::vector<float>> logits(kRows);
  std::vector<Feed> feeds;
  for (size_t b = 0; b < kRows; ++b) {
    prompts.push_back(tokens_of(golden, fmt::format("batch.{}.input_ids", b)));
    logits[b].resize(prompts[b].size() * vocab());
  }
  for (size_t b = 0; b < kRows; ++b) feeds.push_back({e->open(), prompts[b], Want::all});
  e->forward(feeds, [&](size_t feed, int64_t index, std::span<const float> row) {
    std::copy(row.begin(), row.end(), logits[feed].begin() + index * static_cast<int64_t>(vocab()));
    if (static_cast<size_t>(index) + 1 == prompts[feed].size()) answers[feed].push_back(best_of(row));
  });
  for (size_t step = 1; step < kSteps; ++step) {
    for (size_t b = 0; b < kRows; ++b)
      feeds[b] = {feeds[b].sequence, std::span(answers[b]).last(1), Want::last};
    Tokens next(kRows);
    e->forward(feeds, [&](size_t feed, int64_t, std::span<const float> row) { next[feed] = best_of(row); });
    for (size_t b = 0; b < kRows; ++b) answers[b].push_back(next[b]);
  }
  for (size_t b = 0; b < kRows; ++b) {
    expect_close(logits[b], golden.floats(fmt::format("batch.{}.logits", b)), kTolerance,
                 fmt::format("logits of row {} [n, V]", b));
    EXPECT_EQ(answers[b], tokens_of(golden, fmt::format("batch.{}.greedy", b))) << "greedy of row " << b;
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenModel, testing::ValuesIn(golden_models()), name_of_model);

// ---- GGUF: models of the same kinds, quantised ----

class GoldenGguf : public testing::TestWithParam<std::string> {};

TEST_P(GoldenGguf, Logits) {
  const std::string& name = GetParam();
  const Golden golden = golden_case_of_gguf(name);
  const Checkpoint checkpoint = open_golden_gguf(name);
  Engine engine(checkpoint.spec, *checkpoint.tensors, in_float());
  expect_close(run_alone(engine, tokens_of(golden)), golden.floats(gguf_type(name) + ".logits"), kTolerance,
               "logits [T, V]");
}

INSTANTIATE_TEST_SUITE_P(, GoldenGguf, testing::ValuesIn(gguf_models()), name_of_model);

TEST(GoldenFiles, EachIsTested) {
  std::set<std::string> models, ggufs;
  for (const auto& entry : std::filesystem::directory_iterator(data_path("models"))) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with("-assistant")) models.insert(name);  // a draft model: no text model of its own
  }
  for (const auto& entry : std::filesystem::directory_iterator(data_path("gguf/models"))) {
    if (entry.path().extension() == ".gguf") ggufs.insert(entry.path().stem().string());
  }
  EXPECT_EQ(models, std::set<std::string>(golden_models().begin(), golden_models().end()));
  EXPECT_EQ(ggufs, std::set<std::string>(gguf_models().begin(), gguf_models().end()));
}

// The comparison would see what it is there to see.
TEST(GoldenFiles, ATokenThatIsOneOffLeavesTheTolerance) {
  const Checkpoint checkpoint = open_golden_model("gemma4-e2b-tiny");
  const Golden golden = golden_case("gemma4-e2b-tiny");
  Tokens tokens = tokens_of(golden);
  tokens[10] = (tokens[10] + 1) % static_cast<int32_t>(checkpoint.spec.vocab_size);
  const std::vector<float> logits = run_model(checkpoint.spec, *checkpoint.tensors, tokens, in_float()),
                           right = golden.floats("logits");
  EXPECT_FALSE(is_close(logits, right, kTolerance));
  const size_t before = 10 * static_cast<size_t>(checkpoint.spec.vocab_size);
  EXPECT_TRUE(is_close(std::span(logits).first(before), std::span(right).first(before), kTolerance))
      << "what comes before the token does not see it";
}

}  // namespace
}  // namespace lapidary::test
