#include "formats/checkpoint.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <functional>
#include <set>

#include "formats/atomic_file.h"
#include "formats/hf_tensors.h"
#include "formats/mapped_file.h"
#include "formats/safetensors.h"
#include "support/bytes.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace lapidary::test {
namespace {

namespace fs = std::filesystem;

using Tensors = std::map<std::string, TensorView>;

// A golden folder, copied with its weights changed.
class Changed {
 public:
  Changed(const std::string& model, const std::function<void(Tensors&)>& change)
      : golden_(weights_path(model)) {
    Tensors tensors = golden_.file().tensors;
    change(tensors);
    dir_.write("model.safetensors", write_safetensors(tensors));
    dir_.write("config.json", read_text_file(data_path("models/" + model + "/config.json")));
  }
  const fs::path& path() const { return dir_.path(); }
  const TempDir& dir() const { return dir_; }

 private:
  static fs::path weights_path(const std::string& model) {
    return data_path("models/" + model + "/model.safetensors");
  }

  Golden golden_;
  TempDir dir_;
};

void expect_refused(const std::string& model, const std::function<void(Tensors&)>& change,
                    std::string_view part) {
  const Changed folder(model, change);
  expect_error([&] { open_checkpoint(folder.path()); }, ErrorCode::data, part, model);
}

std::vector<std::string> golden_models() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(data_path("models")))
    out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

// Every golden folder: each tensor of the spec is there, each stored tensor is used or skipped for a reason.
TEST(OpenFolder, ConsumesEveryGoldenExactly) {
  EXPECT_EQ(golden_models().size(), 13u);
  for (const std::string& model : golden_models()) {
    SCOPED_TRACE(model);
    const Checkpoint c = open_checkpoint(data_path("models/" + model));
    ASSERT_NO_THROW(check_tensors(c.spec, *c.tensors));
    size_t slots = 0, stored = 0;
    for_each_tensor(c.spec, [&](const TensorInfo&) { ++slots; });
    int64_t bytes = 0, file_bytes = 0;
    for (const auto& entry : fs::directory_iterator(data_path("models/" + model))) {
      if (entry.path().extension() != ".safetensors") continue;
      stored += Golden(entry.path()).file().tensors.size();
      file_bytes += static_cast<int64_t>(entry.file_size());
    }
    EXPECT_EQ(slots + c.skipped.size(), stored);
    EXPECT_EQ(c.file_bytes, file_bytes);
    for (const auto& [dtype, size] : c.dtype_bytes) bytes += size;
    EXPECT_GT(bytes, 0);
    EXPECT_LE(bytes, file_bytes);
    EXPECT_EQ(c.format, "safetensors");
  }
}

TEST(OpenFolder, GivesTheStoredBytesOfASlot) {
  const Checkpoint c = open_checkpoint(data_path("models/gemma4-26b-tiny"));
  const Golden golden(data_path("models/gemma4-26b-tiny/model.safetensors"));
  const std::pair<Slot, std::string> pairs[] = {
      {{TensorKind::token_embedding, -1}, "model.embed_tokens.weight"},
      {{TensorKind::output_norm, -1}, "model.norm.weight"},
      {{TensorKind::query, 1}, "model.layers.1.self_attn.q_proj.weight"},
      {{TensorKind::post_attention_norm, 1}, "model.layers.1.post_attention_layernorm.weight"},
      {{TensorKind::ffn_norm, 1}, "model.layers.1.pre_feedforward_layernorm.weight"},
      {{TensorKind::router, 2}, "model.layers.2.router.proj.weight"},
      {{TensorKind::router_scale, 2}, "model.layers.2.router.scale"},
      {{TensorKind::expert_scale, 2}, "model.layers.2.router.per_expert_scale"},
      {{TensorKind::expert_gate_up, 5}, "model.layers.5.experts.gate_up_proj"},
      {{TensorKind::expert_down, 5}, "model.layers.5.experts.down_proj"},
      {{TensorKind::dense_post_norm, 3}, "model.layers.3.post_feedforward_layernorm_1.weight"},
      {{TensorKind::expert_pre_norm, 3}, "model.layers.3.pre_feedforward_layernorm_2.weight"},
      {{TensorKind::expert_post_norm, 3}, "model.layers.3.post_feedforward_layernorm_2.weight"},
      {{TensorKind::layer_scalar, 4}, "model.layers.4.layer_scalar"},
  };
  for (const auto& [slot, name] : pairs) {
    const TensorData data = c.tensors->read(slot);
    expect_same_bits(to_floats(data.view), golden.floats(name), name);
    EXPECT_EQ(data.owner, nullptr) << name;  // nothing is copied
  }
  EXPECT_EQ(c.dtype_bytes.size(), 1u);
  EXPECT_EQ(c.dtype_bytes.count("bf16"), 1u);
  expect_error(
      [&] {
        c.tensors->read({TensorKind::output_head, -1});
      },
      ErrorCode::data, "output_head: expected a tensor, got none");
}

