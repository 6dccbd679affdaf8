// `lapidary bench`: its flags, its formats, and that what it ran is the same whatever ran it.
#include "cli/bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <set>
#include <sstream>

#include "cli/bench_cost.h"
#include "support/golden_models.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

std::string tiny(const std::string& name = "llama-tiny") {
  return data_path("models/" + name).string();
}

using Flags = std::map<std::string, std::string>;

// The command with quick tests, as JSON and without probes; `more` overrides.
std::vector<std::string> quick(Flags more, const std::string& model = tiny()) {
  more.merge(Flags{{"-p", "16"}, {"-n", "4"}, {"-r", "2"}, {"--probe-mb", "0"}, {"--output", "json"}});
  std::vector<std::string> arguments{"bench", model};
  for (const auto& [flag, value] : more) arguments.insert(arguments.end(), {flag, value});
  return arguments;
}

std::vector<std::string> strings_of(const json::object& out, const char* field) {
  std::vector<std::string> found;
  for (const json::value& row : out.at("results").as_array()) found.emplace_back(row.at(field).as_string());
  return found;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Cells of a line without quoted commas.
size_t cells_of(const std::string& line) {
  size_t commas = 0;
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted) ++commas;
  }
  return commas + 1;
}

TEST(BenchTokens, AreAFunctionOfSeedSequenceAndPosition) {
  std::set<int32_t> seen;
  for (int64_t position = 0; position < 100; ++position) {
    const int32_t token = bench_token(7, 0, position, 1000);
    EXPECT_GE(token, 0);
    EXPECT_LT(token, 1000);
    EXPECT_EQ(token, bench_token(7, 0, position, 1000));
    seen.insert(token);
  }
  EXPECT_GT(seen.size(), 80u);
  EXPECT_NE(bench_token(7, 0, 5, 1 << 30), bench_token(7, 1, 5, 1 << 30));
  EXPECT_NE(bench_token(7, 0, 5, 1 << 30), bench_token(8, 0, 5, 1 << 30));
}

TEST(BenchRow, StatesMedianAndSpread) {
  BenchRow row;
  row.test = {BenchKind::decode, 10, 0, 3};
  row.seconds = {3.0, 1.0, 2.0};
  EXPECT_EQ(row.median_seconds(), 2.0);
  EXPECT_EQ(row.tokens_per_second(), 15.0);
  EXPECT_EQ(row.spread(), 0.5);
  row.seconds = {4.0, 1.0, 2.0, 3.0};
  EXPECT_EQ(row.median_seconds(), 2.5);
}

// By hand for a model of two layers, of which the second reads the first one's keys and values.
TEST(BenchCost, CountsWhatTheEngineComputes) {
  ModelSpec spec = open_golden_model("llama-tiny").spec;
  spec.layers.resize(2);
  const LayerSpec& layer = spec.layers[0];
  const auto d = static_cast<double>(spec.d_model), v = static_cast<double>(spec.vocab_size),
             q = static_cast<double>(layer.attention->n_heads * layer.attention->head_dim),
             kv = static_cast<double>(layer.attention->n_kv_heads * layer.attention->head_dim),
             f = static_cast<double>(layer.ffn->d_ff);
  const double owned = 2 * kv * d, rest = 2 * q * d + 3 * f * d;
  const RowsCost decode = cost_of_rows(spec, 10, 2, true, DType::f32);
  EXPECT_EQ(decode.matrix_ops, 2 * 2 * (2 * (owned + rest) + v * d));
  EXPECT_EQ(decode.attention_ops, 4 * q * (11 + 12) * 2);
  EXPECT_EQ(decode.kv_bytes, 2 * kv * 4 * (11 + 12) * 2);

  spec.layers[1].attention->kv_owner = 0;
  const RowsCost prefill = cost_of_rows(spec, 10, 5, false, DType::f32);
  // All five rows make keys and values in layer 0; the last one alone goes on.
  EXPECT_EQ(prefill.matrix_ops, 2 * (5 * owned + 2 * rest + v * d));
  EXPECT_EQ(prefill.attention_ops, 4 * q * 15 * 2);

  spec.layers[0].attention->window = 4;
  EXPECT_EQ(cost_of_rows(spec, 10, 1, true, DType::f32).kv_bytes, 2 * kv * 4 * (4 + 11));
}

