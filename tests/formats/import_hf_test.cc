#include "formats/import_hf.h"

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <cmath>
#include <functional>

#include "formats/mapped_file.h"
#include "support/compare.h"
#include "support/golden.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

HfConfig import_file(const std::string& model, const std::string& file = "config.json") {
  return import_hf_config(read_text_file(data_path("models/" + model + "/" + file)), file);
}

// The config of a golden model, changed.
std::string changed(const std::string& model, const std::string& file,
                    const std::function<void(json::object&)>& change) {
  json::value root = read_json(data_path("models/" + model + "/" + file));
  change(root.as_object());
  return json::serialize(root);
}

void expect_refused(const std::string& model, const std::string& file,
                    const std::function<void(json::object&)>& change, ErrorCode code, std::string_view part) {
  const std::string text = changed(model, file, change);
  expect_error([&] { import_hf_config(text, "config.json"); }, code, part, model);
}

HfConfig import_changed(const std::string& model, const std::string& file,
                        const std::function<void(json::object&)>& change) {
  return import_hf_config(changed(model, file, change), "config.json");
}

const AttentionSpec& attention(const ModelSpec& spec, size_t layer) {
  return *spec.layers[layer].attention;
}

class BothSpellings : public testing::TestWithParam<std::string> {};

TEST_P(BothSpellings, MeanTheSame) {
  const HfConfig newer = import_file(GetParam()), older = import_file(GetParam(), "config.published.json");
  EXPECT_EQ(newer.spec, older.spec);
  EXPECT_EQ(newer.family, older.family);
  EXPECT_EQ(newer.bos_id, older.bos_id);
  EXPECT_EQ(newer.eos_id, older.eos_id);
  EXPECT_EQ(spec_from_json(spec_to_json(newer.spec)), newer.spec);
}

INSTANTIATE_TEST_SUITE_P(Goldens, BothSpellings,
                         testing::Values("gemma3-tiny", "gemma4-12b-mm-tiny", "gemma4-12b-tiny",
                                         "gemma4-12b-wide", "gemma4-26b-tiny", "gemma4-31b-tiny",
                                         "gemma4-e2b-mm-tiny", "gemma4-e2b-tiny", "gemma4-e2b-wide",
                                         "gemma4-e4b-tiny", "llama-tiny", "llama3-tiny"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ImportHf, ReadsE2bTiny) {
  const HfConfig config = import_file("gemma4-e2b-tiny");
  const ModelSpec& s = config.spec;
  EXPECT_EQ(config.family, "gemma4");
  EXPECT_EQ(config.bos_id, 2);
  EXPECT_EQ(config.eos_id, 1);
  EXPECT_EQ(config.pad_id, 0);
  EXPECT_EQ(s.vocab_size, 320);
  EXPECT_EQ(s.d_model, 64);
  EXPECT_EQ(s.max_position, 512);
  EXPECT_EQ(s.norm_eps, 1e-6);
  EXPECT_EQ(s.embed_scale, 8.0);
  EXPECT_EQ(s.logit_softcap, 30.0);
  EXPECT_TRUE(s.tied_head);
  EXPECT_EQ(s.ple_dim, 16);
  ASSERT_EQ(s.n_layers(), 15);
  const std::vector<int64_t> owners = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 8, 8, 8, 9};
  for (size_t i = 0; i < 15; ++i) {
    const bool global = i % 5 == 4;
    const AttentionSpec& a = attention(s, i);
    EXPECT_EQ(a.n_heads, 6) << i;
    EXPECT_EQ(a.n_kv_heads, 1) << i;
    EXPECT_EQ(a.head_dim, global ? 32 : 16) << i;
    EXPECT_EQ(a.window, global ? 0 : 8) << i;
    EXPECT_EQ(a.rope.kind, global ? RopeKind::proportional : RopeKind::plain) << i;
    EXPECT_EQ(a.rope.theta, global ? 1e6 : 1e4) << i;
    EXPECT_EQ(a.rope.partial_rotary_factor, global ? 0.25 : 1.0) << i;
    EXPECT_EQ(a.scale, 1.0) << i;
    EXPECT_TRUE(a.q_norm && a.k_norm && a.v_norm) << i;
    EXPECT_FALSE(a.k_eq_v) << i;
    EXPECT_EQ(a.kv_owner, owners[i]) << i;
    const LayerSpec& layer = s.layers[i];
    EXPECT_EQ(layer.ffn->d_ff, i < 10 ? 64 : 128) << i;
    EXPECT_EQ(layer.ffn->activation, Activation::gelu_tanh) << i;
    EXPECT_FALSE(layer.ffn->moe.has_value()) << i;
    EXPECT_TRUE(layer.post_attention_norm && layer.post_ffn_norm && layer.ple && layer.layer_scalar) << i;
  }
}

