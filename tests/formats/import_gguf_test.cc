#include "formats/import_gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <optional>

#include "formats/checkpoint.h"
#include "formats/mapped_file.h"
#include "support/bytes.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace lapidary::test {
namespace {

namespace fs = std::filesystem;

fs::path gguf_path(const std::string& name) {
  return data_path("gguf/models/" + name + ".gguf");
}

// A parsed golden that a test may change. Views and strings point into the mapping, which lives as long.
struct Opened {
  MappedFile bytes;
  GgufFile file;
  explicit Opened(const std::string& name) : bytes(gguf_path(name)), file(parse_gguf(bytes.bytes(), name)) {}
};

// Takes the rotary settings apart: a GGUF holds divisors where a config holds a rule.
void expect_same_model(const ModelSpec& gguf, const ModelSpec& hf) {
  ModelSpec a = gguf, b = hf;
  ASSERT_EQ(a.n_layers(), b.n_layers());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    AttentionSpec &x = *a.layers[i].attention, &y = *b.layers[i].attention;
    const auto f = rope_frequencies(x.rope, x.head_dim), g = rope_frequencies(y.rope, y.head_dim);
    ASSERT_EQ(f.size(), g.size());
    for (size_t j = 0; j < f.size(); ++j) {
      EXPECT_NEAR(f[j], g[j], 1e-7 * g[j]) << "layer " << i << " pair " << j;  // divisors are f32
      EXPECT_EQ(f[j] == 0, g[j] == 0) << "layer " << i << " pair " << j;
    }
    x.rope = y.rope = RopeSpec{};
  }
  EXPECT_EQ(a, b);
}

class GgufGolden : public testing::TestWithParam<std::string> {};

TEST_P(GgufGolden, MeansWhatItsFolderMeans) {
  const fs::path folder = data_path("models/" + GetParam());
  const Checkpoint hf = open_checkpoint(folder);
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(data_path("gguf/models"))) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".gguf" || !name.starts_with(GetParam() + "-")) continue;
    SCOPED_TRACE(name);
    const Checkpoint gguf = open_checkpoint(entry.path());
    ModelSpec expected = hf.spec;
    if (gguf.family ==
        "gemma3") {  // query_pre_attn_scalar is not in the file; 1/sqrt(head_dim) is what it means
      for (LayerSpec& layer : expected.layers) layer.attention->scale = 0.25;
    }
    expect_same_model(gguf.spec, expected);
    EXPECT_EQ(gguf.family, hf.family);
    EXPECT_EQ(gguf.format, "gguf v3");
    EXPECT_NO_THROW(check_tensors(gguf.spec, *gguf.tensors));
    ++files;
  }
  EXPECT_GE(files, 2u);
}