TEST(OpenFolder, ShardsHoldTheSameModel) {
  const Checkpoint one = open_checkpoint(data_path("models/gemma4-31b-tiny"));
  const Checkpoint many = open_checkpoint(data_path("models/gemma4-31b-tiny-sharded"));
  EXPECT_EQ(one.spec, many.spec);
  EXPECT_EQ(one.dtype_bytes, many.dtype_bytes);
  for_each_tensor(one.spec, [&](const TensorInfo& info) {
    expect_same_bits(to_floats(one.tensors->read(info.slot).view),
                     to_floats(many.tensors->read(info.slot).view), slot_name(info.slot));
  });
}

TEST(OpenFolder, TensorsOutliveTheCheckpoint) {
  std::shared_ptr<const TensorSource> tensors;
  { tensors = open_checkpoint(data_path("models/llama-tiny")).tensors; }
  EXPECT_EQ(to_floats(tensors->read({TensorKind::output_norm, -1}).view).size(), 96u);
}

// Gemma 3 stores w and means 1 + w, in its norms and nowhere else.
TEST(OpenFolder, AddsOneToGemma3Norms) {
  const Checkpoint c = open_checkpoint(data_path("models/gemma3-tiny"));
  const Golden golden(data_path("models/gemma3-tiny/model.safetensors"));
  size_t norms = 0;
  for_each_tensor(c.spec, [&](const TensorInfo& info) {
    std::vector<float> expected = golden.floats("model." + hf_name(info.slot, "gemma3"));
    if (info.shape.size() == 1) {
      for (float& x : expected) x += 1;
      ++norms;
    }
    expect_same_bits(to_floats(c.tensors->read(info.slot).view), expected, slot_name(info.slot));
  });
  EXPECT_EQ(norms, 8u * 6 + 1);
}

TEST(OpenFolder, ReadsThePublishedSpelling) {
  const Checkpoint newer = open_checkpoint(data_path("models/gemma4-e2b-tiny"));
  const Checkpoint older = open_hf_folder(data_path("models/gemma4-e2b-tiny"), "config.published.json");
  EXPECT_EQ(newer.spec, older.spec);
}

// ---- what is skipped, and why

std::map<std::string, std::string> reasons(const Checkpoint& c) {
  std::map<std::string, std::string> out;
  for (const SkippedTensor& tensor : c.skipped) out[tensor.name] = tensor.reason;
  return out;
}

TEST(Skipped, KvOfBorrowersThatTheFileStillCarries) {
  const Checkpoint c = open_checkpoint(data_path("models/gemma4-e4b-tiny"));
  const auto why = reasons(c);
  EXPECT_EQ(why.size(), 18u);
  for (int layer = 6; layer < 12; ++layer) {
    for (const char* part : {"k_proj", "v_proj", "k_norm"}) {
      const auto it = why.find(fmt::format("model.layers.{}.self_attn.{}.weight", layer, part));
      ASSERT_NE(it, why.end()) << layer << part;
      EXPECT_EQ(it->second,
                fmt::format("k/v of a layer that borrows KV (from layer {})", layer == 11 ? 5 : 4));
    }
  }
}