TEST(ImportHf, ReadsKeyAsValueAndExperts) {
  const ModelSpec s = import_file("gemma4-26b-tiny").spec;
  for (size_t i = 0; i < 6; ++i) {
    const bool global = i % 3 == 2;
    EXPECT_EQ(attention(s, i).k_eq_v, global) << i;
    EXPECT_EQ(attention(s, i).n_kv_heads, global ? 2 : 4) << i;
    EXPECT_EQ(s.layers[i].ffn->d_ff, 32) << i;
    EXPECT_EQ(s.layers[i].ffn->moe, (MoeSpec{16, 4, 32})) << i;
    EXPECT_FALSE(s.layers[i].ple) << i;
  }
  EXPECT_EQ(s.ple_dim, 0);
}

TEST(ImportHf, ReadsGemma3) {
  const HfConfig config = import_file("gemma3-tiny");
  const ModelSpec& s = config.spec;
  EXPECT_EQ(config.family, "gemma3");
  EXPECT_EQ(s.logit_softcap, 0);
  EXPECT_EQ(s.embed_scale, 8.0);
  for (size_t i = 0; i < 8; ++i) {
    const AttentionSpec& a = attention(s, i);
    EXPECT_EQ(a.window, i == 5 ? 0 : 8) << i;
    EXPECT_EQ(a.rope.theta, i == 5 ? 1e6 : 1e4) << i;
    EXPECT_EQ(a.scale, 1 / std::sqrt(12.0)) << i;
    EXPECT_TRUE(a.q_norm && a.k_norm && !a.v_norm) << i;
    EXPECT_EQ(a.kv_owner, static_cast<int64_t>(i));
    EXPECT_TRUE(s.layers[i].post_attention_norm && s.layers[i].post_ffn_norm) << i;
    EXPECT_FALSE(s.layers[i].layer_scalar) << i;
  }
}

TEST(ImportHf, ReadsLlama) {
  const ModelSpec tied = import_file("llama-tiny").spec, untied = import_file("llama3-tiny").spec;
  EXPECT_TRUE(tied.tied_head);
  EXPECT_FALSE(untied.tied_head);
  EXPECT_EQ(tied.embed_scale, 1);
  EXPECT_EQ(tied.norm_eps, 1e-5);
  EXPECT_EQ(attention(tied, 0).rope, (RopeSpec{.kind = RopeKind::plain, .theta = 1e5}));
  EXPECT_EQ(attention(untied, 3).rope, (RopeSpec{.kind = RopeKind::llama3,
                                                 .theta = 5e5,
                                                 .factor = 8,
                                                 .low_freq_factor = 1,
                                                 .high_freq_factor = 4,
                                                 .original_max_position = 64}));
  EXPECT_EQ(attention(tied, 0).scale, 0.25);
  EXPECT_FALSE(attention(tied, 0).q_norm || attention(tied, 0).k_norm || attention(tied, 0).v_norm);
  EXPECT_EQ(tied.layers[0].ffn->activation, Activation::silu);
  EXPECT_FALSE(tied.layers[0].post_attention_norm || tied.layers[0].post_ffn_norm ||
               tied.layers[0].layer_scalar);
}

TEST(ImportHf, ReadsEveryModelTypeAlone) {
  const ModelSpec spec = import_file("gemma4-12b-tiny").spec;
  for (const char* type : {"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"}) {
    EXPECT_EQ(import_changed("gemma4-12b-tiny", "config.json", [&](auto& c) { c["model_type"] = type; }).spec,
              spec)
        << type;
  }
}