// Weights of an unquantised GGUF are the folder's: rows put back, norms 1 + w, halves in the right order.
TEST_P(GgufGolden, HoldsTheWeightsOfItsFolder) {
  for (const char* type : {"F32", "BF16"}) {
    const std::string name = GetParam() + "-" + type;
    if (!fs::exists(fs::path(LAPIDARY_TEST_DATA) / "gguf/models" / (name + ".gguf"))) continue;
    const Checkpoint hf = open_checkpoint(data_path("models/" + GetParam())),
                     gguf = open_checkpoint(gguf_path(name));
    for_each_tensor(hf.spec, [&](const TensorInfo& info) {
      expect_same_bits(to_floats(gguf.tensors->read(info.slot).view),
                       to_floats(hf.tensors->read(info.slot).view), name + " " + slot_name(info.slot));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, GgufGolden,
                         testing::Values("gemma3-tiny", "gemma4-12b-wide", "gemma4-26b-tiny",
                                         "gemma4-e2b-tiny", "gemma4-e2b-wide", "llama-tiny", "llama3-tiny"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Quantised rows move whole: unpermuted q of the Q8_0 file is near the folder's, and only when unpermuted.
TEST(ImportGguf, PutsQuantisedRowsBack) {
  const Checkpoint hf = open_checkpoint(data_path("models/llama-tiny")),
                   gguf = open_checkpoint(gguf_path("llama-tiny-Q8_0"));
  for (const TensorKind kind : {TensorKind::query, TensorKind::key}) {
    const Slot slot{kind, 2};
    const TensorData stored = gguf.tensors->read(slot);
    EXPECT_EQ(stored.view.dtype, DType::q8_0);
    EXPECT_LT(worst_difference(to_floats(stored.view), to_floats(hf.tensors->read(slot).view)), 5e-3);
    EXPECT_NE(stored.owner, nullptr);
  }
  EXPECT_EQ(gguf.tensors->read({TensorKind::value, 2}).owner, nullptr);  // nothing else is copied
}

TEST(ImportGguf, ReadsTextAssets) {
  const Checkpoint c = open_checkpoint(gguf_path("gemma4-e2b-tiny-F32"));
  ASSERT_NE(c.text.gguf, nullptr);
  EXPECT_EQ(c.text.gguf->get_string("tokenizer.ggml.model"), "gemma4");
  EXPECT_EQ(c.text.bos_id, 2);
  EXPECT_EQ(c.text.eos_id, 1);
  EXPECT_EQ(c.text.pad_id, 0);
  EXPECT_EQ(c.text.stop_ids, std::vector<int64_t>{1});
  EXPECT_EQ(c.text.chat_template, std::nullopt);
  EXPECT_TRUE(c.text.tokenizer_json.empty());
}

// ---- keys

void set(GgufFile& file, const std::string& key, GgufValue value) {
  file.metadata.insert_or_assign(key, std::move(value));
}

void expect_refused(const std::string& model, const std::function<void(GgufFile&)>& change, ErrorCode code,
                    std::string_view part) {
  Opened opened(model);
  ASSERT_NO_THROW(import_gguf_spec(opened.file));
  change(opened.file);
  expect_error([&] { import_gguf_spec(opened.file); }, code, part, model);
}

const std::string kE2b = "gemma4-e2b-tiny-F32", kLlama = "llama-tiny-F32", kGemma3 = "gemma3-tiny-F32";

TEST(ImportGguf, RefusesWhatNobodyFollows) {
  const auto unsupported = [](const std::string& model, const std::string& key, GgufValue value,
                              std::string_view part) {
    expect_refused(
        model, [&](GgufFile& f) { set(f, key, value); }, ErrorCode::unsupported, part);
  };
  unsupported(kE2b, "general.architecture", {std::string_view("gemma5")},
              kE2b + ": general.architecture: expected gemma4, gemma3 or llama, got \"gemma5\"");
  unsupported(kLlama, "llama.rope.scaling.type", {std::string_view("yarn")},
              kLlama + ": llama.rope.scaling.type: expected none, got \"yarn\"");
  unsupported(kGemma3, "gemma3.rope.scaling.factor", {8.0}, "gemma3.rope.scaling.factor: expected 1");
  unsupported(kLlama, "llama.expert_count", {int64_t{8}}, "llama.expert_count: expected 0");
  unsupported(kLlama, "llama.attention.causal", {false}, "llama.attention.causal: expected true, got false");
  unsupported(kLlama, "llama.rope.dimension_count", {int64_t{8}},
              "llama.rope.dimension_count: expected that of key_length (16), got 8");
  unsupported(kE2b, "gemma4.attention.value_length", {int64_t{16}},
              "gemma4.attention.value_length: expected that of key_length (32), got 16");
  unsupported(kE2b, "gemma4.attn_logit_softcapping", {50.0}, "gemma4.attn_logit_softcapping: expected 0");
  unsupported(kGemma3, "gemma3.block_count", {int64_t{62}},
              "gemma3.block_count: expected a Gemma 3 whose attention scale");
}

TEST(ImportGguf, NamesMissingAndContradictoryKeys) {
  const auto drop = [](const std::string& model, const std::string& key) {
    expect_refused(
        model, [&](GgufFile& f) { f.metadata.erase(key); }, ErrorCode::data, key);
  };
  for (const char* key :
       {"block_count", "embedding_length", "context_length", "attention.head_count",
        "attention.head_count_kv", "attention.key_length", "attention.key_length_swa",
        "attention.sliding_window", "attention.sliding_window_pattern", "attention.shared_kv_layers",
        "rope.freq_base", "rope.freq_base_swa", "embedding_length_per_layer_input", "feed_forward_length",
        "attention.layer_norm_rms_epsilon"}) {
    drop(kE2b, std::string("gemma4.") + key);
  }
  const auto data = [](const std::string& model, const std::string& key, GgufValue value,
                       std::string_view part) {
    expect_refused(
        model, [&](GgufFile& f) { set(f, key, value); }, ErrorCode::data, part);
  };
  data(kE2b, "gemma4.block_count", {int64_t{14}},
       "gemma4.attention.sliding_window_pattern: expected 14 entries (block_count), got 15");
  data(kE2b, "gemma4.block_count", {int64_t{1} << 40},
       "gemma4.block_count: expected 1 to 2048, got 1099511627776");
  data(kE2b, "gemma4.attention.sliding_window", {int64_t{0}},
       "gemma4.attention.sliding_window: expected at least 1");
  data(kE2b, "gemma4.attention.shared_kv_layers", {int64_t{11}},
       "gemma4.attention.shared_kv_layers: expected a layer of the same kind among the first 4 for layer 4");
  data(kE2b, "gemma4.attention.head_count_kv", {int64_t{4}},
       kE2b + ": spec: layers[0].attention.n_kv_heads: expected a divisor of n_heads (6), got 4");
  data(kLlama, "llama.attention.head_count", {int64_t{0}},
       "llama.attention.head_count: expected at least 1, got 0");
}

TEST(ImportGguf, ReadsGemma3KindsFromAnyPattern) {
  const auto kinds = [](std::optional<GgufValue> pattern) {
    Opened opened(kGemma3);
    if (pattern) set(opened.file, "gemma3.attention.sliding_window_pattern", *pattern);
    opened.file.metadata.erase("gemma3.rope.freq_base_swa");  // absent in some real files: 10000
    std::string out;
    for (const LayerSpec& layer : import_gguf_spec(opened.file).spec.layers) {
      out += layer.attention->window == 0 ? 'F' : 'S';
      EXPECT_EQ(layer.attention->rope.theta, layer.attention->window == 0 ? 1e6 : 1e4);
    }
    return out;
  };
  EXPECT_EQ(kinds(std::nullopt), "SSSSSFSS");
  EXPECT_EQ(kinds(GgufValue{int64_t{3}}), "SSFSSFSS");
  EXPECT_EQ(kinds(GgufValue{std::vector<bool>{true, false, true, false, true, false, true, true}}),
            "SFSFSFSS");
}

// The last owner of the same kind, whatever stands before the borrowers.
TEST(ImportGguf, FindsDonorsOfTheirKind) {
  Opened opened(kE2b);
  set(opened.file, "gemma4.attention.shared_kv_layers",
      {int64_t{7}});  // owners SSSSFSSS: the global donor is layer 4
  const ModelSpec spec = import_gguf_spec(opened.file).spec;
  EXPECT_EQ(spec.layers[8].attention->kv_owner, 7);
  EXPECT_EQ(spec.layers[9].attention->kv_owner, 4);
  EXPECT_EQ(spec.layers[14].attention->kv_owner, 4);
}

TEST(ImportGguf, DemandsKeyAsValueInAllGlobalLayersOrNone) {
  Opened opened(kE2b);  // global owners 4 and 9
  opened.file.tensors.erase("blk.9.attn_v.weight");
  expect_error(
      [&] { import_gguf_spec(opened.file); }, ErrorCode::data,
      kE2b + ": attn_v: expected in every global layer or in none, got it in layer 4 and not in layer 9");
  opened.file.tensors.erase("blk.4.attn_v.weight");
  const GgufModel model = import_gguf_spec(opened.file);
  EXPECT_TRUE(model.spec.layers[4].attention->k_eq_v);
  EXPECT_FALSE(model.spec.layers[3].attention->k_eq_v);
  BoundTensors out(nullptr);
  EXPECT_NO_THROW(bind_gguf_tensors(model, opened.file, out));
  opened.file.tensors.erase("blk.3.attn_v.weight");  // a sliding layer has no such excuse
  BoundTensors again(nullptr);
  expect_error([&] { bind_gguf_tensors(import_gguf_spec(opened.file), opened.file, again); }, ErrorCode::data,
               "tensor \"blk.3.attn_v.weight\": expected [16, 64] for layers.3.value, got no such tensor");
}

// ---- tensors

void expect_unbound(const std::string& model, const std::function<void(GgufFile&)>& change,
                    std::string_view part) {
  Opened opened(model);
  change(opened.file);
  expect_error(
      [&] {
        BoundTensors out(nullptr);
        bind_gguf_tensors(import_gguf_spec(opened.file), opened.file, out);
      },
      ErrorCode::data, part, model);
}

TEST(BindGguf, NamesEachMissingTensor) {
  for (const std::string& model :
       {kE2b, kLlama, kGemma3, std::string("gemma4-26b-tiny-BF16"), std::string("llama3-tiny-F32")}) {
    const Opened opened(model);
    for (const auto& [name, view] : opened.file.tensors) {
      // Facts said by tensors alone: without them it is another model, sound or not.
      if (name == "output.weight" || name == "rope_freqs.weight" || name.ends_with("attn_v.weight")) continue;
      expect_unbound(
          model, [&](GgufFile& f) { f.tensors.erase(name); },
          fmt::format("\"{}\": expected {}", name, shape_text(view.shape)));
    }
  }
}

TEST(BindGguf, NamesUnexpectedMisshapedAndMistypedTensors) {
  const TensorView extra{DType::f32, {2, 3}, {}};
  expect_unbound(
      kE2b, [&](GgufFile& f) { f.tensors["blk.0.attn_q.bias"] = extra; },
      kE2b + ": tensor \"blk.0.attn_q.bias\": expected no such tensor in this model, got [2, 3] of f32");
  expect_unbound(
      kLlama, [&](GgufFile& f) { f.tensors["blk.9.attn_q.weight"] = extra; },
      "\"blk.9.attn_q.weight\": expected no such");
  expect_unbound(
      kGemma3, [&](GgufFile& f) { f.tensors["rope_freqs.weight"] = extra; },
      "\"rope_freqs.weight\": expected no such");
  expect_unbound(
      kE2b,
      [](GgufFile& f) {
        f.tensors["blk.0.ffn_up.weight"].shape = {32, 128};
      },
      "tensor \"blk.0.ffn_up.weight\": expected the shape [64, 64], got [32, 128]");
  expect_unbound(
      kE2b, [](GgufFile& f) { f.tensors["blk.0.attn_norm.weight"].dtype = DType::q8_0; },
      "tensor \"blk.0.attn_norm.weight\": expected f32, f16 or bf16, got q8_0");
  expect_unbound(
      kE2b, [](GgufFile& f) { f.tensors["blk.0.ffn_up.weight"].dtype = DType::i32; },
      "tensor \"blk.0.ffn_up.weight\": expected f32, f16, bf16 or a block format, got i32");
  expect_unbound(
      kE2b, [](GgufFile& f) { f.tensors.erase("rope_freqs.weight"); },
      "tensor \"rope_freqs.weight\": expected [16] (which pairs of a global head turn), got no such tensor");
  expect_unbound(
      kE2b,
      [](GgufFile& f) {
        f.tensors["rope_freqs.weight"].shape = {8, 2};
      },
      "tensor \"rope_freqs.weight\": expected [16] of f32, f16 or bf16, got [8, 2] of f32");
}

// The F32 file of e2b-tiny carries no K/V for borrowers; one that does must say so among the skipped.
TEST(BindGguf, SkipsKvOfBorrowersWithTheReason) {
  Opened opened(kE2b);
  for (const char* part : {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"}) {
    opened.file.tensors[fmt::format("blk.14.{}", part)] =
        opened.file.tensors.at(fmt::format("blk.9.{}", part));
  }
  const GgufModel model = import_gguf_spec(opened.file);
  BoundTensors out(nullptr);
  const auto skipped = bind_gguf_tensors(model, opened.file, out);
  size_t of_last = 0;
  for (const SkippedTensor& tensor : skipped) {
    if (!tensor.name.starts_with("blk.14.")) continue;
    EXPECT_EQ(tensor.reason, "k/v of a layer that borrows KV (from layer 9)");
    ++of_last;
  }
  EXPECT_EQ(of_last, 3u);
  EXPECT_FALSE(out.bound({TensorKind::key, 14}));
}

std::vector<std::byte> joined(std::initializer_list<const TensorView*> views) {
  std::vector<std::byte> out;
  for (const TensorView* view : views) out.insert(out.end(), view->bytes.begin(), view->bytes.end());
  return out;
}

TEST(BindGguf, SlicesFusedQkv) {
  for (const std::string& model : {kLlama, kE2b}) {
    Opened opened(model);
    const GgufModel plain = import_gguf_spec(opened.file);
    BoundTensors expected(nullptr);
    bind_gguf_tensors(plain, opened.file, expected);
    auto& t = opened.file.tensors;
    const TensorView q = t.at("blk.1.attn_q.weight"), k = t.at("blk.1.attn_k.weight"),
                     v = t.at("blk.1.attn_v.weight");
    const auto bytes = joined({&q, &k, &v});
    for (const char* part : {"q", "k", "v"}) t.erase(fmt::format("blk.1.attn_{}.weight", part));
    t["blk.1.attn_qkv.weight"] = {q.dtype, {q.shape[0] + k.shape[0] + v.shape[0], q.shape[1]}, bytes};
    const GgufModel fused = import_gguf_spec(opened.file);
    EXPECT_EQ(fused.spec, plain.spec);
    BoundTensors got(nullptr);
    EXPECT_NO_THROW(bind_gguf_tensors(fused, opened.file, got));
    for (const TensorKind kind : {TensorKind::query, TensorKind::key, TensorKind::value}) {
      expect_same_bits(to_floats(got.read({kind, 1}).view), to_floats(expected.read({kind, 1}).view), model);
    }
    t["blk.1.attn_qkv.weight"].shape[0] -= 1;
    BoundTensors spoilt(nullptr);
    expect_error([&] { bind_gguf_tensors(fused, opened.file, spoilt); }, ErrorCode::data,
                 "tensor \"blk.1.attn_qkv.weight\": expected the shape [");
  }
}

// Cuts the fused experts of a file into the older pair of tensors.
struct SplitExperts {
  std::vector<std::byte> gate, up;
  SplitExperts(GgufFile& file, const std::string& block) {
    const TensorView fused = file.tensors.at(block + "ffn_gate_up_exps.weight");
    const size_t half = fused.bytes.size() / static_cast<size_t>(fused.shape[0]) / 2;
    for (size_t e = 0; e < static_cast<size_t>(fused.shape[0]); ++e) {
      const auto both = fused.bytes.subspan(2 * e * half, 2 * half);
      gate.insert(gate.end(), both.begin(), both.begin() + static_cast<ptrdiff_t>(half));
      up.insert(up.end(), both.begin() + static_cast<ptrdiff_t>(half), both.end());
    }
    const Shape shape = {fused.shape[0], fused.shape[1] / 2, fused.shape[2]};
    file.tensors.erase(block + "ffn_gate_up_exps.weight");
    file.tensors[block + "ffn_gate_exps.weight"] = {fused.dtype, shape, gate};
    file.tensors[block + "ffn_up_exps.weight"] = {fused.dtype, shape, up};
  }
};

TEST(BindGguf, JoinsSeparateExperts) {
  const Slot slot{TensorKind::expert_gate_up, 0};
  for (const std::string model : {"gemma4-26b-tiny-BF16", "gemma4-26b-tiny-Q8_0"}) {
    Opened opened(model);
    const GgufModel plain = import_gguf_spec(opened.file);
    BoundTensors expected(nullptr), got(nullptr);
    bind_gguf_tensors(plain, opened.file, expected);
    const SplitExperts split(opened.file, "blk.0.");
    bind_gguf_tensors(plain, opened.file, got);
    const TensorData a = got.read(slot), b = expected.read(slot);
    EXPECT_EQ(a.view.dtype, b.view.dtype);
    EXPECT_EQ(a.view.shape, b.view.shape);
    expect_same_bits(to_floats(a.view), to_floats(b.view), model);
    EXPECT_EQ(got.bytes_by_dtype(), expected.bytes_by_dtype());
  }
}

TEST(BindGguf, JoinsExpertsOfTwoFormatsAsFloats) {
  Opened plain_file("gemma4-26b-tiny-BF16"), mixed("gemma4-26b-tiny-BF16");
  const GgufModel model = import_gguf_spec(plain_file.file);
  BoundTensors expected(nullptr), got(nullptr);
  bind_gguf_tensors(model, plain_file.file, expected);
  const SplitExperts split(mixed.file, "blk.0.");
  TensorView& up = mixed.file.tensors.at("blk.0.ffn_up_exps.weight");
  const std::vector<float> wide = to_floats(up);
  up.dtype = DType::f32;
  up.bytes = std::as_bytes(std::span(wide));
  bind_gguf_tensors(model, mixed.file, got);
  const TensorData joined_data = got.read({TensorKind::expert_gate_up, 0});
  EXPECT_EQ(joined_data.view.dtype, DType::f32);
  expect_same_bits(to_floats(joined_data.view),
                   to_floats(expected.read({TensorKind::expert_gate_up, 0}).view), "mixed");
  mixed.file.tensors.erase("blk.0.ffn_up_exps.weight");
  BoundTensors spoilt(nullptr);
  expect_error([&] { bind_gguf_tensors(model, mixed.file, spoilt); }, ErrorCode::data,
               "tensor \"blk.0.ffn_gate_up_exps.weight\": expected [16, 64, 64] for layers.0.expert_gate_up, "
               "got no such tensor");
}

// ---- split sets

// llama-tiny in parts: metadata and no tensors in the first, as some tools write it.
class SplitSet {
 public:
  explicit SplitSet(uint32_t count, int32_t declared_tensors = 38) {
    Opened opened(kLlama);
    std::vector<GgufBuilder> parts(count);
    copy_metadata(opened.file, parts[0]);
    parts[0].set("split.tensors.count", declared_tensors);
    for (uint32_t i = 0; i < count; ++i) {
      parts[i].set("split.no", i).set("split.count", count);
    }
    size_t at = 0;
    for (const auto& [name, view] : opened.file.tensors) parts[1 + at++ % (count - 1)].tensor(name, view);
    for (uint32_t i = 0; i < count; ++i) write(i, count, parts[i].finish());
  }

  fs::path path(uint32_t number, uint32_t count) const { return dir_.path() / name(number, count); }
  void write(uint32_t index, uint32_t count, const std::vector<std::byte>& bytes) const {
    dir_.write(name(index + 1, count), bytes);
  }
  const TempDir& dir() const { return dir_; }

 private:
  static std::string name(uint32_t number, uint32_t count) {
    return fmt::format("m-{:05}-of-{:05}.gguf", number, count);
  }

  static void copy_metadata(const GgufFile& file, GgufBuilder& out) {
    for (const auto& [key, value] : file.metadata) {
      if (const auto* text = std::get_if<std::string_view>(&value.value)) out.set(key, *text);
      if (const auto* number = std::get_if<int64_t>(&value.value))
        out.set(key, static_cast<uint32_t>(*number));
      if (const auto* real = std::get_if<double>(&value.value)) out.set(key, static_cast<float>(*real));
      if (const auto* flag = std::get_if<bool>(&value.value)) out.set(key, *flag);
    }
  }

  TempDir dir_;
};

TEST(SplitGguf, IsReadAsOneModel) {
  const SplitSet set(3);
  const Checkpoint whole = open_checkpoint(gguf_path(kLlama)), split = open_checkpoint(set.path(1, 3));
  EXPECT_EQ(split.spec, whole.spec);
  for_each_tensor(whole.spec, [&](const TensorInfo& info) {
    expect_same_bits(to_floats(split.tensors->read(info.slot).view),
                     to_floats(whole.tensors->read(info.slot).view), slot_name(info.slot));
  });
  int64_t bytes = 0;
  for (uint32_t i = 1; i <= 3; ++i) bytes += static_cast<int64_t>(fs::file_size(set.path(i, 3)));
  EXPECT_EQ(split.file_bytes, bytes);
}

TEST(SplitGguf, NamesWhatIsWrongWithASet) {
  const SplitSet set(3);
  expect_error([&] { open_checkpoint(set.path(2, 3)); }, ErrorCode::usage,
               "expected the first file of the split set, got number 2 of 3");
  fs::copy(set.path(1, 3), set.dir().path() / "other.gguf");
  expect_error([&] { open_checkpoint(set.dir().path() / "other.gguf"); }, ErrorCode::data,
               "expected a name that ends in -00001-of-00003.gguf (split.count is 3), got \"other.gguf\"");
  fs::copy_file(set.path(2, 3), set.path(3, 3), fs::copy_options::overwrite_existing);
  expect_error([&] { open_checkpoint(set.path(1, 3)); }, ErrorCode::data,
               "split.no and split.count: expected 2 and 3, got 1 and 3");
  fs::remove(set.path(3, 3));
  expect_error([&] { open_checkpoint(set.path(1, 3)); }, ErrorCode::not_found, "m-00003-of-00003.gguf");
  const SplitSet short_set(3, 40);
  expect_error([&] { open_checkpoint(short_set.path(1, 3)); }, ErrorCode::data,
               "split.tensors.count: expected as many tensors as the parts hold (38), got 40");
}

}  // namespace
}  // namespace lapidary::test