TEST(Skipped, Towers) {
  std::set<std::string> found;
  for (const char* model : {"gemma4-e2b-mm-tiny", "gemma4-12b-mm-tiny"}) {
    for (const auto& [name, reason] : reasons(open_checkpoint(data_path(std::string("models/") + model))))
      found.insert(reason);
  }
  EXPECT_EQ(found,
            (std::set<std::string>{"vision tower", "vision embedder", "audio tower",
                                   "projection of image embeddings", "projection of audio embeddings"}));
}

TEST(Skipped, CopyOfATiedHeadAndOldRotaryBuffers) {
  const std::vector<std::byte> bytes(1 << 20);
  const Changed folder("llama-tiny", [&](Tensors& t) {
    t["lm_head.weight"] = t.at("model.embed_tokens.weight");
    t["model.layers.0.self_attn.rotary_emb.inv_freq"] = {DType::f32, {8}, std::span(bytes).first(32)};
  });
  const auto why = reasons(open_checkpoint(folder.path()));
  EXPECT_EQ(why.size(), 2u);
  EXPECT_EQ(why.at("lm_head.weight"), "copy of the tied embedding");
  EXPECT_EQ(why.at("model.layers.0.self_attn.rotary_emb.inv_freq"),
            "rotary frequencies are computed from the config");
}

TEST(OpenFolder, ReadsEveryPrefix) {
  const Checkpoint plain = open_checkpoint(data_path("models/gemma4-e2b-tiny"));
  for (const std::string prefix : {"model.", "model.language_model.", "language_model.model.", ""}) {
    const Changed folder("gemma4-e2b-tiny", [&](Tensors& t) {
      Tensors renamed;
      for (auto& [name, view] : t) renamed[prefix + name.substr(6)] = view;
      t = renamed;
    });
    const Checkpoint c = open_checkpoint(folder.path());
    for_each_tensor(plain.spec, [&](const TensorInfo& info) {
      expect_same_bits(to_floats(c.tensors->read(info.slot).view),
                       to_floats(plain.tensors->read(info.slot).view), prefix);
    });
  }
  for (const std::string head : {"lm_head.weight", "language_model.lm_head.weight"}) {
    const Changed folder("llama3-tiny", [&](Tensors& t) {
      const TensorView view = t.at("lm_head.weight");
      t.erase("lm_head.weight");
      t[head] = view;
    });
    EXPECT_NO_THROW(open_checkpoint(folder.path()).tensors->read({TensorKind::output_head, -1})) << head;
  }
}

// ---- consumed exactly

TEST(OpenFolder, NamesEachMissingTensor) {
  for (const std::string model : {"gemma4-e2b-wide", "gemma4-26b-tiny", "gemma3-tiny", "llama3-tiny"}) {
    const Golden golden(data_path("models/" + model + "/model.safetensors"));
    std::map<std::string, HfTensor> all;
    for (const auto& [name, view] : golden.file().tensors) all[name] = {view, "file"};
    const Checkpoint c = open_checkpoint(data_path("models/" + model));
    for (const auto& [name, tensor] : all) {
      std::map<std::string, HfTensor> without = all;
      without.erase(name);
      BoundTensors out(nullptr);
      const std::string expected =
          name == "model.embed_tokens.weight"
              ? "folder: tensor \"embed_tokens.weight\": expected it behind one of the prefixes"
              : fmt::format("folder: tensor \"{}\": expected {} for ", name, shape_text(tensor.view.shape));
      expect_error([&] { bind_hf_tensors(c.spec, c.family, without, "folder", out); }, ErrorCode::data,
                   expected, model);
    }
  }
}