TEST(ImportHf, ReadsTextConfigUnderItsWrapper) {
  const json::value whole = read_json(data_path("models/gemma4-12b-mm-tiny/config.json"));
  const std::string inner = json::serialize(whole.as_object().at("text_config"));
  EXPECT_EQ(import_hf_config(inner, "inner").spec, import_file("gemma4-12b-mm-tiny").spec);
  const auto wrapped = [](const std::string& model, const char* type) {
    json::object out;
    out["model_type"] = type;
    out["text_config"] = read_json(data_path("models/" + model + "/config.published.json"));
    return import_hf_config(json::serialize(out), "wrapped");
  };
  EXPECT_EQ(wrapped("gemma3-tiny", "gemma3").spec, import_file("gemma3-tiny").spec);
  EXPECT_EQ(wrapped("gemma4-e2b-tiny", "gemma4").spec, import_file("gemma4-e2b-tiny").spec);
}

TEST(ImportHf, IgnoresWhatDoesNotChangeTheComputation) {
  const auto add = [](json::object& c) {
    c["a_key_of_tomorrow"] = json::object{{"x", 1}};
    c["attention_dropout"] = 0.1;
    c["use_cache"] = false;
    c["cache_implementation"] = "hybrid";
  };
  EXPECT_EQ(import_changed("gemma4-e2b-tiny", "config.json", add).spec, import_file("gemma4-e2b-tiny").spec);
  EXPECT_EQ(import_changed("llama-tiny", "config.json", add).spec, import_file("llama-tiny").spec);
}

// ---- defaults that the files document

TEST(ImportHf, DerivesGemma3KindsFromTheirPeriod) {
  const auto kinds = [](const std::function<void(json::object&)>& change) {
    std::string out;
    for (const LayerSpec& layer :
         import_changed("gemma3-tiny", "config.published.json", change).spec.layers) {
      out += layer.attention->window == 0 ? 'F' : 'S';
    }
    return out;
  };
  EXPECT_EQ(kinds([](auto& c) { c.erase("layer_types"); }), "SSSSSFSS");
  EXPECT_EQ(kinds([](auto& c) { c.erase("layer_types"), c.erase("_sliding_window_pattern"); }), "SSSSSFSS");
  EXPECT_EQ(kinds([](auto& c) { c.erase("layer_types"), c["sliding_window_pattern"] = 3; }), "SSFSSFSS");
}

TEST(ImportHf, FillsWhatOldLlamaFilesLeaveOut) {
  const HfConfig config = import_changed("llama-tiny", "config.published.json", [](auto& c) {
    for (const char* key :
         {"head_dim", "num_key_value_heads", "rope_theta", "rope_scaling", "tie_word_embeddings"})
      c.erase(key);
    c["pad_token_id"] = -1;
  });
  EXPECT_EQ(attention(config.spec, 0).head_dim, 16);
  EXPECT_EQ(attention(config.spec, 0).n_kv_heads, 6);
  EXPECT_EQ(attention(config.spec, 0).rope.theta, 10000);
  EXPECT_FALSE(config.spec.tied_head);
  EXPECT_EQ(config.pad_id, std::nullopt);
}

TEST(ImportHf, ReadsStopIdsFromAList) {
  const HfConfig config = import_changed("gemma4-e2b-tiny", "config.json", [](auto& c) {
    c["eos_token_id"] = json::array{1, 106, 50};
  });
  EXPECT_EQ(config.eos_id, 1);
  EXPECT_EQ(config.stop_ids, (std::vector<int64_t>{1, 106, 50}));
  expect_refused(
      "gemma4-e2b-tiny", "config.json",
      [](auto& c) {
        c["eos_token_id"] = json::array{1, 320};
      },
      ErrorCode::data, "config.json: eos_token_id: expected token ids from 0 to 319, got the number 320");
  expect_refused(
      "gemma4-e2b-tiny", "config.json", [](auto& c) { c["bos_token_id"] = -2; }, ErrorCode::data,
      "config.json: bos_token_id: expected 0 to 319, got -2");
}

// The reference reads the number of global KV heads only where global layers have no v_proj.
TEST(ImportHf, LeavesGlobalKvHeadsAloneWithoutKeyAsValue) {
  const ModelSpec s = import_changed("gemma4-e2b-tiny", "config.published.json", [](auto& c) {
                        c["num_global_key_value_heads"] = 3;
                      }).spec;
  EXPECT_EQ(attention(s, 4).n_kv_heads, 1);
}

