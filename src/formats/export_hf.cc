#include "formats/export_hf.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "formats/hf_keys.h"
#include "formats/import_hf.h"
#include "formats/rope_forms.h"
#include "formats/spec_difference.h"
#include "spec/json_fields.h"

namespace lapidary {
namespace {

// One JSON object, two blanks a level; doubles exact.
class Object {
 public:
  explicit Object(int depth = 0) : indent_(static_cast<size_t>(depth + 1) * 2, ' ') {}
  void raw(std::string_view key, std::string_view text) {
    body_ += fmt::format("{}\n{}\"{}\": {}", body_.empty() ? "" : ",", indent_, key, text);
  }
  void text(std::string_view key, std::string_view value) { raw(key, fmt::format("\"{}\"", value)); }
  void number(std::string_view key, int64_t value) { raw(key, fmt::format("{}", value)); }
  void number(std::string_view key, double value) { raw(key, json_number(value, key)); }
  void flag(std::string_view key, bool value) { raw(key, value ? "true" : "false"); }
  void id(std::string_view key, std::optional<int64_t> value) {
    raw(key, value ? fmt::format("{}", *value) : "null");
  }
  void ids(std::string_view key, const std::vector<int64_t>& values) {
    raw(key, fmt::format("[{}]", fmt::join(values, ", ")));
  }
  std::string close() const { return fmt::format("{{{}\n{}}}", body_, indent_.substr(2)); }

 private:
  std::string indent_, body_;
};

std::string rope_object(const RopeSpec& rope, int depth) {
  Object out(depth);
  if (rope.kind == RopeKind::llama3) {
    out.number(hf_key::factor, rope.factor);
    out.number(hf_key::high_freq_factor, rope.high_freq_factor);
    out.number(hf_key::low_freq_factor, rope.low_freq_factor);
    out.number(hf_key::original_max_position_embeddings, rope.original_max_position);
  }
  if (rope.kind == RopeKind::proportional)
    out.number(hf_key::partial_rotary_factor, rope.partial_rotary_factor);
  out.number(hf_key::rope_theta, rope.theta);
  out.text(hf_key::rope_type, rope.kind == RopeKind::llama3         ? hf_key::rope_llama3
                              : rope.kind == RopeKind::proportional ? hf_key::rope_proportional
                                                                    : hf_key::rope_default);
  return out.close();
}

class Exporter {
 public:
  Exporter(const ModelSpec& spec, const std::string& family) : spec_(spec), family_(family) {}

  std::string run(const HfTokenIds& ids, const std::string& dtype) {
    const bool gemma4 = family_ == "gemma4";
    const std::string_view type = gemma4 ? "gemma4_text" : family_ == "gemma3" ? "gemma3_text" : "llama";
    const std::string_view class_name = gemma4                ? "Gemma4ForCausalLM"
                                        : family_ == "gemma3" ? "Gemma3ForCausalLM"
                                                              : "LlamaForCausalLM";
    out_.raw("architectures", fmt::format("[\"{}\"]", class_name));
    out_.flag("attention_bias", false);
    out_.number("attention_dropout", 0.0);
    out_.id(hf_key::bos_token_id, ids.bos);
    out_.text(gemma4 ? "dtype" : "torch_dtype", dtype);
    if (ids.stops.size() > 1) {
      out_.ids(hf_key::eos_token_id, ids.stops);
    } else {
      out_.id(hf_key::eos_token_id, ids.eos);
    }
    out_.text(hf_key::model_type, type);
    out_.id(hf_key::pad_token_id, ids.pad);
    write_common();
    if (gemma4) {
      write_gemma4();
    } else if (family_ == "gemma3") {
      write_gemma3();
    } else {
      write_llama();
    }
    return out_.close() + "\n";
  }

 private:
  const LayerSpec& first() const { return spec_.layers.front(); }
  const AttentionSpec& example(bool full) const {
    for (const LayerSpec& layer : spec_.layers) {
      if ((layer.attention->window == 0) == full) return *layer.attention;
    }
    return *first().attention;
  }
  bool any(bool full) const {
    return std::any_of(spec_.layers.begin(), spec_.layers.end(),
                       [&](const LayerSpec& l) { return (l.attention->window == 0) == full; });
  }