TEST(OpenFolder, NamesMissingUnexpectedMisshapedAndMistypedTensors) {
  const std::string e2b = "gemma4-e2b-tiny";
  const std::vector<std::byte> bytes(1 << 20);
  const TensorView extra{DType::f32, {4, 4}, std::span(bytes).first(64)};
  expect_refused(
      e2b, [](Tensors& t) { t.erase("model.layers.3.layer_scalar"); },
      "tensor \"model.layers.3.layer_scalar\": expected [1] for layers.3.layer_scalar, got no such tensor");
  expect_refused(
      e2b, [](Tensors& t) { t.erase("model.layers.4.self_attn.v_proj.weight"); },
      "tensor \"model.layers.4.self_attn.v_proj.weight\": expected [32, 64] for layers.4.value, got no such "
      "tensor");
  expect_refused(
      e2b, [&](Tensors& t) { t["model.layers.15.mlp.up_proj.weight"] = extra; },
      "model.safetensors: tensor \"model.layers.15.mlp.up_proj.weight\": expected no such tensor in this "
      "model, got "
      "[4, 4] of f32");
  expect_refused(
      e2b, [&](Tensors& t) { t["model.layers.0.self_attn.q_proj.bias"] = extra; },
      "tensor \"model.layers.0.self_attn.q_proj.bias\": expected no such tensor");
  expect_refused(
      "llama3-tiny", [&](Tensors& t) { t["model.vision_tower.x"] = extra; },
      "tensor \"model.vision_tower.x\": expected no");
  // Global layers of this model have no v_proj: one that is stored contradicts the config.
  expect_refused(
      "gemma4-12b-tiny", [&](Tensors& t) { t["model.layers.5.self_attn.v_proj.weight"] = extra; },
      "tensor \"model.layers.5.self_attn.v_proj.weight\": expected no such tensor");
  expect_refused(
      e2b,
      [](Tensors& t) {
        t.at("model.layers.0.mlp.up_proj.weight").shape = {32, 128};
      },
      "model.safetensors: tensor \"model.layers.0.mlp.up_proj.weight\": expected the shape [64, 64], got "
      "[32, 128]");
  expect_refused(
      e2b, [](Tensors& t) { t.at("model.layers.0.layer_scalar").shape = {}; },
      "expected the shape [1], got []");
  expect_refused(
      e2b, [](Tensors& t) { t.at("model.layers.0.mlp.up_proj.weight").dtype = DType::i32; },
      "tensor \"model.layers.0.mlp.up_proj.weight\": expected f32, f16, bf16 or a block format, got i32");
  expect_refused(
      e2b,
      [&](Tensors& t) {
        t["model.norm.weight"] = {DType::f64, {64}, std::span(bytes).first(512)};
      },
      "tensor \"model.norm.weight\": expected f32, f16 or bf16, got f64");
  expect_refused(
      e2b,
      [](Tensors& t) { t["language_model.model.embed_tokens.weight"] = t.at("model.embed_tokens.weight"); },
      "expected one token embedding, got \"model.embed_tokens.weight\" and "
      "\"language_model.model.embed_tokens.weight\"");
  // Double-wide borrowers: a plain width is a wrong shape.
  expect_refused(
      e2b,
      [&](Tensors& t) {
        t["model.layers.12.mlp.up_proj.weight"] = t.at("model.layers.2.mlp.up_proj.weight");
      },
      "tensor \"model.layers.12.mlp.up_proj.weight\": expected the shape [128, 64], got [64, 64]");
}