TEST(ImportHf, ReadsOlderRopeKeysOfGemma4) {
  const ModelSpec s =
      import_changed("gemma4-e2b-tiny", "config.published.json", [](auto& c) {
        c.erase("rope_parameters");
        c["rope_theta"] = 1000000;
        c["rope_local_base_freq"] = 10000;
        c["rope_scaling"] = json::object{{"type", "proportional"}, {"partial_rotary_factor", 0.25}};
      }).spec;
  EXPECT_EQ(s, import_file("gemma4-e2b-tiny").spec);
  expect_refused(
      "gemma4-e2b-tiny", "config.json",
      [](auto& c) {
        c.erase("rope_parameters");
        c["rope_theta"] = 1000000;
        c["rope_local_base_freq"] = 10000;
      },
      ErrorCode::data,
      "config.json: expected rope_parameters, or rope_scaling beside rope_theta, got neither");
}

// ---- what is refused, by name

TEST(ImportHf, RefusesUnknownNames) {
  const auto refuse = [](const std::function<void(json::object&)>& change, std::string_view part) {
    expect_refused("gemma4-e2b-tiny", "config.json", change, ErrorCode::unsupported, part);
  };
  refuse([](auto& c) { c["model_type"] = "gemma5"; },
         "config.json: model_type: expected gemma4, gemma4_text, gemma4_unified, gemma4_unified_text, "
         "gemma3, gemma3_text or llama, "
         "got \"gemma5\"");
  refuse([](auto& c) { c["hidden_activation"] = "relu"; },
         "config.json: hidden_activation: expected gelu_pytorch_tanh, got \"relu\"");
  refuse([](auto& c) { c["layer_types"].as_array()[3] = "chunked_attention"; },
         "config.json: layer_types[3]: expected \"sliding_attention\" or \"full_attention\", got the string "
         "\"chunked_attention\"");
  refuse([](auto& c) { c["rope_parameters"].at("sliding_attention").as_object()["rope_type"] = "yarn"; },
         "config.json: rope_parameters.sliding_attention.rope_type: expected default, proportional or "
         "llama3, got \"yarn\"");
  refuse([](auto& c) { c["rope_parameters"].at("full_attention").as_object()["mscale"] = 2; },
         "config.json: rope_parameters.full_attention.mscale: expected a known field, got an unknown one");
  refuse([](auto& c) { c["rope_parameters"].as_object()["chunked_attention"] = json::object{}; },
         "config.json: rope_parameters.chunked_attention: expected a known field, got an unknown one");
  refuse([](auto& c) { c["rope_parameters"].at("full_attention").as_object()["factor"] = 8; },
         "config.json: rope_parameters.full_attention.factor: expected 1 (rope type proportional), got 8");
  refuse([](auto& c) { c["per_layer_config"].at("04").as_object()["window"] = 3; },
         "config.json: per_layer_config.04.window: expected a known field, got an unknown one");
  refuse(
      [](auto& c) { c["use_bidirectional_attention"] = "all"; },
      "config.json: use_bidirectional_attention: expected null, false or \"vision\", got the string \"all\"");
  refuse([](auto& c) { c["vocab_size_per_layer_input"] = 256; },
         "config.json: vocab_size_per_layer_input: expected vocab_size (320), got 256");
}

TEST(ImportHf, RefusesRopeTypesOfLlama) {
  for (const char* type : {"linear", "dynamic", "yarn", "longrope"}) {
    expect_refused(
        "llama-tiny", "config.published.json",
        [&](auto& c) {
          c["rope_scaling"] = json::object{{"type", type}, {"factor", 2.0}};
        },
        ErrorCode::unsupported,
        fmt::format(
            "config.json: rope_scaling.rope_type: expected default, proportional or llama3, got \"{}\"",
            type));
  }
  expect_refused(
      "llama3-tiny", "config.json",
      [](auto& c) { c["rope_parameters"].as_object()["attention_factor"] = 1.5; }, ErrorCode::unsupported,
      "config.json: rope_parameters.attention_factor: expected a known field");
  expect_refused(
      "llama-tiny", "config.json", [](auto& c) { c["hidden_act"] = "gelu"; }, ErrorCode::unsupported,
      "config.json: hidden_act: expected gelu_pytorch_tanh or silu, got \"gelu\"");
  expect_refused(
      "llama-tiny", "config.json",
      [](auto& c) {
        c["layer_types"] =
            json::array{"full_attention", "sliding_attention", "full_attention", "full_attention"};
      },
      ErrorCode::unsupported, "config.json: layer_types: expected full_attention everywhere for llama");
}

