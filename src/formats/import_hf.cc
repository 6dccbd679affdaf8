#include "formats/import_hf.h"

#include <cmath>

#include "base/error.h"
#include "base/quote.h"
#include "formats/hf_keys.h"
#include "formats/hf_rope.h"
#include "formats/import_common.h"
#include "spec/json_fields.h"

namespace lapidary {
namespace {

namespace json = boost::json;

constexpr std::string_view kKnownTypes =
    "gemma4, gemma4_text, gemma4_unified, gemma4_unified_text, gemma3, gemma3_text or llama";

std::string family_of(const std::string& model_type, const std::string& path) {
  if (model_type == "llama") return "llama";
  if (model_type == "gemma3" || model_type == "gemma3_text") return "gemma3";
  for (const std::string_view known : {"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"}) {
    if (model_type == known) return "gemma4";
  }
  fail(ErrorCode::unsupported, "{}: expected {}, got {}", path, kKnownTypes, quoted(model_type));
}

// Settings that change what a model computes and that no executor here follows. Null, false and `neutral` say
// that they are off.
struct Refused {
  std::string_view key;
  std::optional<double> neutral;
  std::string_view only_for;  // a family; empty: all
};

constexpr Refused kRefused[] = {
    {"attention_bias", {}, ""},
    {"mlp_bias", {}, ""},
    {"attn_logit_softcapping", 0, ""},
    {"attention_sinks", 0, ""},
    {"use_sinks", 0, ""},
    {"quantization_config", {}, ""},
    {"clip_qkv", {}, ""},
    {"qk_layernorm", {}, ""},
    {"use_qk_norm", {}, ""},
    {"alibi", {}, ""},
    {"no_rope_layers", {}, ""},
    {"partial_rotary_factor", 1, ""},
    {"rotary_pct", 1, ""},
    {"rope_interleaved", {}, ""},
    {"attention_multiplier", {}, ""},
    {"embedding_multiplier", 1, ""},
    {"residual_multiplier", 1, ""},
    {"logits_scaling", 1, ""},
    {"logit_scale", 1, ""},
    {"num_local_experts", 0, ""},
    {"attention_chunk_size", {}, ""},
    {"altup_num_inputs", {}, ""},
    {"laurel_rank", {}, ""},
    {"final_logit_softcapping", 0, "llama"},
    {"sliding_window", 0, "llama"},
    {"use_sliding_window", 0, "llama"},
    {"num_experts", 0, "llama"},
    {"text_config", {}, "llama"},
    {"num_kv_shared_layers", 0, "llama"},
    {"hidden_size_per_layer_input", 0, "llama"},
    {"num_experts", 0, "gemma3"},
    {"enable_moe_block", 0, "gemma3"},
    {"num_kv_shared_layers", 0, "gemma3"},
    {"hidden_size_per_layer_input", 0, "gemma3"},
};

void refuse_unsupported(const JsonFields& config, std::string_view family) {
  for (const Refused& refused : kRefused) {
    if (!refused.only_for.empty() && refused.only_for != family) continue;
    const json::value* value = config.object().if_contains(refused.key);
    if (value == nullptr || value->is_null() || (value->is_bool() && !value->get_bool())) continue;
    const bool off = refused.neutral && value->is_number() && value->to_number<double>() == *refused.neutral;
    ensure(off, ErrorCode::unsupported, "{}: expected {} (nothing else is supported for {}), got {}",
           config.path(refused.key), refused.neutral == 1 ? "1 or null" : "false or null", family,
           describe_json(*value));
  }
}

// "vision" lets image tokens see each other both ways: text is causal all the same.
void check_causal(const JsonFields& config, std::string_view family) {
  const json::value* value = config.object().if_contains("use_bidirectional_attention");
  if (value == nullptr || value->is_null() || (value->is_bool() && !value->get_bool())) return;
  const bool vision = family == "gemma4" && value->is_string() && value->get_string() == "vision";
  ensure(vision, ErrorCode::unsupported, "{}: expected null, false{}, got {}",
         config.path("use_bidirectional_attention"), family == "gemma4" ? " or \"vision\"" : "",
         describe_json(*value));
}

Activation read_activation(JsonFields& config, bool gemma) {
  // Gemma's own key is hidden_activation; hidden_act, where it also stands, is not what the reference reads.
  const std::string_view key =
      gemma && config.has(hf_key::hidden_activation) ? hf_key::hidden_activation : hf_key::hidden_act;
  const std::string name = config.get_string(key);
  if (name == hf_key::gelu_tanh) return Activation::gelu_tanh;
  if (name == hf_key::silu && !gemma) return Activation::silu;
  fail(ErrorCode::unsupported, "{}: expected gelu_pytorch_tanh{}, got {}", config.path(key),
       gemma ? "" : " or silu", quoted(name));
}

int64_t read_layer_count(JsonFields& config) {
  const int64_t n = config.get_int(hf_key::num_hidden_layers);
  ensure(n >= 1 && n <= kMaxLayers, ErrorCode::data, "{}: expected 1 to {}, got {}",
         config.path(hf_key::num_hidden_layers), kMaxLayers, n);
  return n;
}

bool read_tied(JsonFields& top, JsonFields& text, bool otherwise) {
  const auto inner = text.find_bool(hf_key::tie_word_embeddings),
             outer = top.find_bool(hf_key::tie_word_embeddings);
  ensure(!inner || !outer || *inner == *outer, ErrorCode::data,
         "{}: expected the same as outside ({}), got {}", text.path("tie_word_embeddings"),
         outer.value_or(false), inner.value_or(false));
  return inner ? *inner : outer.value_or(otherwise);
}

// true for a full-attention layer
std::vector<bool> read_layer_types(JsonFields& config, int64_t n_layers) {
  const json::array& types = config.get_array(hf_key::layer_types);
  ensure(static_cast<int64_t>(types.size()) == n_layers, ErrorCode::data,
         "{}: expected {} entries (num_hidden_layers), got {}", config.path("layer_types"), n_layers,
         types.size());
  std::vector<bool> full;
  for (const json::value& type : types) {
    const bool is_full = type.is_string() && type.get_string() == hf_key::full_attention;
    const bool is_sliding = type.is_string() && type.get_string() == hf_key::sliding_attention;
    ensure(is_full || is_sliding, ErrorCode::unsupported,
           "{}[{}]: expected \"sliding_attention\" or \"full_attention\", got {}", config.path("layer_types"),
           full.size(), describe_json(type));
    full.push_back(is_full);
  }
  return full;
}

// Gemma 3 files from before layer_types: every n-th layer is global; n was 6 in all that were released.
std::vector<bool> read_gemma3_types(JsonFields& config, int64_t n_layers) {
  if (config.has(hf_key::layer_types)) return read_layer_types(config, n_layers);
  const std::string_view key =
      config.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const int64_t period = config.find_int(key).value_or(6);
  ensure(period >= 1, ErrorCode::data, "{}: expected at least 1, got {}", config.path(key), period);
  std::vector<bool> full;
  for (int64_t i = 0; i < n_layers; ++i) full.push_back((i + 1) % period == 0);
  return full;
}

bool any(const std::vector<bool>& flags, bool value) {
  for (const bool flag : flags) {
    if (flag == value) return true;
  }
  return false;
}

int64_t read_window(JsonFields& config, const std::vector<bool>& full) {
  if (!any(full, false)) return 0;
  const int64_t window = config.get_int(hf_key::sliding_window);
  ensure(window >= 1, ErrorCode::data, "{}: expected at least 1 (there are sliding layers), got {}",
         config.path(hf_key::sliding_window), window);
  return window;
}

ModelSpec read_common(JsonFields& config) {
  ModelSpec spec;
  spec.vocab_size = config.get_int(hf_key::vocab_size);
  spec.d_model = config.get_int(hf_key::hidden_size);
  spec.max_position = config.get_int(hf_key::max_position_embeddings);
  spec.norm_eps = config.get_double(hf_key::rms_norm_eps);
  return spec;
}

double square_root(const JsonFields& config, std::string_view key, int64_t value) {
  ensure(value >= 1, ErrorCode::data, "{}: expected at least 1, got {}", config.path(key), value);
  return std::sqrt(static_cast<double>(value));
}

// ---- Llama

ModelSpec read_llama(JsonFields& c) {
  ModelSpec spec = read_common(c);
  const int64_t n_layers = read_layer_count(c);
  LayerSpec layer;
  AttentionSpec& a = layer.attention.emplace();
  a.n_heads = c.get_int(hf_key::num_attention_heads);
  ensure(a.n_heads >= 1, ErrorCode::data, "{}: expected at least 1, got {}", c.path("num_attention_heads"),
         a.n_heads);
  a.n_kv_heads =
      c.find_int(hf_key::num_key_value_heads).value_or(a.n_heads);  // absent: one for each query head
  ensure(c.has("head_dim") || spec.d_model % a.n_heads == 0, ErrorCode::data,
         "{}: expected a divisor of hidden_size ({}), got {}", c.path("num_attention_heads"), spec.d_model,
         a.n_heads);
  a.head_dim = c.find_int(hf_key::head_dim).value_or(spec.d_model / a.n_heads);
  a.scale = 1 / square_root(c, hf_key::head_dim, a.head_dim);
  a.rope = read_hf_ropes(c, {.theta_optional = true}).full;
  if (c.has(hf_key::layer_types)) {
    ensure(!any(read_layer_types(c, n_layers), false), ErrorCode::unsupported,
           "{}: expected full_attention everywhere for llama, got sliding_attention", c.path("layer_types"));
  }
  FfnSpec& f = layer.ffn.emplace();
  f.d_ff = c.get_int(hf_key::intermediate_size);
  f.activation = read_activation(c, false);
  for (int64_t i = 0; i < n_layers; ++i) {
    a.kv_owner = i;
    spec.layers.push_back(layer);
  }
  return spec;
}

// ---- Gemma 3

ModelSpec read_gemma3(JsonFields& c) {
  ModelSpec spec = read_common(c);
  const int64_t n_layers = read_layer_count(c);
  const std::vector<bool> full = read_gemma3_types(c, n_layers);
  const int64_t window = read_window(c, full);
  const HfRopes ropes =
      read_hf_ropes(c, {.by_kind = true, .need_full = any(full, true), .need_sliding = any(full, false)});
  spec.embed_scale = square_root(c, hf_key::hidden_size, spec.d_model);
  spec.logit_softcap = c.find_double(hf_key::final_logit_softcapping).value_or(0);
  const double scalar = c.get_double(hf_key::query_pre_attn_scalar);
  ensure(std::isfinite(scalar) && scalar > 0, ErrorCode::data, "{}: expected a finite number above 0, got {}",
         c.path(hf_key::query_pre_attn_scalar), scalar);
  LayerSpec layer;
  AttentionSpec& a = layer.attention.emplace();
  a.n_heads = c.get_int(hf_key::num_attention_heads);
  a.n_kv_heads = c.get_int(hf_key::num_key_value_heads);
  a.head_dim = c.get_int(hf_key::head_dim);
  a.scale = 1 / std::sqrt(scalar);
  a.q_norm = a.k_norm = true;
  layer.ffn = FfnSpec{c.get_int(hf_key::intermediate_size), read_activation(c, true), {}};
  layer.post_attention_norm = layer.post_ffn_norm = true;
  for (int64_t i = 0; i < n_layers; ++i) {
    const bool is_full = full[static_cast<size_t>(i)];
    a.window = is_full ? 0 : window;
    a.rope = is_full ? ropes.full : ropes.sliding;
    a.kv_owner = i;
    spec.layers.push_back(layer);
  }
  return spec;
}

// ---- Gemma 4

struct Geometry {
  int64_t head_dim, n_kv_heads;
  bool operator==(const Geometry&) const = default;
};

// The released spelling: one geometry for sliding layers, one for global ones.
Geometry released_geometry(JsonFields& c, bool full, bool k_eq_v) {
  Geometry g{c.get_int(hf_key::head_dim), c.get_int(hf_key::num_key_value_heads)};
  if (!full) return g;
  g.head_dim = c.get_int(hf_key::global_head_dim);
  // The reference reads the number of global K/V heads only where global layers have no v_proj.
  if (k_eq_v) g.n_kv_heads = c.find_int(hf_key::num_global_key_value_heads).value_or(g.n_kv_heads);
  return g;
}

// transformers 5: {"05": {"head_dim": 512, "num_key_value_heads": 1}, ...}; what a layer does not name is the
// model's.
std::vector<Geometry> per_layer_geometry(JsonFields& c, int64_t n_layers) {
  const Geometry usual{c.get_int(hf_key::head_dim), c.get_int(hf_key::num_key_value_heads)};
  std::vector<Geometry> out(static_cast<size_t>(n_layers), usual);
  std::vector<bool> named(out.size());
  JsonFields table = c.get_object(hf_key::per_layer_config);
  for (const auto& member : table.object()) {
    const std::string key(member.key().data(), member.key().size());
    const bool digits =
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    const int64_t index = digits ? std::stoll(key) : -1;
    ensure(digits && index < n_layers, ErrorCode::data, "{}: expected layer numbers from 0 to {}, got {}",
           table.where(), n_layers - 1, quoted(key));
    const size_t at = static_cast<size_t>(index);
    ensure(!named[at], ErrorCode::data, "{}: expected each layer once, got layer {} twice", table.where(),
           index);
    named[at] = true;
    JsonFields layer = table.get_object(key);
    out[at].head_dim = layer.find_int(hf_key::head_dim).value_or(usual.head_dim);
    out[at].n_kv_heads = layer.find_int(hf_key::num_key_value_heads).value_or(usual.n_kv_heads);
    layer.refuse_unknown(ErrorCode::unsupported);
  }
  return out;
}

std::vector<Geometry> read_geometry(JsonFields& c, const std::vector<bool>& full, bool k_eq_v) {
  const bool newer = c.has(hf_key::per_layer_config), older = c.has(hf_key::global_head_dim);
  std::vector<Geometry> out;
  if (newer) out = per_layer_geometry(c, static_cast<int64_t>(full.size()));
  for (size_t i = 0; i < full.size(); ++i) {
    if (newer && !older) break;
    const Geometry g = released_geometry(c, full[i], k_eq_v);
    if (!newer) out.push_back(g);
    ensure(out[i] == g, ErrorCode::data,
           "{}: layer {}: expected head_dim {} and {} KV heads (global_head_dim and its kin), got {} and {}",
           c.path(hf_key::per_layer_config), i, g.head_dim, g.n_kv_heads, out[i].head_dim, out[i].n_kv_heads);
  }
  return out;
}

int64_t read_shared_layers(JsonFields& c, int64_t n_layers) {
  const int64_t shared = c.find_int(hf_key::num_kv_shared_layers).value_or(0);
  ensure(shared >= 0 && shared < n_layers, ErrorCode::data, "{}: expected 0 to {}, got {}",
         c.path(hf_key::num_kv_shared_layers), n_layers - 1, shared);
  return shared;
}

std::optional<MoeSpec> read_moe(JsonFields& c) {
  if (!c.find_bool(hf_key::enable_moe_block).value_or(false)) return std::nullopt;
  return MoeSpec{c.get_int(hf_key::num_experts), c.get_int(hf_key::top_k_experts),
                 c.get_int(hf_key::moe_intermediate_size)};
}

int64_t read_ple_dim(JsonFields& c, int64_t vocab_size) {
  const int64_t dim = c.find_int(hf_key::hidden_size_per_layer_input).value_or(0);
  const int64_t rows = c.find_int(hf_key::vocab_size_per_layer_input).value_or(vocab_size);
  ensure(dim == 0 || rows == vocab_size, ErrorCode::unsupported, "{}: expected vocab_size ({}), got {}",
         c.path(hf_key::vocab_size_per_layer_input), vocab_size, rows);
  return dim;
}

AttentionSpec gemma4_attention(int64_t n_heads, const Geometry& g, int64_t window, const RopeSpec& rope) {
  AttentionSpec a;
  a.n_heads = n_heads;
  a.n_kv_heads = g.n_kv_heads;
  a.head_dim = g.head_dim;
  a.window = window;
  a.rope = rope;
  a.scale = 1.0;
  a.q_norm = a.k_norm = a.v_norm = true;
  return a;
}

ModelSpec read_gemma4(JsonFields& c) {
  ModelSpec spec = read_common(c);
  const int64_t n_layers = read_layer_count(c);
  const std::vector<bool> full = read_layer_types(c, n_layers);
  const bool k_eq_v = c.find_bool(hf_key::attention_k_eq_v).value_or(false);
  const bool double_wide = c.find_bool(hf_key::use_double_wide_mlp).value_or(false);
  const int64_t window = read_window(c, full);
  const std::vector<Geometry> geometry = read_geometry(c, full, k_eq_v);
  const HfRopes ropes = read_hf_ropes(c, {.by_kind = true,
                                          .need_full = any(full, true),
                                          .need_sliding = any(full, false),
                                          .scaling_required = true});
  const int64_t n_heads = c.get_int(hf_key::num_attention_heads), d_ff = c.get_int(hf_key::intermediate_size);
  const int64_t owners = n_layers - read_shared_layers(c, n_layers);
  c.get(
      hf_key::final_logit_softcapping);  // null says that there is none; a file without the key says nothing
  spec.logit_softcap = c.find_double(hf_key::final_logit_softcapping).value_or(0);
  spec.embed_scale = square_root(c, hf_key::hidden_size, spec.d_model);
  spec.ple_dim = read_ple_dim(c, spec.vocab_size);
  const FfnSpec ffn{d_ff, read_activation(c, true), read_moe(c)};
  for (int64_t i = 0; i < n_layers; ++i) {
    const size_t at = static_cast<size_t>(i);
    LayerSpec layer;
    layer.attention =
        gemma4_attention(n_heads, geometry[at], full[at] ? 0 : window, full[at] ? ropes.full : ropes.sliding);
    layer.attention->k_eq_v = k_eq_v && full[at];
    layer.attention->kv_owner = last_owner_of_kind(full, owners, i, c.path(hf_key::num_kv_shared_layers));
    layer.ffn = ffn;
    if (double_wide && i >= owners) layer.ffn->d_ff = checked_double(d_ff, c.path(hf_key::intermediate_size));
    layer.post_attention_norm = layer.post_ffn_norm = layer.layer_scalar = true;
    layer.ple = spec.ple_dim > 0;
    spec.layers.push_back(std::move(layer));
  }
  return spec;
}

// ---- token ids

std::optional<int64_t> read_id(JsonFields& top, JsonFields& text, std::string_view key, int64_t vocab_size) {
  JsonFields& from = top.has(key) ? top : text;
  const auto id = from.find_int(key);
  if (!id) return std::nullopt;
  if (key == hf_key::pad_token_id && *id == -1) return std::nullopt;  // how older Llama files say "none"
  ensure(*id >= 0 && *id < vocab_size, ErrorCode::data, "{}: expected 0 to {}, got {}", from.path(key),
         vocab_size - 1, *id);
  return id;
}

void read_ids(JsonFields& top, JsonFields& text, HfConfig& out) {
  const int64_t v = out.spec.vocab_size;
  out.bos_id = read_id(top, text, hf_key::bos_token_id, v);
  out.pad_id = read_id(top, text, hf_key::pad_token_id, v);
  JsonFields& from = top.has(hf_key::eos_token_id) ? top : text;
  if (!from.has(hf_key::eos_token_id)) return;
  if (!from.get(hf_key::eos_token_id).is_array()) {
    out.eos_id = read_id(top, text, hf_key::eos_token_id, v);
    return;
  }
  out.stop_ids = read_token_ids(from, hf_key::eos_token_id, v);
  if (!out.stop_ids.empty()) out.eos_id = out.stop_ids.front();
}

}  // namespace

HfConfig import_hf_config(std::string_view text, const std::string& name) {
  const json::value root = parse_json(text, name);
  JsonFields top(root, name);
  HfConfig out;
  out.family = family_of(top.get_string(hf_key::model_type), top.path(hf_key::model_type));
  const bool nested = out.family != "llama" && top.has("text_config");
  JsonFields config = nested ? top.get_object("text_config") : top;
  if (nested && config.has(hf_key::model_type)) {
    const std::string inner =
        family_of(config.get_string(hf_key::model_type), config.path(hf_key::model_type));
    ensure(inner == out.family, ErrorCode::data, "{}: expected a type of the family {}, got {}",
           config.path(hf_key::model_type), out.family, quoted(config.get_string(hf_key::model_type)));
  }
  refuse_unsupported(config, out.family);
  if (nested) refuse_unsupported(top, out.family);
  check_causal(config, out.family);
  try {
    out.spec = out.family == "llama"    ? read_llama(config)
               : out.family == "gemma3" ? read_gemma3(config)
                                        : read_gemma4(config);
    out.spec.tied_head = read_tied(top, config, out.family != "llama");
    out.spec.validate();
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(name)) throw;
    fail(error.code(), "{}: {}", name, error.what());
  }
  read_ids(top, config, out);
  return out;
}

}  // namespace lapidary