TEST(OpenFolder, NamesWhatIsWrongWithShards) {
  const auto spoil = [](const std::function<void(const fs::path&)>& f, ErrorCode code,
                        std::string_view part) {
    TempDir dir;
    fs::copy(data_path("models/gemma4-31b-tiny-sharded"), dir.path(), fs::copy_options::recursive);
    f(dir.path());
    expect_error([&] { open_checkpoint(dir.path()); }, code, part);
  };
  const auto edit_index = [](const fs::path& folder, std::string_view from, std::string_view to) {
    const fs::path path = folder / "model.safetensors.index.json";
    std::string text = read_text_file(path);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    write_file_atomically(path, std::as_bytes(std::span(text)));
  };
  spoil([](const fs::path& d) { fs::remove(d / "model-00003-of-00004.safetensors"); }, ErrorCode::not_found,
        "model-00003-of-00004.safetensors");
  spoil([&](const fs::path& d) { edit_index(d, "\"model.norm.weight\"", "\"model.norm.weights\""); },
        ErrorCode::data,
        "model.safetensors.index.json: tensor \"model.norm.weights\": expected it in "
        "\"model-00004-of-00004.safetensors\", got no such "
        "tensor");
  spoil(
      [&](const fs::path& d) {
        edit_index(d, "\"model.norm.weight\": \"model-00004", "\"model.norm.weight\": \"model-00001");
      },
      ErrorCode::data,
      "tensor \"model.norm.weight\": expected it in \"model-00001-of-00004.safetensors\", got it in ");
  spoil(
      [&](const fs::path& d) {
        edit_index(d, "\"model.norm.weight\": \"model-00004-of-00004.safetensors\"",
                   "\"model.layers.0.layer_scalar\": \"model-00001-of-00004.safetensors\"");
      },
      ErrorCode::data, "layer_scalar");
  spoil([](const fs::path& d) { fs::copy(d / "model-00001-of-00004.safetensors", d / "model.safetensors"); },
        ErrorCode::data, "expected model.safetensors or the files of model.safetensors.index.json, got both");
  // a tensor that stands in two shards
  spoil(
      [](const fs::path& d) {
        const Golden first(d / "model-00001-of-00004.safetensors"),
            last(d / "model-00004-of-00004.safetensors");
        Tensors tensors = last.file().tensors;
        tensors["model.embed_tokens.weight"] = first.view("model.embed_tokens.weight");
        write_file_atomically(d / "model-00004-of-00004.safetensors", write_safetensors(tensors));
      },
      ErrorCode::data, "tensor \"model.embed_tokens.weight\": expected it in one file, got it in ");
  // a tensor of a shard that the index does not name
  spoil(
      [](const fs::path& d) {
        const Golden last(d / "model-00004-of-00004.safetensors");
        Tensors tensors = last.file().tensors;
        tensors["surplus"] = last.view("model.norm.weight");
        write_file_atomically(d / "model-00004-of-00004.safetensors", write_safetensors(tensors));
      },
      ErrorCode::data, "expected every tensor of the files, got none called \"surplus\"");
}

TEST(OpenCheckpoint, SaysWhatItWantsInsteadOfWhatItGot) {
  TempDir dir;
  expect_error([&] { open_checkpoint(dir.path() / "nothing"); }, ErrorCode::not_found,
               "expected a model folder, a GGUF file, a packed model or a config.json, got nothing there");
  expect_error([&] { open_checkpoint(dir.path()); }, ErrorCode::not_found,
               "expected config.json; got neither");
  const fs::path text = dir.write("notes.txt", "hello");
  expect_error([&] { open_checkpoint(text); }, ErrorCode::unsupported,
               "expected a model folder, a GGUF file, a packed model or a config.json");
  const fs::path weights = dir.write("model.safetensors", "hello");
  expect_error([&] { open_checkpoint(weights); }, ErrorCode::usage, "expected the folder that holds it");
  TempDir pickled;
  pickled.write("config.json", read_text_file(data_path("models/llama-tiny/config.json")));
  pickled.write("pytorch_model.bin", "x");
  expect_error([&] { open_checkpoint(pickled.path()); }, ErrorCode::not_found,
               "expected model.safetensors or model.safetensors.index.json; pickled weights are not read: "
               "\"pytorch_model.bin\"");
  TempDir with_gguf;
  with_gguf.write("m.gguf", "GGUF");
  expect_error([&] { open_checkpoint(with_gguf.path()); }, ErrorCode::not_found,
               "give the path of the GGUF file itself: \"m.gguf\"");
}

TEST(OpenCheckpoint, ReadsALoneConfig) {
  const Checkpoint c = open_checkpoint(data_path("configs/31b/config.json"));
  EXPECT_EQ(c.format, "config.json only");
  EXPECT_EQ(c.tensors, nullptr);
  EXPECT_EQ(c.file_bytes, 0);
  EXPECT_EQ(c.text.stop_ids, (std::vector<int64_t>{1, 106, 50}));
  EXPECT_EQ(c.text.bos_id, 2);
}

// ---- text assets