TEST(ImportHf, RefusesSettingsThatNobodyFollows) {
  struct Setting {
    const char* model;
    const char* key;
    json::value value;
  };
  const Setting settings[] = {
      {"gemma4-e2b-tiny", "attention_bias", true},
      {"gemma4-e2b-tiny", "attn_logit_softcapping", 50.0},
      {"gemma4-e2b-tiny", "quantization_config", json::object{{"bits", 4}}},
      {"gemma3-tiny", "attn_logit_softcapping", 50.0},
      {"gemma3-tiny", "use_bidirectional_attention", true},
      {"gemma3-tiny", "num_kv_shared_layers", 2},
      {"llama-tiny", "mlp_bias", true},
      {"llama-tiny", "sliding_window", 4096},
      {"llama-tiny", "attention_sinks", 4},
      {"llama-tiny", "partial_rotary_factor", 0.5},
      {"llama-tiny", "rope_interleaved", true},
      {"llama-tiny", "num_local_experts", 8},
      {"llama-tiny", "residual_multiplier", 0.22},
      {"llama-tiny", "final_logit_softcapping", 30.0},
      {"llama-tiny", "quantization_config", json::object{{"quant_method", "awq"}}},
  };
  for (const Setting& setting : settings) {
    expect_refused(
        setting.model, "config.json", [&](auto& c) { c[setting.key] = setting.value; },
        ErrorCode::unsupported, fmt::format("config.json: {}: expected ", setting.key));
  }
  expect_refused(
      "gemma4-12b-mm-tiny", "config.json",
      [](auto& c) { c["text_config"].as_object()["attention_bias"] = true; }, ErrorCode::unsupported,
      "config.json: text_config.attention_bias: expected false or null");
}

// ---- contradictions

