// `lapidary inspect`: the numbers of the real configurations, and that headers are all that is read.
#include "cli/inspect.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "support/compare.h"
#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

std::string config(const std::string& name) {
  return data_path("configs/" + name + "/config.json").string();
}

struct RealModel {
  const char* name;
  int64_t layers, owners, window, max_position;
  int64_t matrices_resident, matrices_touched;
  int64_t kv_global, kv_sliding;  // stored per token in bf16
  int64_t read_past_window;       // read by a step for each position that only global layers see
  const char* pattern;
};

// Published shapes, counted by hand. 26B-A4B touches 8 of 128 experts; E2B and E4B one row of the per-layer
// table.
const RealModel kReal[] = {
    {"e2b", 35, 15, 512, 131072, 4628283392, 2279482112, 6144, 12288, 14336, "SSSSF ×3, ssssf ×4"},
    {"e4b", 42, 24, 512, 131072, 7462453248, 4643891712, 16384, 40960, 28672, "SSSSSF ×4, sssssf ×3"},
    {"12b", 48, 48, 1024, 262144, 11906580480, 11906580480, 16384, 327680, 16384, "SSSSSF ×8"},
    {"26b-a4b", 30, 30, 1024, 262144, 25232441344, 3821830144, 20480, 204800, 20480, "SSSSSF ×5"},
    {"31b", 60, 60, 1024, 262144, 30696013824, 30696013824, 81920, 819200, 81920, "SSSSSF ×10"},
};

