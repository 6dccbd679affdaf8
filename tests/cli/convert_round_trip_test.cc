// Models written and read again: nothing changes that the format can hold.
#include <gtest/gtest.h>

#include <cmath>

#include "cli/convert_tool.h"
#include "engine/harness.h"
#include "formats/atomic_file.h"
#include "support/bytes.h"
#include "support/golden.h"
#include "support/probability.h"
#include "support/temp_dir.h"

namespace lapidary::test {
namespace {

namespace fs = std::filesystem;

std::vector<float> logits_of(const Checkpoint& model, const Tokens& tokens) {
  return run_model(model.spec, *model.tensors, tokens, {.threads = 1, .chunk = 16, .max_sequences = 1});
}

// A golden folder with a field of its config.json changed.
fs::path changed_copy(const std::string& model, const TempDir& dir, const std::string& from,
                      const std::string& to) {
  const fs::path copy = dir.path() / model;
  fs::copy(data_path("models/" + model), copy, fs::copy_options::recursive);
  std::string config = read_text_file(copy / "config.json");
  const size_t at = config.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  config.replace(at, from.size(), to);
  write_file_atomically(copy / "config.json", std::as_bytes(std::span(config)));
  return copy;
}

class FolderRoundTrip : public testing::TestWithParam<std::string> {};

TEST_P(FolderRoundTrip, ThroughGgufAndBack) {
  const TempDir dir;
  fs::path source = data_path("models/" + GetParam());
  // GGUF has no key for Gemma 3's attention scale: readers take head_dim^-1/2.
  if (GetParam() == "gemma3-tiny")
    source = changed_copy(GetParam(), dir, "\"query_pre_attn_scalar\": 12", "\"query_pre_attn_scalar\": 16");
  const fs::path gguf = dir.path() / "model.gguf", folder = dir.path() / "back";
  convert(source, gguf);
  convert(gguf, folder);
  const Checkpoint first = open_checkpoint(source), middle = open_checkpoint(gguf),
                   last = open_checkpoint(folder);
  expect_same_spec(first.spec, last.spec);
  // Gemma 3 folders hold w, GGUF files 1 + w: the same once read.
  expect_same_tensors(first, middle, true);
  expect_same_tensors(first, last);
  EXPECT_EQ(first.text.bos_id, last.text.bos_id);
  EXPECT_EQ(first.text.eos_id, last.text.eos_id);
  EXPECT_EQ(first.text.pad_id, last.text.pad_id);

  const Tokens tokens = tokens_of(golden_case(GetParam()));
  const std::vector<float> expected = logits_of(first, tokens);
  expect_same_bits(logits_of(last, tokens), expected, "folder");
  if (GetParam() == "llama3-tiny") {  // GGUF states the scaling of frequencies as 32-bit divisors
    expect_close(logits_of(middle, tokens), expected, 2e-5, "GGUF");
  } else {
    expect_same_bits(logits_of(middle, tokens), expected, "GGUF");
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FolderRoundTrip, testing::ValuesIn(golden_models()), name_of_model);

// In shards, and in the same bytes for any number of threads.
TEST(FolderRoundTrip, InShardsAndWithAnyNumberOfThreads) {
  const TempDir dir;
  const fs::path source = data_path("models/gemma4-31b-tiny");
  convert(source, dir.path() / "one", {.threads = 1});
  convert(source, dir.path() / "two", {.threads = 3});
  EXPECT_EQ(read_text_file(dir.path() / "one" / "model.safetensors"),
            read_text_file(dir.path() / "two" / "model.safetensors"));
  convert(source, dir.path() / "shards", {.shard_bytes = 200'000});
  EXPECT_TRUE(fs::exists(dir.path() / "shards" / "model-00001-of-00005.safetensors"));
  EXPECT_FALSE(fs::exists(dir.path() / "shards" / "model.safetensors"));
  const Checkpoint first = open_checkpoint(source), last = open_checkpoint(dir.path() / "shards");
  expect_same_spec(first.spec, last.spec);
  expect_same_tensors(first, last);
  convert(source, dir.path() / "a.gguf", {.type = "Q4_K_M", .threads = 1});
  convert(source, dir.path() / "b.gguf", {.type = "Q4_K_M", .threads = 3});
  EXPECT_EQ(read_text_file(dir.path() / "a.gguf"), read_text_file(dir.path() / "b.gguf"));
}

class GgufRoundTrip : public testing::TestWithParam<std::string> {};

const std::vector<std::string>& gguf_models() {
  static const std::vector<std::string> names = {
      "gemma3-tiny-F32",      "gemma3-tiny-Q5_0",     "gemma4-12b-wide-BF16", "gemma4-12b-wide-Q4_K_M",
      "gemma4-12b-wide-Q8_0", "gemma4-26b-tiny-BF16", "gemma4-26b-tiny-Q8_0", "gemma4-e2b-tiny-F32",
      "gemma4-e2b-wide-Q6_K", "gemma4-e2b-wide-Q4_0", "llama-tiny-F32",       "llama-tiny-Q5_1",
      "llama3-tiny-F32",      "llama3-tiny-Q4_1"};
  return names;
}

TEST_P(GgufRoundTrip, ThroughAFolderAndBack) {
  const TempDir dir;
  const fs::path source = data_path("gguf/models/" + GetParam() + ".gguf");
  convert(source, dir.path() / "folder");
  convert(dir.path() / "folder", dir.path() / "back.gguf");
  const Checkpoint first = open_checkpoint(source), middle = open_checkpoint(dir.path() / "folder"),
                   last = open_checkpoint(dir.path() / "back.gguf");
  ModelSpec wanted = first.spec, got = last.spec;
  for (size_t i = 0; i < wanted.layers.size(); ++i) {
    auto &a = wanted.layers[i].attention->rope.divisors, &b = got.layers[i].attention->rope.divisors;
    ASSERT_EQ(a.size(), b.size());
    // llama.cpp's converter computes them in 32 bits.
    for (size_t j = 0; j < a.size(); ++j) EXPECT_NEAR(a[j], b[j], 2e-7 * a[j]);
    a = b;
  }
  expect_same_spec(wanted, got);
  // Blocks are decoded to the floats that they mean; a folder holds no blocks.
  expect_same_tensors(first, middle, true);
  expect_same_tensors(first, last, true);
  if (first.dtype_bytes.size() <= 2 && GetParam().find("-Q") == std::string::npos)
    expect_same_tensors(first, last);
}

TEST_P(GgufRoundTrip, IntoAnotherGguf) {
  const TempDir dir;
  const fs::path source = data_path("gguf/models/" + GetParam() + ".gguf");
  convert(source, dir.path() / "again.gguf");
  const Checkpoint first = open_checkpoint(source), last = open_checkpoint(dir.path() / "again.gguf");
  expect_same_spec(first.spec, last.spec);
  expect_same_tensors(first, last);
  for (const auto& [key, value] : first.text.gguf->metadata) {
    if (!key.starts_with("tokenizer.") && !key.starts_with("general.")) continue;
    const auto found = last.text.gguf->metadata.find(key);
    ASSERT_NE(found, last.text.gguf->metadata.end()) << key;
    // The type of most weights; llama.cpp's tools call mixes by name.
    if (key != "general.file_type") {
      EXPECT_TRUE(found->second.value == value.value) << key;
    }
  }
}

// The same file laid out with wider gaps.
void write_aligned(const fs::path& from, const fs::path& to, uint32_t alignment) {
  const MappedFile bytes(from);
  const GgufFile file = parse_gguf(bytes.bytes(), from.string());
  GgufBuilder builder;
  builder.alignment(alignment);
  const auto narrow = [](const auto& values, auto as) {
    return std::vector<decltype(as)>(values.begin(), values.end());
  };
  for (const auto& entry : file.metadata) {
    const std::string& key = entry.first;
    std::visit(
        [&](const auto& value) {
          using T = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<T, int64_t>) {
            builder.set(key, static_cast<uint32_t>(value));
          } else if constexpr (std::is_same_v<T, double>) {
            builder.set(key, static_cast<float>(value));
          } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
            builder.set(key, narrow(value, int32_t{}));
          } else if constexpr (std::is_same_v<T, std::vector<double>>) {
            builder.set(key, narrow(value, float{}));
          } else if constexpr (std::is_same_v<T, std::vector<std::string_view>>) {
            builder.set(key, narrow(value, std::string{}));
          } else {
            builder.set(key, value);
          }
        },
        entry.second.value);
  }
  for (const auto& [name, view] : file.tensors) builder.tensor(name, view);
  write_file_atomically(to, builder.finish());
}

TEST(ConvertGguf, IsFreeOfItsSourcesAlignment) {
  for (const uint32_t alignment : {64u, 4096u}) {
    SCOPED_TRACE(alignment);
    const TempDir dir;
    const fs::path source = dir.path() / "source.gguf", out = dir.path() / "out.gguf";
    write_aligned(data_path("gguf/models/llama-tiny-Q5_1.gguf"), source, alignment);
    const Checkpoint first = open_checkpoint(source);
    ASSERT_EQ(first.text.gguf->get_int("general.alignment"), alignment);
    convert(source, out);
    const Checkpoint last = open_checkpoint(out);
    EXPECT_FALSE(last.text.gguf->has("general.alignment"));
    expect_same_spec(first.spec, last.spec);
    expect_same_tensors(first, last);
  }
}

// A layout that its own header contradicts is seen before the weights are written.
TEST(GgufLayout, IsReadBack) {
  const std::vector<GgufEntry> entries = {{"a", DType::f32, {3, 5}}, {"b", DType::f32, {7}}};
  std::map<std::string, GgufValue, std::less<>> metadata;
  metadata.insert_or_assign("general.architecture", GgufValue{std::string_view("llama")});
  const GgufLayout sound = gguf_layout(metadata, entries);
  EXPECT_NO_THROW(check_gguf_layout(sound, entries, "x.gguf"));
  GgufLayout moved = sound;
  moved.offsets[1] += 32;
  expect_error([&] { check_gguf_layout(moved, entries, "x.gguf"); }, ErrorCode::internal,
               "x.gguf: tensor \"b\": expected f32 [7] at byte");
  GgufLayout cut = sound;
  cut.file_bytes -= 32;
  expect_error([&] { check_gguf_layout(cut, entries, "x.gguf"); }, ErrorCode::internal, "out of range");
  metadata.insert_or_assign("general.alignment", GgufValue{int64_t{4096}});
  expect_error([&] { check_gguf_layout(gguf_layout(metadata, entries), entries, "x.gguf"); },
               ErrorCode::internal, "the file to be written could not be read: x.gguf: ");
}

INSTANTIATE_TEST_SUITE_P(Models, GgufRoundTrip, testing::ValuesIn(gguf_models()), name_of_model);

// What a file lists for layers that never read it, and towers, stay behind and are named.
TEST(Convert, LeavesUnusedTensorsBehindByName) {
  const Checkpoint source = open_checkpoint(data_path("models/gemma4-e2b-mm-tiny"));
  ASSERT_FALSE(source.skipped.empty());
  const TempDir dir;
  convert(data_path("models/gemma4-e2b-mm-tiny"), dir.path() / "text");
  const Checkpoint made = open_checkpoint(dir.path() / "text");
  EXPECT_TRUE(made.skipped.empty());
  expect_same_spec(source.spec, made.spec);
}

TEST(Convert, NamesWhatGgufCannotSay) {
  const TempDir dir;
  const fs::path out = dir.path() / "out.gguf";
  expect_error([&] { convert(data_path("models/gemma3-tiny"), out); }, ErrorCode::unsupported,
               "cannot say what this model is: layers[0].attention.scale is ");
  Checkpoint source = open_checkpoint(data_path("models/gemma4-31b-tiny"));
  source.spec.layers[2].layer_scalar = false;
  const ConvertPlan plan = plan_conversion(source, {ModelFormat::gguf, nullptr, false});
  expect_error([&] { target_notes(source, plan); }, ErrorCode::unsupported, "layers[2].layer_scalar is ");
  source.spec.layers[1].ffn->d_ff += 1;
  source.spec.layers[2].layer_scalar = true;
  ConvertPlan folder;
  folder.format = ModelFormat::hf;
  expect_error([&] { target_notes(source, folder); }, ErrorCode::unsupported, "layers[1].ffn.d_ff is ");
  source.spec.layers[1].attention.reset();
  expect_error([&] { target_notes(source, folder); }, ErrorCode::unsupported,
               "layers[1].attention: expected every layer to have one");
  EXPECT_FALSE(fs::exists(out));
}

// ---- quantised models

struct Quantised {
  const char *model, *type;
};

constexpr Quantised kQuantised[] = {
    {"gemma4-e2b-wide", "Q4_0"}, {"gemma4-e2b-wide", "Q4_K_M"}, {"gemma4-e2b-wide", "Q6_K"},
    {"gemma4-e2b-wide", "Q8_0"}, {"gemma4-12b-wide", "Q4_0"},   {"gemma4-12b-wide", "Q4_K_M"},
    {"gemma4-12b-wide", "Q6_K"}, {"gemma4-12b-wide", "Q8_0"},   {"gemma4-26b-tiny", "Q8_0"},
    {"llama-tiny", "Q4_0"},      {"llama-tiny", "Q8_0"},        {"gemma4-e2b-tiny", "Q8_0"}};

// The same choice of formats as llama-quantize, and on the whole no greater cost. (A single short prompt on a
// random model is a noisy judge: a router may turn.)
TEST(Convert, QuantisesWithLlamaCppsTypesAndNoGreaterCost) {
  double log_ratio = 0;
  for (const auto& [model, type] : kQuantised) {
    SCOPED_TRACE(model + std::string(" ") + type);
    const TempDir dir;
    const fs::path made = dir.path() / "made.gguf";
    const ConvertPlan plan = convert(data_path(std::string("models/") + model), made, {.type = type});
    const std::string prefix = std::string("gguf/models/") + model;
    const Checkpoint golden = open_checkpoint(data_path(prefix + "-" + type + ".gguf"));
    for (const PlannedTensor& tensor : plan.tensors) {
      // Their source was an F32 file, and this one is left as it is.
      if (tensor.slot.kind == TensorKind::ple_projection) continue;
      EXPECT_EQ(dtype_name(tensor.to), dtype_name(golden.tensors->read(tensor.slot).view.dtype))
          << tensor.name;
    }
    const Golden answers(data_path(prefix + ".safetensors"));
    const Checkpoint ours = open_checkpoint(made);
    const int64_t vocab = ours.spec.vocab_size;
    const std::vector<float> reference = answers.floats("hf.logits");
    const double theirs_kl = mean_kl(reference, answers.floats(type + std::string(".logits")), vocab),
                 ours_kl = mean_kl(reference, logits_of(ours, tokens_of(answers)), vocab);
    std::printf("%s %s: mean KL %.3g, of llama.cpp's quantiser %.3g\n", model, type, ours_kl, theirs_kl);
    EXPECT_LT(ours_kl, 1.5 * theirs_kl);
    log_ratio += std::log(ours_kl / theirs_kl);
  }
  const double ratio = std::exp(log_ratio / static_cast<double>(std::size(kQuantised)));
  std::printf("mean KL over that of llama.cpp's quantiser, geometric mean: %.3f\n", ratio);
  EXPECT_LT(ratio, 1.0);
}

TEST(Convert, QuantisesAgainOnlyWhenTold) {
  const TempDir dir;
  const fs::path source = data_path("gguf/models/gemma4-12b-wide-Q8_0.gguf"), out = dir.path() / "out.gguf";
  expect_error([&] { convert(source, out, {.type = "Q4_0"}); }, ErrorCode::usage, "--allow-requantize");
  EXPECT_FALSE(fs::exists(out));
  convert(source, out, {.type = "Q4_0", .allow_requantize = true});
  convert(source, dir.path() / "same.gguf", {.type = "Q8_0"});  // copied
  expect_same_tensors(open_checkpoint(source), open_checkpoint(dir.path() / "same.gguf"));
  convert(source, dir.path() / "f32.gguf", {.type = "F32"});  // decoded
  expect_same_tensors(open_checkpoint(source), open_checkpoint(dir.path() / "f32.gguf"), true);
}

TEST(Convert, SaysWhichRowsAreTooShortForABlock) {
  const TempDir dir;
  const ConvertPlan plan =
      convert(data_path("models/gemma4-31b-tiny"), dir.path() / "out.gguf", {.type = "Q4_K_M"});
  int64_t told = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.slot.kind != TensorKind::gate) continue;
    EXPECT_EQ(dtype_name(tensor.to), "q5_0");
    EXPECT_EQ(tensor.note,
              fmt::format("q4_k needs rows of a multiple of 256, these have {}", tensor.shape[1]));
    ++told;
  }
  EXPECT_EQ(told, open_checkpoint(data_path("models/gemma4-31b-tiny")).spec.n_layers());
}

}  // namespace
}  // namespace lapidary::test