TEST(TextAssets, PreferGenerationConfig) {
  const Checkpoint c = open_checkpoint(data_path("models/gemma4-e2b-tiny"));
  EXPECT_EQ(c.text.stop_ids, (std::vector<int64_t>{1, 106, 50}));
  EXPECT_EQ(c.text.eos_id, 1);
  EXPECT_EQ(c.text.bos_id, 2);
  EXPECT_EQ(c.text.gguf, nullptr);
  const Checkpoint llama = open_checkpoint(data_path("models/llama3-tiny"));
  EXPECT_EQ(llama.text.stop_ids, (std::vector<int64_t>{2}));
  EXPECT_EQ(llama.text.pad_id, std::nullopt);
}

TEST(TextAssets, FallBackOnConfig) {
  const Changed folder("gemma4-e2b-tiny", [](Tensors&) {});
  EXPECT_EQ(open_checkpoint(folder.path()).text.stop_ids, (std::vector<int64_t>{1}));
  folder.dir().write("generation_config.json", "{\"eos_token_id\": [1, 400]}");
  expect_error([&] { open_checkpoint(folder.path()); }, ErrorCode::data,
               "generation_config.json: eos_token_id: expected token ids from 0 to 319, got the number 400");
}

TEST(TextAssets, FindTheChatTemplate) {
  const Changed folder("llama-tiny", [](Tensors&) {});
  const auto text = [&] { return open_checkpoint(folder.path()).text; };
  EXPECT_EQ(text().chat_template, std::nullopt);
  EXPECT_TRUE(text().tokenizer_json.empty());
  folder.dir().write("tokenizer.json", "{\"a\": 1}");
  EXPECT_EQ(text().tokenizer_json, "{\"a\": 1}");
  folder.dir().write("tokenizer_config.json", "{\"chat_template\": \"plain\"}");
  EXPECT_EQ(text().chat_template, "plain");
  EXPECT_EQ(text().chat_template_source, "tokenizer_config.json");
  folder.dir().write("tokenizer_config.json",
                     "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"r\"}, {\"name\": \"default\", "
                     "\"template\": \"d\"}]}");
  EXPECT_EQ(text().chat_template, "d");
  EXPECT_EQ(text().chat_template_source, "tokenizer_config.json, the template named default");
  folder.dir().write("tokenizer_config.json",
                     "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"r\"}]}");
  EXPECT_EQ(text().chat_template, std::nullopt);
  EXPECT_EQ(text().chat_template_source, "none is called default in tokenizer_config.json (rag)");
  folder.dir().write("tokenizer_config.json", "{\"chat_template\": 3}");
  expect_error([&] { text(); }, ErrorCode::data,
               "tokenizer_config.json: chat_template: expected a string, got the number 3");
  folder.dir().write("chat_template.jinja", "first of all");
  EXPECT_EQ(text().chat_template, "first of all");
  EXPECT_EQ(text().chat_template_source, "chat_template.jinja");
}

// ---- only headers are read

// A folder of E2B's true size whose data is a hole in the file: reading it would show in time and memory.
TEST(OpenFolder, OpensTenGigabytesInUnderASecond) {
  TempDir dir;
  dir.write("config.json", read_text_file(data_path("configs/e2b/config.json")));
  const ModelSpec spec = open_checkpoint(dir.path() / "config.json").spec;
  std::string header = "{";
  int64_t at = 0;
  for_each_tensor(spec, [&](const TensorInfo& info) {
    const int64_t size = 2 * element_count(info.shape, "test");
    std::string shape = shape_text(info.shape);
    header += fmt::format(
        "{}\"model.language_model.{}\":{{\"dtype\":\"BF16\",\"shape\":{},\"data_offsets\":[{},{}]}}",
        header.size() > 1 ? "," : "", hf_name(info.slot, "gemma4"), shape, at, at + size);
    at += size;
  });
  header += "}";
  const fs::path weights = dir.write("model.safetensors", safetensors_bytes(header, 0));
  fs::resize_file(weights, fs::file_size(weights) + static_cast<uintmax_t>(at));
  const std::clock_t start = std::clock();
  const Checkpoint c = open_checkpoint(dir.path());
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 1.0);
  EXPECT_GT(c.file_bytes, 9'000'000'000);
  EXPECT_EQ(c.dtype_bytes.at("bf16"), at);
}

}  // namespace
}  // namespace lapidary::test
