#include "spec/model_spec.h"

#include <cmath>

#include "base/error.h"
#include "base/tensor.h"
#include "spec/tensor_table.h"

namespace lapidary {
namespace {

// Bounds far above any model, low enough that the product of any three, times bytes of an element, stays
// within int64.
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxModelWidth = int64_t{1} << 18;
constexpr int64_t kMaxHeads = int64_t{1} << 12;
constexpr int64_t kMaxHeadDim = int64_t{1} << 14;
constexpr int64_t kMaxFfnWidth = int64_t{1} << 22;
constexpr int64_t kMaxExperts = int64_t{1} << 13;
constexpr int64_t kMaxPleDim = int64_t{1} << 14;
constexpr int64_t kMaxPosition = int64_t{1} << 32;
constexpr int64_t kMaxParameters = int64_t{1} << 55;

void check_size(const std::string& field, int64_t value, int64_t most) {
  ensure(value >= 1 && value <= most, ErrorCode::data, "{}: expected 1 to {}, got {}", field, most, value);
}

void check_finite(const std::string& field, double value) {
  ensure(std::isfinite(value), ErrorCode::data, "{}: expected a finite number, got {}", field, value);
}

void check_positive(const std::string& field, double value) {
  ensure(std::isfinite(value) && value > 0, ErrorCode::data, "{}: expected a finite number above 0, got {}",
         field, value);
}

// A flag that promises a tensor of a sublayer that is not there.
void check_absent(const std::string& field, bool flag, std::string_view why) {
  ensure(!flag, ErrorCode::data, "{}: expected false ({}), got true", field, why);
}

void check_divisors(const std::string& at, const RopeSpec& rope, int64_t head_dim) {
  const int64_t expected = rope.kind == RopeKind::divisors ? head_dim / 2 : 0;
  const int64_t got = static_cast<int64_t>(rope.divisors.size());
  ensure(got == expected, ErrorCode::data, "{}.divisors: expected {} numbers (kind {}, head_dim {}), got {}",
         at, expected, rope_kind_name(rope.kind), head_dim, got);
  for (size_t i = 0; i < rope.divisors.size(); ++i) {
    check_positive(fmt::format("{}.divisors[{}]", at, i), static_cast<double>(rope.divisors[i]));
  }
}

void check_rope(const std::string& at, const RopeSpec& rope, int64_t head_dim) {
  check_positive(at + ".theta", rope.theta);
  const double part = rope.partial_rotary_factor;
  ensure(part > 0 && part <= 1, ErrorCode::data,
         "{}.partial_rotary_factor: expected above 0 and at most 1, got {}", at, part);
  check_positive(at + ".factor", rope.factor);
  check_positive(at + ".low_freq_factor", rope.low_freq_factor);
  check_finite(at + ".high_freq_factor", rope.high_freq_factor);
  if (rope.kind == RopeKind::llama3) {
    ensure(rope.high_freq_factor > rope.low_freq_factor, ErrorCode::data,
           "{}.high_freq_factor: expected above low_freq_factor ({}), got {}", at, rope.low_freq_factor,
           rope.high_freq_factor);
    check_size(at + ".original_max_position", rope.original_max_position, kMaxPosition);
  }
  check_divisors(at, rope, head_dim);
}

void check_attention(const std::string& at, const AttentionSpec& a) {
  check_size(at + ".n_heads", a.n_heads, kMaxHeads);
  check_size(at + ".n_kv_heads", a.n_kv_heads, kMaxHeads);
  ensure(a.n_heads % a.n_kv_heads == 0, ErrorCode::data,
         "{}.n_kv_heads: expected a divisor of n_heads ({}), got {}", at, a.n_heads, a.n_kv_heads);
  check_size(at + ".head_dim", a.head_dim, kMaxHeadDim);
  ensure(a.head_dim % 2 == 0, ErrorCode::data, "{}.head_dim: expected an even number, got {}", at,
         a.head_dim);
  ensure(a.window >= 0 && a.window <= kMaxPosition, ErrorCode::data, "{}.window: expected 0 to {}, got {}",
         at, kMaxPosition, a.window);
  check_positive(at + ".scale", a.scale);
  check_rope(at + ".rope", a.rope, a.head_dim);
}

// A borrower reads what the owner stored: keys already rotated, heads of the owner's shape, positions within
// the owner's window.
void check_borrower(const std::string& at, const ModelSpec& spec, int64_t index) {
  const AttentionSpec& a = *spec.layers[static_cast<size_t>(index)].attention;
  if (a.kv_owner == index) return;
  ensure(a.kv_owner >= 0 && a.kv_owner < index, ErrorCode::data,
         "{}.kv_owner: expected this layer ({}) or an earlier one, got {}", at, index, a.kv_owner);
  const LayerSpec& donor = spec.layers[static_cast<size_t>(a.kv_owner)];
  ensure(donor.owns_kv(a.kv_owner), ErrorCode::data,
         "{}.kv_owner: expected a layer that owns its K/V, got {}, which {}", at, a.kv_owner,
         donor.attention ? fmt::format("borrows from {}", donor.attention->kv_owner) : "has no attention");
  const AttentionSpec& b = *donor.attention;
  const auto same = [&](std::string_view field, int64_t expected, int64_t got) {
    ensure(expected == got, ErrorCode::data, "{}.{}: expected that of the owner, layer {} ({}), got {}", at,
           field, a.kv_owner, expected, got);
  };
  same("n_kv_heads", b.n_kv_heads, a.n_kv_heads);
  same("head_dim", b.head_dim, a.head_dim);
  ensure(a.rope == b.rope, ErrorCode::data, "{}.rope: expected that of the owner, layer {}, got another", at,
         a.kv_owner);
  ensure(b.window == 0 || (a.window != 0 && a.window <= b.window), ErrorCode::data,
         "{}.window: expected 1 to that of the owner, layer {} ({}), got {}", at, a.kv_owner, b.window,
         a.window);
}

void check_ffn(const std::string& at, const FfnSpec& ffn) {
  check_size(at + ".d_ff", ffn.d_ff, kMaxFfnWidth);
  ensure(!activation_name(ffn.activation).empty(), ErrorCode::data,
         "{}.activation: expected a known one, got number {}", at, static_cast<int>(ffn.activation));
  if (!ffn.moe) return;
  const MoeSpec& moe = *ffn.moe;
  check_size(at + ".moe.n_experts", moe.n_experts, kMaxExperts);
  check_size(at + ".moe.d_ff", moe.d_ff, kMaxFfnWidth);
  ensure(moe.top_k >= 1 && moe.top_k <= moe.n_experts, ErrorCode::data,
         "{}.moe.top_k: expected 1 to n_experts ({}), got {}", at, moe.n_experts, moe.top_k);
}

void check_layer(const ModelSpec& spec, int64_t index) {
  const LayerSpec& layer = spec.layers[static_cast<size_t>(index)];
  const std::string at = fmt::format("spec: layers[{}]", index);
  if (layer.attention) {
    check_attention(at + ".attention", *layer.attention);
    check_borrower(at + ".attention", spec, index);
  } else {
    check_absent(at + ".post_attention_norm", layer.post_attention_norm, "the layer has no attention");
  }
  if (layer.ffn) {
    check_ffn(at + ".ffn", *layer.ffn);
  } else {
    check_absent(at + ".post_ffn_norm", layer.post_ffn_norm, "the layer has no FFN");
  }
  if (spec.ple_dim == 0) check_absent(at + ".ple", layer.ple, "ple_dim is 0");
}

void check_total(const ModelSpec& spec) {
  int64_t total = 0;
  for_each_tensor(spec, [&](const TensorInfo& info) {
    const int64_t count = element_count(info.shape, slot_name(info.slot));
    ensure(count <= kMaxParameters - total, ErrorCode::data,
           "spec: expected at most {} parameters, got more at {}", kMaxParameters, slot_name(info.slot));
    total += count;
  });
}

}  // namespace

void ModelSpec::validate() const {
  check_size("spec: vocab_size", vocab_size, kMaxVocab);
  check_size("spec: d_model", d_model, kMaxModelWidth);
  check_size("spec: max_position", max_position, kMaxPosition);
  check_size("spec: number of layers", n_layers(), kMaxLayers);
  ensure(ple_dim >= 0 && ple_dim <= kMaxPleDim, ErrorCode::data, "spec: ple_dim: expected 0 to {}, got {}",
         kMaxPleDim, ple_dim);
  ensure(std::isfinite(norm_eps) && norm_eps >= 0, ErrorCode::data,
         "spec: norm_eps: expected a finite number of at least 0, got {}", norm_eps);
  check_positive("spec: embed_scale", embed_scale);
  ensure(std::isfinite(logit_softcap) && logit_softcap >= 0, ErrorCode::data,
         "spec: logit_softcap: expected a finite number of at least 0 (0: none), got {}", logit_softcap);
  for (int64_t i = 0; i < n_layers(); ++i) check_layer(*this, i);
  bool ple_used = false;
  for (const LayerSpec& layer : layers) ple_used = ple_used || layer.ple;
  ensure(ple_dim == 0 || ple_used, ErrorCode::data,
         "spec: ple_dim: expected 0 (no layer takes a per-layer embedding), got {}", ple_dim);
  check_total(*this);
}

std::string_view activation_name(Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh: return "gelu_tanh";
    case Activation::silu: return "silu";
  }
  return {};
}

std::string_view rope_kind_name(RopeKind kind) {
  switch (kind) {
    case RopeKind::plain: return "plain";
    case RopeKind::proportional: return "proportional";
    case RopeKind::llama3: return "llama3";
    case RopeKind::divisors: return "divisors";
  }
  return {};
}

}  // namespace lapidary