  void write_common() {
    out_.number(hf_key::hidden_size, spec_.d_model);
    out_.number(hf_key::intermediate_size, first().ffn->d_ff);
    out_.number(hf_key::max_position_embeddings, spec_.max_position);
    out_.number(hf_key::num_attention_heads, first().attention->n_heads);
    out_.number(hf_key::num_hidden_layers, spec_.n_layers());
    out_.number(hf_key::rms_norm_eps, spec_.norm_eps);
    out_.flag(hf_key::tie_word_embeddings, spec_.tied_head);
    out_.flag("use_cache", true);
    out_.number(hf_key::vocab_size, spec_.vocab_size);
  }

  void write_llama() {
    const AttentionSpec& a = *first().attention;
    out_.number(hf_key::head_dim, a.head_dim);
    out_.text(hf_key::hidden_act,
              first().ffn->activation == Activation::silu ? hf_key::silu : hf_key::gelu_tanh);
    out_.flag("mlp_bias", false);
    out_.number(hf_key::num_key_value_heads, a.n_kv_heads);
    out_.raw(hf_key::rope_parameters, rope_object(a.rope, 1));
  }

  void write_gemma() {
    out_.text(hf_key::hidden_activation, hf_key::gelu_tanh);
    if (spec_.logit_softcap == 0) {
      out_.raw(hf_key::final_logit_softcapping, "null");
    } else {
      out_.number(hf_key::final_logit_softcapping, spec_.logit_softcap);
    }
    std::string types;
    for (const LayerSpec& layer : spec_.layers) {
      types += fmt::format("{}\n    \"{}\"", types.empty() ? "" : ",",
                           layer.attention->window == 0 ? hf_key::full_attention : hf_key::sliding_attention);
    }
    out_.raw(hf_key::layer_types, fmt::format("[{}\n  ]", types));
    if (any(false)) out_.number(hf_key::sliding_window, example(false).window);
    Object ropes(1);
    if (any(true)) ropes.raw(hf_key::full_attention, rope_object(example(true).rope, 2));
    if (any(false)) ropes.raw(hf_key::sliding_attention, rope_object(example(false).rope, 2));
    out_.raw(hf_key::rope_parameters, ropes.close());
  }

  void write_gemma3() {
    const AttentionSpec& a = *first().attention;
    out_.number(hf_key::head_dim, a.head_dim);
    out_.number(hf_key::num_key_value_heads, a.n_kv_heads);
    // The scale is this number to the power of -1/2: whole in every published model.
    const double scalar = 1 / (a.scale * a.scale), whole = std::round(scalar);
    if (1 / std::sqrt(whole) == a.scale) {
      out_.number(hf_key::query_pre_attn_scalar, static_cast<int64_t>(whole));
    } else {
      out_.number(hf_key::query_pre_attn_scalar, scalar);
    }
    write_gemma();
  }

  int64_t first_borrower() const {
    for (int64_t i = 0; i < spec_.n_layers(); ++i) {
      if (!spec_.layers[static_cast<size_t>(i)].owns_kv(i)) return i;
    }
    return spec_.n_layers();
  }

  void write_gemma4() {
    const bool k_eq_v = std::any_of(spec_.layers.begin(), spec_.layers.end(),
                                    [](const LayerSpec& l) { return l.attention->k_eq_v; });
    out_.flag(hf_key::attention_k_eq_v, k_eq_v);
    write_geometry(k_eq_v);
    const int64_t owners = first_borrower();
    out_.number(hf_key::num_kv_shared_layers, spec_.n_layers() - owners);
    out_.flag(hf_key::use_double_wide_mlp,
              owners < spec_.n_layers() && spec_.layers.back().ffn->d_ff == 2 * first().ffn->d_ff);
    out_.number(hf_key::hidden_size_per_layer_input, spec_.ple_dim);
    out_.number(hf_key::vocab_size_per_layer_input, spec_.vocab_size);
    const auto& moe = first().ffn->moe;
    out_.flag(hf_key::enable_moe_block, moe.has_value());
    out_.id(hf_key::num_experts, moe ? std::optional(moe->n_experts) : std::nullopt);
    out_.id(hf_key::top_k_experts, moe ? std::optional(moe->top_k) : std::nullopt);
    out_.id(hf_key::moe_intermediate_size, moe ? std::optional(moe->d_ff) : std::nullopt);
    write_gemma();
  }