TEST(ImportHf, NamesContradictions) {
  const auto refuse = [](const std::string& model, const std::string& file,
                         const std::function<void(json::object&)>& change, std::string_view part) {
    expect_refused(model, file, change, ErrorCode::data, part);
  };
  const std::string e2b = "gemma4-e2b-tiny", newer = "config.json", older = "config.published.json";
  refuse(
      e2b, newer, [](auto& c) { c["layer_types"].as_array().pop_back(); },
      "config.json: layer_types: expected 15 entries (num_hidden_layers), got 14");
  refuse(
      e2b, newer, [](auto& c) { c["num_hidden_layers"] = 14; },
      "config.json: layer_types: expected 14 entries (num_hidden_layers), got 15");
  refuse(
      e2b, newer, [](auto& c) { c["num_hidden_layers"] = 1000000000000; },
      "config.json: num_hidden_layers: expected 1 to 2048, got 1000000000000");
  refuse(
      e2b, newer, [](auto& c) { c["sliding_window"] = 0; },
      "config.json: sliding_window: expected at least 1 (there are sliding layers), got 0");
  refuse(
      e2b, newer, [](auto& c) { c["sliding_window"] = nullptr; },
      "config.json: sliding_window: expected an integer of 64 bits, got null");
  refuse(
      e2b, newer, [](auto& c) { c["num_key_value_heads"] = 4; },
      "config.json: spec: layers[0].attention.n_kv_heads: expected a divisor of n_heads (6), got 4");
  refuse(
      e2b, newer, [](auto& c) { c["head_dim"] = 15; },
      "config.json: spec: layers[0].attention.head_dim: expected an even number");
  refuse(
      e2b, newer, [](auto& c) { c["num_kv_shared_layers"] = 15; },
      "config.json: num_kv_shared_layers: expected 0 to 14, got 15");
  refuse(
      e2b, newer, [](auto& c) { c["num_kv_shared_layers"] = 11; },
      "config.json: num_kv_shared_layers: expected a layer of the same kind among the first 4 for layer 4 to "
      "borrow from, got none");
  refuse(
      e2b, newer,
      [](auto& c) {
        c["per_layer_config"].as_object()["15"] = json::object{{"head_dim", 32}};
      },
      "config.json: per_layer_config: expected layer numbers from 0 to 14, got \"15\"");
  refuse(
      e2b, newer,
      [](auto& c) {
        c["per_layer_config"].as_object()["4"] = json::object{{"head_dim", 32}};
      },
      "config.json: per_layer_config: expected each layer once, got layer 4 twice");
  refuse(
      e2b, newer, [](auto& c) { c["per_layer_config"].as_object()["x"] = json::object{}; },
      "config.json: per_layer_config: expected layer numbers from 0 to 14, got \"x\"");
  refuse(
      e2b, newer, [](auto& c) { c["per_layer_config"].as_object().erase("14"); },
      "config.json: spec: layers[14].attention.head_dim: expected that of the owner, layer 9 (32), got 16");
  refuse(
      e2b, newer, [](auto& c) { c["global_head_dim"] = 64; },
      "config.json: per_layer_config: layer 4: expected head_dim 64 and 1 KV heads (global_head_dim and its "
      "kin), got 32 and 1");
  refuse(
      e2b, older, [](auto& c) { c.erase("global_head_dim"); },
      "config.json: global_head_dim: expected a value, got no such field");
  refuse(
      e2b, newer, [](auto& c) { c.erase("final_logit_softcapping"); },
      "config.json: final_logit_softcapping: expected a value, got no such field");
  refuse(
      e2b, newer, [](auto& c) { c["rope_theta"] = 5000; },
      "config.json: rope_theta: expected the theta of rope_parameters (1000000), got 5000");
  refuse(
      e2b, newer, [](auto& c) { c["rope_parameters"].as_object().erase("sliding_attention"); },
      "config.json: rope_parameters.sliding_attention: expected a value, got no such field");
  refuse(
      "gemma4-26b-tiny", newer, [](auto& c) { c["top_k_experts"] = 17; },
      "config.json: spec: layers[0].ffn.moe.top_k: expected 1 to n_experts (16), got 17");
  refuse(
      "gemma4-26b-tiny", newer, [](auto& c) { c["num_experts"] = nullptr; },
      "config.json: num_experts: expected an integer of 64 bits, got null");
  refuse(
      "gemma4-12b-mm-tiny", newer, [](auto& c) { c["tie_word_embeddings"] = false; },
      "config.json: text_config.tie_word_embeddings: expected the same as outside (false), got true");
  refuse(
      "gemma4-12b-mm-tiny", newer,
      [](auto& c) { c["text_config"].as_object()["model_type"] = "gemma3_text"; },
      "config.json: text_config.model_type: expected a type of the family gemma4, got \"gemma3_text\"");
  refuse(
      "gemma3-tiny", newer, [](auto& c) { c["query_pre_attn_scalar"] = 0; },
      "config.json: query_pre_attn_scalar: expected a finite number above 0, got 0");
  refuse(
      "llama-tiny", newer, [](auto& c) { c["num_attention_heads"] = 0; },
      "config.json: num_attention_heads: expected at least 1, got 0");
  refuse(
      "llama-tiny", newer, [](auto& c) { c["num_attention_heads"] = 7, c.erase("head_dim"); },
      "config.json: num_attention_heads: expected a divisor of hidden_size (96), got 7");
  refuse(
      "llama3-tiny", newer, [](auto& c) { c["rope_parameters"].as_object().erase("factor"); },
      "config.json: rope_parameters.factor: expected a value, got no such field");
  refuse(
      "llama-tiny", newer, [](auto& c) { c["vocab_size"] = 0; },
      "config.json: spec: vocab_size: expected 1 to 16777216, got 0");
}

TEST(ImportHf, NamesEachFieldThatIsMissing) {
  for (const char* key : {"vocab_size", "hidden_size", "max_position_embeddings", "rms_norm_eps",
                          "num_hidden_layers", "num_attention_heads", "intermediate_size", "model_type"}) {
    for (const char* model : {"gemma4-e2b-tiny", "gemma3-tiny", "llama-tiny"}) {
      expect_refused(
          model, "config.json", [&](auto& c) { c.erase(key); }, ErrorCode::data,
          fmt::format("config.json: {}: expected a value, got no such field", key));
    }
  }
}

TEST(ImportHf, RefusesWhatIsNoObject) {
  expect_error([] { import_hf_config("[]", "config.json"); }, ErrorCode::data,
               "config.json: expected an object, got an array of 0");
  expect_error([] { import_hf_config("{", "config.json"); }, ErrorCode::data,
               "config.json: line 1, column 2: expected valid JSON");
}

}  // namespace
}  // namespace lapidary::test
