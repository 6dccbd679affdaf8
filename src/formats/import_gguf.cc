#include "formats/import_gguf.h"

#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/quote.h"
#include "formats/gguf_keys.h"
#include "formats/import_common.h"

namespace lapidary {
namespace {

// Reads keys of one architecture: gguf_key::attention_head_count is "gemma4.attention.head_count" in the
// file.
class Keys {
 public:
  Keys(const GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {}

  const GgufFile& file() const { return file_; }
  const std::string& architecture() const { return architecture_; }
  std::string full(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }
  std::string path(std::string_view key) const { return fmt::format("{}: {}", file_.name, full(key)); }
  bool has(std::string_view key) const { return file_.has(full(key)); }
  bool is_array(std::string_view key) const { return file_.is_array(full(key)); }
  int64_t integer(std::string_view key) const { return file_.get_int(full(key)); }
  double number(std::string_view key) const { return decimal(file_.get_float(full(key))); }
  int64_t integer(std::string_view key, int64_t otherwise) const {
    return has(key) ? integer(key) : otherwise;
  }
  double number(std::string_view key, double otherwise) const { return has(key) ? number(key) : otherwise; }

  // One number for all layers, or an array with one for each.
  std::vector<int64_t> per_layer(std::string_view key, int64_t n_layers) const {
    if (!is_array(key)) return std::vector<int64_t>(static_cast<size_t>(n_layers), integer(key));
    std::vector<int64_t> out = file_.get_ints(full(key));
    check_length(key, out.size(), n_layers);
    return out;
  }

  std::vector<bool> flags(std::string_view key, int64_t n_layers) const {
    std::vector<bool> out = file_.get_bools(full(key));
    check_length(key, out.size(), n_layers);
    return out;
  }

 private:
  // Files hold 32-bit floats for numbers that were decimal: 9.99999997e-07 says 1e-06.
  static double decimal(double value) {
    const auto narrow = static_cast<float>(value);
    if (!std::isfinite(value) || static_cast<double>(narrow) != value) return value;
    return std::stod(fmt::format("{}", narrow));
  }

  void check_length(std::string_view key, size_t got, int64_t n_layers) const {
    ensure(static_cast<int64_t>(got) == n_layers, ErrorCode::data,
           "{}: expected {} entries (block_count), got {}", path(key), n_layers, got);
  }

  const GgufFile& file_;
  std::string architecture_;
};

// Keys that change what a model computes and that no executor here follows, with the values that say "off".
struct Refused {
  std::string_view key;
  double neutral;
  std::string_view only_for;  // an architecture; empty: all
};

constexpr Refused kRefused[] = {
    {"rope.scaling.factor", 1, ""},
    {"rope.scale_linear", 1, ""},
    {"rope.scaling.attn_factor", 1, ""},
    {"attn_logit_softcapping", 0, ""},
    {"attention.clamp_kqv", 0, ""},
    {"attention.max_alibi_bias", 0, ""},
    {"attention.temperature_scale", 0, ""},
    {"attention.scale", 0, ""},
    {"logit_scale", 1, ""},
    {"embedding_scale", 1, ""},
    {"residual_scale", 1, ""},
    {"pooling_type", 0, ""},
    {"leading_dense_block_count", 0, ""},
    {"expert_shared_count", 0, ""},
    {"nextn_predict_layers", 0, ""},
    {gguf_key::expert_count, 0, "llama"},
    {gguf_key::expert_count, 0, "gemma3"},
    {gguf_key::final_logit_softcapping, 0, "llama"},
    {gguf_key::attention_sliding_window, 0, "llama"},
    {gguf_key::attention_shared_kv_layers, 0, "llama"},
    {gguf_key::attention_shared_kv_layers, 0, "gemma3"},
    {gguf_key::embedding_length_per_layer_input, 0, "llama"},
    {gguf_key::embedding_length_per_layer_input, 0, "gemma3"},
};

void refuse_unsupported(const Keys& k) {
  for (const Refused& refused : kRefused) {
    if (!refused.only_for.empty() && refused.only_for != k.architecture()) continue;
    const double value = k.number(refused.key, refused.neutral);
    ensure(value == refused.neutral, ErrorCode::unsupported,
           "{}: expected {} (nothing else is supported for {}), got {}", k.path(refused.key), refused.neutral,
           k.architecture(), value);
  }
  if (k.has("rope.scaling.type")) {
    const std::string type = k.file().get_string(k.full("rope.scaling.type"));
    ensure(type == "none", ErrorCode::unsupported, "{}: expected none, got {}", k.path("rope.scaling.type"),
           quoted(type));
  }
  if (k.has("attention.causal")) {
    ensure(k.file().get_bool(k.full("attention.causal")), ErrorCode::unsupported,
           "{}: expected true, got false", k.path("attention.causal"));
  }
}

int64_t read_layer_count(const Keys& k) {
  const int64_t n = k.integer(gguf_key::block_count);
  ensure(n >= 1 && n <= kMaxLayers, ErrorCode::data, "{}: expected 1 to {}, got {}",
         k.path(gguf_key::block_count), kMaxLayers, n);
  return n;
}

int64_t read_vocab_size(const Keys& k) {
  if (k.has(gguf_key::vocab_size)) return k.integer(gguf_key::vocab_size);
  ensure(k.file().has(gguf_key::tokens), ErrorCode::data,
         "{}: expected this key or tokenizer.ggml.tokens, got neither", k.path(gguf_key::vocab_size));
  return static_cast<int64_t>(k.file().get_strings(gguf_key::tokens).size());
}

bool has_tensor(const GgufFile& file, std::string_view name) {
  return file.tensors.find(name) != file.tensors.end();
}

ModelSpec read_common(const Keys& k) {
  ModelSpec spec;
  spec.vocab_size = read_vocab_size(k);
  spec.d_model = k.integer(gguf_key::embedding_length);
  spec.max_position = k.integer(gguf_key::context_length);
  spec.norm_eps = k.number(gguf_key::attention_layer_norm_rms_epsilon);
  spec.tied_head = !has_tensor(k.file(), "output.weight");  // no key says it
  return spec;
}

// K, V and the rotated part of a head are equally long in every model of these families; a file that says
// otherwise is not one.
int64_t read_head_dim(const Keys& k, std::string_view suffix, std::optional<int64_t> otherwise) {
  const std::string key = fmt::format("{}{}", gguf_key::attention_key_length, suffix);
  const int64_t head_dim = otherwise && !k.has(key) ? *otherwise : k.integer(key);
  for (const std::string_view other : {gguf_key::attention_value_length, gguf_key::rope_dimension_count}) {
    const std::string name = fmt::format("{}{}", other, suffix);
    const int64_t value = k.integer(name, head_dim);
    ensure(value == head_dim, ErrorCode::unsupported, "{}: expected that of key_length ({}), got {}",
           k.path(name), head_dim, value);
  }
  return head_dim;
}

double inverse_root(const std::string& path, int64_t value) {
  ensure(value >= 1, ErrorCode::data, "{}: expected at least 1, got {}", path, value);
  return 1 / std::sqrt(static_cast<double>(value));
}

// Divisors of the rotary frequencies; no key says that there are any.
std::vector<float> read_rope_divisors(const Keys& k, int64_t head_dim) {
  const auto it = k.file().tensors.find(gguf_key::rope_freqs);
  ensure(it != k.file().tensors.end(), ErrorCode::data,
         "{}: tensor \"rope_freqs.weight\": expected [{}] (which pairs of a global head turn), got no such "
         "tensor",
         k.file().name, head_dim / 2);
  const TensorView& view = it->second;
  ensure(view.shape == Shape{head_dim / 2} && is_float(view.dtype), ErrorCode::data,
         "{}: tensor \"rope_freqs.weight\": expected [{}] of f32, f16 or bf16, got {} of {}", k.file().name,
         head_dim / 2, shape_text(view.shape), dtype_name(view.dtype));
  return to_floats(view);
}

RopeSpec plain_rope(double theta) {
  RopeSpec rope;
  rope.theta = theta;
  return rope;
}

RopeSpec divided_rope(double theta, std::vector<float> divisors) {
  RopeSpec rope = plain_rope(theta);
  rope.kind = RopeKind::divisors;
  rope.divisors = std::move(divisors);
  return rope;
}

// ---- llama

ModelSpec read_llama(const Keys& k) {
  ModelSpec spec = read_common(k);
  const int64_t n_layers = read_layer_count(k);
  const auto heads = k.per_layer(gguf_key::attention_head_count, n_layers);
  const auto kv_heads = k.has(gguf_key::attention_head_count_kv)
                            ? k.per_layer(gguf_key::attention_head_count_kv, n_layers)
                            : heads;
  const auto d_ff = k.per_layer(gguf_key::feed_forward_length, n_layers);
  ensure(heads[0] >= 1, ErrorCode::data, "{}: expected at least 1, got {}",
         k.path(gguf_key::attention_head_count), heads[0]);
  ensure(k.has(gguf_key::attention_key_length) || spec.d_model % heads[0] == 0, ErrorCode::data,
         "{}: expected a divisor of embedding_length ({}), got {}", k.path(gguf_key::attention_head_count),
         spec.d_model, heads[0]);
  const int64_t head_dim = read_head_dim(k, "", spec.d_model / heads[0]);
  RopeSpec rope =
      plain_rope(k.number(gguf_key::rope_freq_base, 10000));  // absent: what the architecture began with
  if (has_tensor(k.file(), gguf_key::rope_freqs))
    rope = divided_rope(rope.theta, read_rope_divisors(k, head_dim));
  for (int64_t i = 0; i < n_layers; ++i) {
    const size_t at = static_cast<size_t>(i);
    LayerSpec layer;
    AttentionSpec& a = layer.attention.emplace();
    a.n_heads = heads[at];
    a.n_kv_heads = kv_heads[at];
    a.head_dim = head_dim;
    a.rope = rope;
    a.scale = inverse_root(k.path(gguf_key::attention_key_length), head_dim);
    a.kv_owner = i;
    layer.ffn = FfnSpec{d_ff[at], Activation::silu, {}};
    spec.layers.push_back(std::move(layer));
  }
  return spec;
}

// ---- gemma3

// true for a layer without a window
std::vector<bool> read_gemma3_kinds(const Keys& k, int64_t n_layers) {
  const std::string_view key = gguf_key::attention_sliding_window_pattern;
  std::vector<bool> full(static_cast<size_t>(n_layers));
  if (k.is_array(key)) {
    full = k.flags(key, n_layers);
    full.flip();
    return full;
  }
  const int64_t period = k.integer(key, 6);  // files of this architecture have no such key, and mean 6
  ensure(period >= 1, ErrorCode::data, "{}: expected at least 1, got {}", k.path(key), period);
  for (int64_t i = 0; i < n_layers; ++i) full[static_cast<size_t>(i)] = (i + 1) % period == 0;
  return full;
}

int64_t read_window(const Keys& k) {
  const int64_t window = k.integer(gguf_key::attention_sliding_window);
  ensure(window >= 1, ErrorCode::data, "{}: expected at least 1 (there are sliding layers), got {}",
         k.path(gguf_key::attention_sliding_window), window);
  return window;
}

ModelSpec read_gemma3(const Keys& k) {
  ModelSpec spec = read_common(k);
  const int64_t n_layers = read_layer_count(k);
  // The attention scale is not in the file: head_dim^-1/2 for all released sizes but 27B, which cannot be
  // told for certain.
  ensure(n_layers != 62, ErrorCode::unsupported,
         "{}: expected a Gemma 3 whose attention scale is head_dim^-1/2, got 62 layers (27B has another, and "
         "the file does not say)",
         k.path(gguf_key::block_count));
  const std::vector<bool> full = read_gemma3_kinds(k, n_layers);
  const auto heads = k.per_layer(gguf_key::attention_head_count, n_layers);
  const auto kv_heads = k.per_layer(gguf_key::attention_head_count_kv, n_layers);
  const auto d_ff = k.per_layer(gguf_key::feed_forward_length, n_layers);
  const int64_t head_dim = read_head_dim(k, "", {}), window = read_window(k);
  const RopeSpec global = plain_rope(k.number(gguf_key::rope_freq_base)),
                 local = plain_rope(k.number(gguf_key::rope_freq_base_swa, 10000));
  spec.embed_scale = std::sqrt(static_cast<double>(spec.d_model));
  spec.logit_softcap = k.number(gguf_key::final_logit_softcapping, 0);
  for (int64_t i = 0; i < n_layers; ++i) {
    const size_t at = static_cast<size_t>(i);
    LayerSpec layer;
    AttentionSpec& a = layer.attention.emplace();
    a.n_heads = heads[at];
    a.n_kv_heads = kv_heads[at];
    a.head_dim = head_dim;
    a.window = full[at] ? 0 : window;
    a.rope = full[at] ? global : local;
    a.scale = inverse_root(k.path(gguf_key::attention_key_length), head_dim);
    a.q_norm = a.k_norm = true;
    a.kv_owner = i;
    layer.ffn = FfnSpec{d_ff[at], Activation::gelu_tanh, {}};
    layer.post_attention_norm = layer.post_ffn_norm = true;
    spec.layers.push_back(std::move(layer));
  }
  return spec;
}

// ---- gemma4

// Whether global layers make V from the raw K. The container holds this fact only as the absence of attn_v,
// so it must hold for every global owner or for none; in sliding layers attn_v is required in any case.
bool read_k_eq_v(const GgufFile& file, const std::vector<bool>& full, int64_t owners) {
  std::optional<int64_t> with, without;
  for (int64_t i = 0; i < owners; ++i) {
    if (!full[static_cast<size_t>(i)]) continue;
    const bool has_v = has_tensor(file, fmt::format("blk.{}.attn_v.weight", i)) ||
                       has_tensor(file, fmt::format("blk.{}.attn_qkv.weight", i));
    (has_v ? with : without) = i;
  }
  ensure(!with || !without, ErrorCode::data,
         "{}: attn_v: expected in every global layer or in none, got it in layer {} and not in layer {}",
         file.name, with.value_or(0), without.value_or(0));
  return without.has_value();
}

struct Gemma4Widths {
  std::vector<int64_t> heads, kv_heads, d_ff, expert_d_ff;
  int64_t n_experts = 0, top_k = 0;
  int64_t global_head_dim = 0, sliding_head_dim = 0;
};

Gemma4Widths read_gemma4_widths(const Keys& k, int64_t n_layers) {
  Gemma4Widths w;
  w.heads = k.per_layer(gguf_key::attention_head_count, n_layers);
  w.kv_heads = k.per_layer(gguf_key::attention_head_count_kv, n_layers);
  w.d_ff = k.per_layer(gguf_key::feed_forward_length, n_layers);
  w.global_head_dim = read_head_dim(k, "", {});
  w.sliding_head_dim = read_head_dim(k, gguf_key::sliding_suffix, {});
  w.n_experts = k.integer(gguf_key::expert_count, 0);
  if (w.n_experts == 0) return w;
  w.top_k = k.integer(gguf_key::expert_used_count);
  w.expert_d_ff = k.per_layer(gguf_key::expert_feed_forward_length, n_layers);
  return w;
}

LayerSpec gemma4_layer(const Gemma4Widths& w, size_t at, bool full, int64_t window, const RopeSpec& rope) {
  LayerSpec layer;
  AttentionSpec& a = layer.attention.emplace();
  a.n_heads = w.heads[at];
  a.n_kv_heads = w.kv_heads[at];
  a.head_dim = full ? w.global_head_dim : w.sliding_head_dim;
  a.window = full ? 0 : window;
  a.rope = rope;
  a.scale = 1.0;
  a.q_norm = a.k_norm = a.v_norm = true;
  layer.ffn = FfnSpec{w.d_ff[at], Activation::gelu_tanh, {}};
  if (w.n_experts != 0) layer.ffn->moe = MoeSpec{w.n_experts, w.top_k, w.expert_d_ff[at]};
  layer.post_attention_norm = layer.post_ffn_norm = layer.layer_scalar = true;
  return layer;
}

ModelSpec read_gemma4(const Keys& k) {
  ModelSpec spec = read_common(k);
  const int64_t n_layers = read_layer_count(k);
  std::vector<bool> full = k.flags(gguf_key::attention_sliding_window_pattern, n_layers);
  full.flip();
  const int64_t shared = k.integer(gguf_key::attention_shared_kv_layers), window = read_window(k);
  ensure(shared >= 0 && shared < n_layers, ErrorCode::data, "{}: expected 0 to {}, got {}",
         k.path(gguf_key::attention_shared_kv_layers), n_layers - 1, shared);
  const int64_t owners = n_layers - shared;
  const Gemma4Widths widths = read_gemma4_widths(k, n_layers);
  const RopeSpec global =
      divided_rope(k.number(gguf_key::rope_freq_base), read_rope_divisors(k, widths.global_head_dim));
  const RopeSpec local = plain_rope(k.number(gguf_key::rope_freq_base_swa));
  const bool k_eq_v = read_k_eq_v(k.file(), full, owners);
  spec.embed_scale = std::sqrt(static_cast<double>(spec.d_model));
  spec.logit_softcap = k.number(gguf_key::final_logit_softcapping, 0);
  spec.ple_dim = k.integer(gguf_key::embedding_length_per_layer_input);
  for (int64_t i = 0; i < n_layers; ++i) {
    const size_t at = static_cast<size_t>(i);
    LayerSpec layer = gemma4_layer(widths, at, full[at], window, full[at] ? global : local);
    layer.attention->k_eq_v = k_eq_v && full[at];
    layer.attention->kv_owner =
        last_owner_of_kind(full, owners, i, k.path(gguf_key::attention_shared_kv_layers));
    layer.ple = spec.ple_dim > 0;
    spec.layers.push_back(std::move(layer));
  }
  return spec;
}

}  // namespace

GgufModel import_gguf_spec(const GgufFile& file) {
  GgufModel out;
  out.family = file.get_string(gguf_key::architecture);
  const bool known = out.family == "gemma4" || out.family == "gemma3" || out.family == "llama";
  ensure(known, ErrorCode::unsupported, "{}: general.architecture: expected gemma4, gemma3 or llama, got {}",
         file.name, quoted(out.family));
  const Keys keys(file, out.family);
  refuse_unsupported(keys);
  try {
    out.spec = out.family == "gemma4"   ? read_gemma4(keys)
               : out.family == "gemma3" ? read_gemma3(keys)
                                        : read_llama(keys);
    out.spec.validate();
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(file.name)) throw;
    fail(error.code(), "{}: {}", file.name, error.what());
  }
  return out;
}

}  // namespace lapidary