TEST(BenchCost, CountsChosenExpertsOnly) {
  const ModelSpec spec = open_golden_model("gemma4-26b-tiny").spec;
  ModelSpec more = spec;
  for (LayerSpec& layer : more.layers) layer.ffn->moe->n_experts *= 2;
  const double router = 2 * static_cast<double>(spec.d_model * spec.layers[0].ffn->moe->n_experts);
  EXPECT_EQ(cost_of_rows(more, 0, 1, true, DType::f32).matrix_ops -
                cost_of_rows(spec, 0, 1, true, DType::f32).matrix_ops,
            router * static_cast<double>(spec.n_layers()));
}

TEST(Bench, RunsEveryTestOfTheLists) {
  const Program program;
  const json::object out = program.json(quick(
      {{"-p", "16,8"}, {"-n", "4,2"}, {"-d", "0,40"}, {"-b", "1,3"}, {"-t", "1,2"}}, tiny("gemma3-tiny")));
  const std::vector<std::string> expected{"pp16",    "pp8",        "tg4",      "tg4 b3",
                                          "tg2",     "tg2 b3",     "pp16 d40", "pp8 d40",
                                          "tg4 d40", "tg4 b3 d40", "tg2 d40",  "tg2 b3 d40"};
  const std::vector<std::string> names = strings_of(out, "test");
  ASSERT_EQ(names.size(), 2 * expected.size());
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(names[i], expected[i % expected.size()]);
  for (size_t i = 0; i < names.size(); ++i) {
    const json::object& row = out.at("results").as_array()[i].as_object();
    EXPECT_EQ(row.at("threads").as_int64(), i < expected.size() ? 1 : 2);
    EXPECT_EQ(row.at("seconds").as_array().size(), 2u);
    EXPECT_GT(row.at("tokens_per_s").as_double(), 0);
    EXPECT_GT(row.at("ops_per_s").as_double(), 0);
    EXPECT_EQ(row.at("kind").as_string(), names[i].starts_with("pp") ? "prefill" : "decode");
    EXPECT_EQ(row.at("bytes_per_s").is_null(), names[i].starts_with("pp"));
    EXPECT_TRUE(row.at("share_of_peak").is_null()) << "nothing was probed";
  }
  EXPECT_GT(out.at("peak_rss_bytes").as_int64(), out.at("weight_bytes").as_int64());
}

// For every architecture: windows, borrowed layers, experts.
class BenchBits : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, BenchBits,
                         testing::Values("gemma4-e2b-tiny", "gemma4-26b-tiny", "gemma3-tiny", "llama3-tiny"),
                         [](const auto& param) { return test_name(param.param); });

TEST_P(BenchBits, AreTheSameForThreadsChunksAndReruns) {
  const Program program;
  const auto hashes = [&](Flags more) {
    more.merge(Flags{{"-d", "0,45"}, {"-b", "1,3"}});
    return strings_of(program.json(quick(more, tiny(GetParam()))), "logits_xxh3");
  };
  const std::vector<std::string> first = hashes({{"-t", "1"}});
  EXPECT_EQ(hashes({{"-t", "1"}}), first);
  EXPECT_EQ(hashes({{"-t", "2"}}), first);
  EXPECT_EQ(hashes({{"-t", "2"}, {"--chunk", "7"}, {"-r", "1"}}), first);
  EXPECT_NE(hashes({{"-t", "1"}, {"--seed", "2"}}), first);
  EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), first.size())
      << "tests of different tokens have different logits";
}

TEST(Bench, PrefillAndDecodeOfTheSameTokensGiveTheSameLogits) {
  const Program program;
  const json::object out = program.json(quick({{"-p", "20"}, {"-n", "20,4"}, {"-d", "0,16"}}));
  const std::vector<std::string> names = strings_of(out, "test"), hashes = strings_of(out, "logits_xxh3");
  const auto hash = [&](const std::string& name) {
    const auto at = std::find(names.begin(), names.end(), name);
    return at == names.end() ? "no test " + name : hashes[static_cast<size_t>(at - names.begin())];
  };
  EXPECT_EQ(hash("pp20"), hash("tg20"));
  EXPECT_EQ(hash("pp20"), hash("tg4 d16"));
}

