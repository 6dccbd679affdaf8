// ModelSpec: a model as data, one entry per layer. Layers may differ in everything; family names never reach
// it. Importers normalise (a Gemma 3 norm becomes 1 + w, GGUF's permuted llama rows are put back), so
// executors read one meaning. Symbols: V vocabulary, D d_model, L layers, H heads, K kv heads, Hd head_dim, F
// d_ff, W window, P ple_dim, E experts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lapidary {

inline constexpr int64_t kMaxLayers = 2048;  // validate() refuses more; importers look before they allocate

enum class Activation { gelu_tanh, silu };

// How the angle of a rotary pair (i, i + Hd/2) grows with position. Frequency of pair i: theta^(-2i/Hd),
// then:
enum class RopeKind {
  plain,         // as it is
  proportional,  // the first partial_rotary_factor * Hd/2 pairs turn, the others stand still (exponent over
                 // the whole head)
  llama3,        // blended with frequency/factor between the two wavelength bounds (rope_type "llama3")
  divisors,      // divided by a stored factor each (GGUF rope_freqs); 1e30 means that the pair stands still
};

struct RopeSpec {
  RopeKind kind = RopeKind::plain;
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;  // proportional
  double factor = 1.0;                 // llama3
  double low_freq_factor = 1.0;        // llama3
  double high_freq_factor = 4.0;       // llama3
  int64_t original_max_position = 0;   // llama3
  std::vector<float> divisors;         // divisors: [Hd/2]
  bool operator==(const RopeSpec&) const = default;
};

// Angle per position of each pair, radians, [head_dim/2]; 0 for a pair that stands still.
std::vector<double> rope_frequencies(const RopeSpec& rope, int64_t head_dim);

struct AttentionSpec {
  int64_t n_heads = 0;     // H
  int64_t n_kv_heads = 0;  // K, divides H
  int64_t head_dim = 0;    // Hd, even
  int64_t window = 0;      // keys visible to a query, itself included; 0 means all
  RopeSpec rope;
  double scale = 1.0;   // factor of q·k
  bool q_norm = false;  // per-head RMSNorm with weight [Hd], before RoPE
  bool k_norm = false;
  bool v_norm = false;  // per-head RMSNorm without weight
  bool k_eq_v = false;  // no v projection: V is made from the raw k projection
  int64_t kv_owner =
      0;  // layer whose K/V this layer reads; its own index for an owner, an earlier owner's for a borrower
  bool operator==(const AttentionSpec&) const = default;
};

struct MoeSpec {  // experts beside the dense FFN of the layer (Gemma 4 26B-A4B)
  int64_t n_experts = 0, top_k = 0, d_ff = 0;
  bool operator==(const MoeSpec&) const = default;
};

struct FfnSpec {  // down(act(gate(x)) * up(x))
  int64_t d_ff = 0;
  Activation activation = Activation::gelu_tanh;
  std::optional<MoeSpec> moe;
  bool operator==(const FfnSpec&) const = default;
};

enum class ResidualRule { add };  // h = h + f(h). The place where attention residuals will go.

struct LayerSpec {
  std::optional<AttentionSpec> attention;  // absent: the sublayer was cut
  std::optional<FfnSpec> ffn;
  bool post_attention_norm = false;  // sandwich norms of Gemma: on the sublayer's output, before the add
  bool post_ffn_norm = false;
  bool ple = false;           // takes its slice of the per-layer embedding after the FFN
  bool layer_scalar = false;  // the whole stream times a stored scalar at the end of the layer
  ResidualRule residual = ResidualRule::add;
  bool operator==(const LayerSpec&) const = default;
  bool owns_kv(int64_t index) const { return attention && attention->kv_owner == index; }
};

struct ModelSpec {
  int64_t vocab_size = 0;    // V
  int64_t d_model = 0;       // D
  int64_t max_position = 0;  // positions the model was made for
  double norm_eps = 1e-6;
  double embed_scale = 1.0;    // factor of the token embedding (Gemma: sqrt(D), unrounded)
  double logit_softcap = 0.0;  // c * tanh(z / c); 0 means none
  bool tied_head = true;       // the head is the embedding table
  int64_t ple_dim = 0;  // P; 0 means no per-layer embeddings. The table is [V, L * P], packed by layer.
  std::vector<LayerSpec> layers;

  bool operator==(const ModelSpec&) const = default;
  int64_t n_layers() const { return static_cast<int64_t>(layers.size()); }
  // Throws Error(data) that names the first contradiction: field, layer, expected, got.
  void validate() const;
};

// JSON, exact both ways: from_json(to_json(s)) == s, doubles included. Unknown or missing field, unknown
// enum: Error naming it.
std::string spec_to_json(const ModelSpec& spec);
ModelSpec spec_from_json(std::string_view json);

std::string_view activation_name(Activation activation);
std::string_view rope_kind_name(RopeKind kind);

}  // namespace lapidary