class RealConfig : public testing::TestWithParam<RealModel> {};
INSTANTIATE_TEST_SUITE_P(All, RealConfig, testing::ValuesIn(kReal), [](const auto& param) {
  std::string name = param.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

int64_t number(const json::object& object, const char* key) {
  return object.at(key).as_int64();
}

TEST_P(RealConfig, JsonStatesTheKnownNumbers) {
  const RealModel& real = GetParam();
  const json::object out = Program().json({"inspect", config(real.name), "--json"});
  EXPECT_EQ(number(out, "n_layers"), real.layers);
  EXPECT_EQ(number(out, "vocab_size"), 262144);
  EXPECT_EQ(number(out, "max_position"), real.max_position);
  EXPECT_EQ(out.at("pattern").as_string(), real.pattern);
  const json::object& parameters = out.at("parameters").as_object();
  EXPECT_EQ(number(parameters, "matrices_resident"), real.matrices_resident);
  EXPECT_EQ(number(parameters, "matrices_touched_per_token"), real.matrices_touched);
  EXPECT_GT(number(parameters, "resident"), real.matrices_resident);
  EXPECT_LT(number(parameters, "resident"), real.matrices_resident + real.matrices_resident / 1000);
  const json::object& kv = out.at("kv").as_object();
  EXPECT_EQ(kv.at("dtype").as_string(), "f16");
  EXPECT_EQ(number(kv, "bytes_per_token_below_window"), real.kv_global + real.kv_sliding);
  EXPECT_EQ(number(kv, "bytes_per_token_past_window"), real.kv_global);
  EXPECT_EQ(number(kv, "read_bytes_per_token_past_window"), real.read_past_window);
  int64_t owners = 0;
  for (const json::value& layer : out.at("layers").as_array()) {
    owners += layer.at("owns_kv").as_bool() ? 1 : 0;
    if (layer.at("kind").as_string() == "sliding") {
      EXPECT_EQ(layer.at("window").as_int64(), real.window);
    }
  }
  EXPECT_EQ(owners, real.owners);
}

TEST_P(RealConfig, LongSequencesStoreAWindowAndTheGlobalLayers) {
  const RealModel& real = GetParam();
  const json::object out = Program().json({"inspect", config(real.name), "--json"});
  const json::array& sizes = out.at("kv").at("sequence").as_array();
  EXPECT_EQ(sizes.back().at("positions").as_int64(), real.max_position);
  for (const json::value& size : sizes) {
    const int64_t positions = size.at("positions").as_int64();
    EXPECT_EQ(size.at("bytes").as_int64(),
              positions * real.kv_global + std::min(positions, real.window) * real.kv_sliding);
  }
}

TEST_P(RealConfig, TextStatesThemTooAndQuickly) {
  const RealModel& real = GetParam();
  const Outcome outcome = Program().run({"inspect", config(real.name)});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos) << "colours belong to terminals";
  for (const int64_t value : {real.matrices_resident, real.matrices_touched, real.kv_global + real.kv_sliding,
                              real.read_past_window}) {
    std::string digits = std::to_string(value);
    for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
    EXPECT_NE(outcome.out.find(digits), std::string::npos) << digits << "\n" << outcome.out;
  }
  EXPECT_NE(outcome.out.find(real.pattern), std::string::npos) << outcome.out;
  EXPECT_LT(outcome.seconds, 1.0);
}

TEST(Inspect, E2bBorrowersReadTheLastOwnerOfTheirKind) {
  const json::object out = Program().json({"inspect", config("e2b"), "--json"});
  const json::array& layers = out.at("layers").as_array();
  EXPECT_EQ(layers[15].at("kv_owner").as_int64(), 13);
  EXPECT_EQ(layers[19].at("kv_owner").as_int64(), 14);
  EXPECT_EQ(layers[14].at("d_ff").as_int64(), 6144);
  EXPECT_EQ(layers[15].at("d_ff").as_int64(), 12288);
  const Outcome text = Program().run({"inspect", config("e2b")});
  EXPECT_NE(text.out.find("reads L13"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("reads L14"), std::string::npos) << text.out;
}

TEST(Inspect, SmallModelsHaveTheirKnownKvBytes) {
  const Program program;
  const auto below = [&](const char* name) {
    return number(program.json({"inspect", config(name), "--json"}).at("kv").as_object(),
                  "bytes_per_token_below_window");
  };
  EXPECT_EQ(below("smollm2-135m"), 23040);
  EXPECT_EQ(below("llama-3-70b"), 327680);
}

TEST(Inspect, KvDtypeDoublesTheBytes) {
  const json::object out = Program().json({"inspect", config("e2b"), "--json", "--kv-dtype", "f32"});
  EXPECT_EQ(number(out.at("kv").as_object(), "bytes_per_token_below_window"), 2 * 18432);
  const json::object apart =
      Program().json({"inspect", config("smollm2-135m"), "--json", "--kv-dtype", "k=q8,v=f16"});
  EXPECT_EQ(number(apart.at("kv").as_object(), "bytes_per_token_below_window"), 30 * 3 * (64 + 4 + 128));
}

TEST(Inspect, EveryLayerOnDemand) {
  const std::string grouped = Program().run({"inspect", config("31b")}).out;
  const std::string full = Program().run({"inspect", config("31b"), "--layers"}).out;
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  EXPECT_EQ(lines(full) - lines(grouped), 60 - 2) << grouped << full;  // 31B has two kinds of layers
}

TEST(Inspect, FolderAndGgufOfOneModelAgree) {
  const Program program;
  const json::object folder =
      program.json({"inspect", data_path("models/gemma4-e2b-tiny").string(), "--json"});
  const json::object gguf =
      program.json({"inspect", data_path("gguf/models/gemma4-e2b-tiny-F32.gguf").string(), "--json"});
  EXPECT_EQ(folder.at("parameters"), gguf.at("parameters"));
  EXPECT_EQ(folder.at("kv"), gguf.at("kv"));
  EXPECT_EQ(folder.at("pattern"), gguf.at("pattern"));
  EXPECT_EQ(folder.at("dtype_bytes").as_object().size(), 1u);
  EXPECT_GT(folder.at("dtype_bytes").at("f32").as_int64(), 100000);
  EXPECT_EQ(gguf.at("text").at("tokenizer").at("source").as_string(), "GGUF metadata");
  EXPECT_EQ(folder.at("text").at("tokenizer").at("source").as_string(), "none");
  EXPECT_EQ(folder.at("text").at("stop_ids"), json::parse("[1, 106, 50]"));
}

TEST(Inspect, TellsWhichTensorsWereSkippedAndWhy) {
  const Program program;
  const json::object out = program.json({"inspect", data_path("models/gemma4-e4b-tiny").string(), "--json"});
  const json::array& skipped = out.at("skipped").as_array();
  EXPECT_GE(skipped.size(), 18u);  // k, v and k_norm of six borrowers
  for (const json::value& tensor : skipped) EXPECT_NE(tensor.at("reason").as_string(), "");
  const Outcome text = program.run({"inspect", data_path("models/gemma4-e4b-tiny").string()});
  EXPECT_NE(text.out.find("skipped"), std::string::npos) << text.out;
}

TEST(Inspect, NamesWhatIsWrongWithAConfiguration) {
  const Program program;
  const auto path = program.folder().write("config.json", R"({"model_type": "zebra"})");
  expect_refusal(program.run({"inspect", path.string()}), 1, "zebra");
  program.folder().write("broken.json", "{");
  expect_refusal(program.run({"inspect", "broken.json"}), 1, "broken.json");
}

TEST(LayerPattern, CountsRepeatedPieces) {
  ModelSpec spec;
  const auto add = [&](int64_t window, bool owner) {
    LayerSpec layer;
    layer.attention = AttentionSpec{};
    layer.attention->window = window;
    layer.attention->kv_owner = owner ? spec.n_layers() : 0;
    spec.layers.push_back(layer);
  };
  for (int i = 0; i < 12; ++i) add(i % 6 == 5 ? 0 : 512, true);
  EXPECT_EQ(layer_pattern(spec), "SSSSSF ×2");
  EXPECT_EQ(group_layers(spec).size(), 2u);
  EXPECT_EQ(layer_ranges(group_layers(spec)[0].layers), "0-4, 6-10");
  EXPECT_EQ(layer_ranges(group_layers(spec)[1].layers), "5, 11");
  add(512, false);
  add(512, false);
  EXPECT_EQ(layer_pattern(spec), "SSSSSF ×2, s ×2");
  spec.layers[0].attention.reset();
  EXPECT_EQ(layer_pattern(spec).front(), '-');
  EXPECT_EQ(group_layers(spec).size(), 4u);
}

TEST(LayerPattern, OneKindIsCounted) {
  ModelSpec spec;
  for (int64_t i = 0; i < 30; ++i) {
    spec.layers.emplace_back();
    spec.layers.back().attention = AttentionSpec{};
    spec.layers.back().attention->kv_owner = i;
  }
  EXPECT_EQ(layer_pattern(spec), "F ×30");
  EXPECT_EQ(group_layers(spec).size(), 1u);
}

}  // namespace
}  // namespace lapidary::test