TEST(Bench, ModesAreObeyed) {
  const Program program;
  const std::string model = data_path("gguf/models/llama-tiny-Q8_0.gguf").string();
  const auto hashes = [&](const Flags& more) {
    return strings_of(program.json(quick(more, model)), "logits_xxh3");
  };
  const json::object out = program.json(quick({{"--arithmetic", "a8"}, {"--kv-dtype", "bf16"}}, model));
  EXPECT_NE(out.at("numeric_mode").as_string().find("a8"), std::string::npos);
  EXPECT_NE(out.at("numeric_mode").as_string().find("kv bf16"), std::string::npos);
  EXPECT_NE(hashes({{"--arithmetic", "a8"}}), hashes({{"--arithmetic", "a16"}}));
  EXPECT_NE(hashes({{"--kv-dtype", "bf16"}}), hashes({{"--kv-dtype", "f32"}}));
}

TEST(Bench, ProbesTheMachineForEveryNumberOfThreads) {
  const Program program;
  const json::object out = program.json(quick({{"--probe-mb", "8"}, {"-t", "1,2"}}));
  const json::array& machine = out.at("machine").as_array();
  ASSERT_EQ(machine.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const json::object& measure = machine[i].as_object();
    EXPECT_EQ(measure.at("threads").as_int64(), static_cast<int64_t>(i + 1));
    for (const char* field :
         {"read_bytes_per_s_huge_pages", "read_bytes_per_s_4k_pages", "float_ops_per_s", "int8_ops_per_s"})
      EXPECT_GT(measure.at(field).as_double(), 0) << field;
  }
  for (const json::value& row : out.at("results").as_array())
    EXPECT_GT(row.at("share_of_peak").as_double(), 0);
}

TEST(Bench, CsvHasOneLineATestAndAsManyCellsAsItsHeading) {
  const Program program;
  const Outcome outcome = program.run(quick({{"-b", "1,2"}, {"--output", "csv"}}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<std::string> lines = lines_of(outcome.out);
  ASSERT_EQ(lines.size(), 1u + 3u) << outcome.out;
  EXPECT_EQ(lines[0].find("model,numeric_mode,chunk,seed,test,kind,tokens,depth,batch,threads"), 0u);
  for (const std::string& line : lines) EXPECT_EQ(cells_of(line), cells_of(lines[0])) << line;
  EXPECT_NE(lines[3].find(",tg4 b2,decode,4,0,2,"), std::string::npos) << lines[3];
}

TEST(Bench, TablesForPeopleNameTestsUnitsAndMachine) {
  const Program program;
  for (const std::string format : {"table", "md"}) {
    const Outcome outcome = program.run(quick({{"--probe-mb", "4"}, {"--output", format}}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    for (const char* part : {"llama-tiny", "pp16", "tg4", "tok/s", "GB/s", "of read", "read, huge pages",
                             "int8 peak", "seed 1", "2 repetitions", "peak resident"})
      EXPECT_NE(outcome.out.find(part), std::string::npos) << format << ": " << part << "\n" << outcome.out;
    EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
    EXPECT_EQ(outcome.err, "") << "progress is for terminals";
  }
}

TEST(Bench, NamesWhatItCannotMeasure) {
  const Program program;
  const auto bench = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"bench", tiny()});
    return program.run(more);
  };
  expect_refusal(program.run({"bench"}), 2, "MODEL is required");
  expect_refusal(bench({"-p", "0", "-n", "0"}), 2, "-p 0 and -n 0 leave nothing to measure");
  expect_refusal(bench({"-d", "1000000"}), 2, "the tests need 1000512 positions");
  expect_refusal(bench({"-p", "12,x"}), 2, "--prompt: x is no whole number");
  expect_refusal(bench({"-n", "-1"}), 2, "--generate: -1 is not between 0 and");
  expect_refusal(bench({"-b", "0"}), 2, "--batch: 0 is not between 1 and 1024");
  expect_refusal(bench({"-t", "1,0"}), 2, "--threads: 0 is not between 1 and 1024");
  expect_refusal(bench({"-r", "0"}), 2, "--repetitions: 0 is not between 1 and 1000");
  expect_refusal(bench({"--output", "xml"}), 2, "--output");
  expect_refusal(bench({"--arithmetic", "a4"}), 2, "--arithmetic");
  expect_refusal(bench({"--probe-mb", "-1"}), 2, "--probe-mb");
  expect_refusal(bench({"--seed", "-1"}), 2, "--seed: -1 is no whole number");
  expect_refusal(bench({"--dept", "3"}), 2, "did you mean --depth?");
  expect_refusal(program.run({"bench", data_path("configs/e2b").string()}), 2, "no .safetensors weights");
}

}  // namespace
}  // namespace lapidary::test