  // The released spelling where it can say it; what it cannot say goes layer by layer.
  void write_geometry(bool k_eq_v) {
    const AttentionSpec &full = example(true), &sliding = example(false);
    const auto same_as = [](const AttentionSpec& a) {
      return [&a](const LayerSpec& l) {
        const bool kind = (l.attention->window == 0) == (a.window == 0);
        return !kind || (l.attention->head_dim == a.head_dim && l.attention->n_kv_heads == a.n_kv_heads);
      };
    };
    const auto& layers = spec_.layers;
    const bool uniform = std::all_of(layers.begin(), layers.end(), same_as(full)) &&
                         std::all_of(layers.begin(), layers.end(), same_as(sliding));
    out_.number(hf_key::head_dim, sliding.head_dim);
    out_.number(hf_key::num_key_value_heads, sliding.n_kv_heads);
    if (uniform && (k_eq_v || full.n_kv_heads == sliding.n_kv_heads)) {
      out_.number(hf_key::global_head_dim, full.head_dim);
      out_.id(hf_key::num_global_key_value_heads, k_eq_v ? std::optional(full.n_kv_heads) : std::nullopt);
      return;
    }
    Object table(1);
    const int width = static_cast<int>(std::to_string(spec_.n_layers() - 1).size());
    for (int64_t i = 0; i < spec_.n_layers(); ++i) {
      const AttentionSpec& a = *layers[static_cast<size_t>(i)].attention;
      Object layer(2);
      layer.number(hf_key::head_dim, a.head_dim);
      layer.number(hf_key::num_key_value_heads, a.n_kv_heads);
      table.raw(fmt::format("{:0{}}", i, width), layer.close());
    }
    out_.raw(hf_key::per_layer_config, table.close());
  }

  const ModelSpec& spec_;
  const std::string& family_;
  Object out_;
};

// The spec as far as config.json words it: rotations by rule.
ModelSpec as_hf_words_it(ModelSpec spec) {
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    ensure(layer.attention.has_value() && layer.ffn.has_value(), ErrorCode::unsupported,
           "config.json: layers[{}].{}: expected every layer to have one, got none", i,
           layer.attention ? "ffn" : "attention");
    auto rule = rope_rule(layer.attention->rope, layer.attention->head_dim);
    ensure(rule.has_value(), ErrorCode::unsupported,
           "config.json has no word for this rotation: layers[{}].attention.rope.divisors follow neither the "
           "proportional nor the llama3 rule",
           i);
    layer.attention->rope = std::move(*rule);
  }
  return spec;
}

}  // namespace

std::string export_hf_config(const ModelSpec& model, const std::string& family, const HfTokenIds& ids,
                             const std::string& dtype) {
  const ModelSpec spec = as_hf_words_it(model);
  std::string text = Exporter(spec, family).run(ids, dtype);
  const ModelSpec got = import_hf_config(text, std::string(hf_key::config_file)).spec;
  if (const auto difference = first_difference(spec, got, false)) {
    fail(ErrorCode::unsupported,
         "config.json of a {} model cannot say what this model is: {} is {}, and would be read as {}", family,
         difference->field, difference->wanted, difference->got);
  }
  return text;
}

std::string export_generation_config(const HfTokenIds& ids) {
  Object out;
  if (ids.bos) out.id(hf_key::bos_token_id, ids.bos);
  if (ids.stops.size() > 1) {
    out.ids(hf_key::eos_token_id, ids.stops);
  } else if (ids.eos) {
    out.id(hf_key::eos_token_id, ids.eos);
  }
  if (ids.pad) out.id(hf_key::pad_token_id, ids.pad);
  return out.close() + "\n";
}

}  // namespace lapidary
