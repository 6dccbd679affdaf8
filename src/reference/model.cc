#include "reference/model.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"

namespace lapidary::reference {
namespace {

using at::Tensor;

// x [.., in], w [out, in] → [.., out]. No projection has a bias.
Tensor project(const Tensor& x, const Tensor& w) {
  return at::matmul(x, w.t());
}

Tensor activate(Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::gelu_tanh: return at::gelu(x, "tanh");
    case Activation::silu: return at::silu(x);
  }
  fail(ErrorCode::internal, "an activation without a formula");
}

// docs/models.md 4: radians per position of pair i, [Hd/2]. Written here a second time, from the formulas.
Tensor frequencies(const RopeSpec& rope, int64_t head_dim) {
  const Tensor i = at::arange(head_dim / 2, at::kDouble);
  const Tensor plain = at::pow(rope.theta, -2.0 * i / static_cast<double>(head_dim));
  switch (rope.kind) {
    case RopeKind::plain: return plain;
    case RopeKind::proportional:
      return plain * (i < std::floor(rope.partial_rotary_factor * static_cast<double>(head_dim) / 2.0));
    case RopeKind::llama3: {
      const double original = static_cast<double>(rope.original_max_position);
      const Tensor wavelength = 2.0 * std::numbers::pi / plain;
      const Tensor smooth =
          ((original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor))
              .clamp(0.0, 1.0);
      return (1.0 - smooth) * plain / rope.factor + smooth * plain;
    }
    case RopeKind::divisors:
      return plain / at::tensor(std::vector<double>(rope.divisors.begin(), rope.divisors.end()), at::kDouble);
  }
  fail(ErrorCode::internal, "a rope without a formula");
}

// x [heads, T, Hd]: pair (i, i + Hd/2) turned by position * frequency.
Tensor rotate(const RopeSpec& rope, const Tensor& x, int64_t start) {
  const int64_t half = x.size(2) / 2;
  const Tensor positions = at::arange(start, start + x.size(1), at::kDouble);
  const Tensor angle = positions.unsqueeze(1) * frequencies(rope, x.size(2));  // [T, Hd/2]
  const Tensor cosine = at::cos(angle).to(x.scalar_type()), sine = at::sin(angle).to(x.scalar_type());
  const Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  return at::cat({a * cosine - b * sine, b * cosine + a * sine}, 2);
}

// [T, heads * Hd] → [heads, T, Hd]
Tensor split_heads(const Tensor& x, int64_t heads) {
  return x.view({x.size(0), heads, -1}).transpose(0, 1);
}

// True where query i (position start + i) must not see key j: later than it, or outside its window. [T, S].
Tensor hidden_keys(int64_t start, int64_t n_queries, int64_t n_keys, int64_t window) {
  const Tensor query = at::arange(start, start + n_queries, at::kLong).unsqueeze(1);
  const Tensor key = at::arange(n_keys, at::kLong).unsqueeze(0);
  Tensor out = key > query;
  if (window > 0) out = at::logical_or(out, key <= query - window);
  return out;
}

}  // namespace

Model::Model(const ModelSpec& spec, const Parameters& parameters, at::ScalarType type)
    : spec_(spec),
      parameters_(parameters),
      type_(type),
      wide_(type == at::kDouble ? at::kDouble : at::kFloat) {}

Cache Model::empty_cache() const {
  Cache cache;
  cache.layers.resize(spec_.layers.size());
  return cache;
}

// docs/models.md 1
Tensor Model::forward(const Tensor& ids, Cache& cache, const OnLayer& on_layer) const {
  Tensor h = parameters_.rows({TensorKind::token_embedding, -1}, ids) * spec_.embed_scale;
  const Tensor ple = per_layer_inputs(ids, h);
  for (int64_t i = 0; i < spec_.n_layers(); ++i) {
    h = layer(i, h, ple, cache);
    if (on_layer) on_layer(i, h);
  }
  cache.length += ids.size(0);
  return rms_norm(h, weight(TensorKind::output_norm));
}

// docs/models.md 1: the head, in pieces of its rows so that a streamed one never lies in memory whole.
Tensor Model::logits(const Tensor& final_norm) const {
  constexpr int64_t kPiece = 16384;
  const Slot head{spec_.tied_head ? TensorKind::token_embedding : TensorKind::output_head, -1};
  std::vector<Tensor> pieces;
  for (int64_t begin = 0; begin < spec_.vocab_size; begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, spec_.vocab_size);
    pieces.push_back(project(final_norm, parameters_.row_range(head, begin, end)));
  }
  const Tensor z = at::cat(pieces, 1);
  return spec_.logit_softcap > 0 ? spec_.logit_softcap * at::tanh(z / spec_.logit_softcap) : z;
}

// docs/models.md 2
Tensor Model::layer(int64_t index, Tensor h, const Tensor& ple, Cache& cache) const {
  const LayerSpec& layer = spec_.layers[static_cast<size_t>(index)];
  if (layer.attention) {
    Tensor a = attention(index, rms_norm(h, weight(TensorKind::attention_norm, index)), cache);
    if (layer.post_attention_norm) a = rms_norm(a, weight(TensorKind::post_attention_norm, index));
    h = residual(layer, h, a);
  }
  if (layer.ffn) {
    Tensor f = ffn(index, h);
    if (layer.post_ffn_norm) f = rms_norm(f, weight(TensorKind::post_ffn_norm, index));
    h = residual(layer, h, f);
  }
  if (layer.ple) h = add_per_layer_input(index, h, ple);
  if (layer.layer_scalar) h = h * weight(TensorKind::layer_scalar, index);
  return h;
}

Tensor Model::residual(const LayerSpec& layer, const Tensor& h, const Tensor& branch) const {
  switch (layer.residual) {
    case ResidualRule::add: return h + branch;
  }
  fail(ErrorCode::internal, "a residual rule without a formula");
}

// docs/models.md 2: x / sqrt(mean(x²) + eps), in float32 at least.
Tensor Model::rms_norm(const Tensor& x) const {
  const Tensor y = x.to(wide_);
  return (y * at::rsqrt(at::mean(y * y, -1, true) + spec_.norm_eps)).to(x.scalar_type());
}

Tensor Model::rms_norm(const Tensor& x, const Tensor& weight) const {
  const Tensor y = x.to(wide_);
  return (y * at::rsqrt(at::mean(y * y, -1, true) + spec_.norm_eps) * weight.to(wide_)).to(x.scalar_type());
}

// docs/models.md 3
Tensor Model::attention(int64_t index, const Tensor& x, Cache& cache) const {
  const AttentionSpec& a = *spec_.layers[static_cast<size_t>(index)].attention;
  if (a.kv_owner == index) append_kv(index, x, cache);
  Tensor q = split_heads(project(x, weight(TensorKind::query, index)), a.n_heads);
  if (a.q_norm) q = rms_norm(q, weight(TensorKind::query_norm, index));
  q = rotate(a.rope, q, cache.length);
  const Tensor mixed =
      attend(a, q, cache.layers[static_cast<size_t>(a.kv_owner)], cache.length);  // [H, T, Hd]
  return project(mixed.transpose(0, 1).reshape({x.size(0), -1}), weight(TensorKind::attention_output, index));
}

// docs/models.md 3: K = rope(k_norm(Wk x)), V = v_norm(Wv x); without Wv the raw Wk x is the value too.
void Model::append_kv(int64_t index, const Tensor& x, Cache& cache) const {
  const AttentionSpec& a = *spec_.layers[static_cast<size_t>(index)].attention;
  Tensor k = split_heads(project(x, weight(TensorKind::key, index)), a.n_kv_heads);
  Tensor v = a.k_eq_v ? k : split_heads(project(x, weight(TensorKind::value, index)), a.n_kv_heads);
  if (a.k_norm) k = rms_norm(k, weight(TensorKind::key_norm, index));
  if (a.v_norm) v = rms_norm(v);
  k = rotate(a.rope, k, cache.length);
  Cache::Entry& entry = cache.layers[static_cast<size_t>(index)];
  entry.k = entry.k.defined() ? at::cat({entry.k, k}, 1) : k;
  entry.v = entry.v.defined() ? at::cat({entry.v, v}, 1) : v;
}

// softmax(scale * q kᵀ) v over the visible keys; query head h reads kv head h / (H / K).
Tensor Model::attend(const AttentionSpec& a, const Tensor& q, const Cache::Entry& kv, int64_t start) const {
  const int64_t group = a.n_heads / a.n_kv_heads;
  const Tensor k = kv.k.repeat_interleave(group, 0), v = kv.v.repeat_interleave(group, 0);
  const Tensor scores = (at::matmul(q, k.transpose(1, 2)) * a.scale)
                            .masked_fill(hidden_keys(start, q.size(1), k.size(1), a.window),
                                         -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1, wide_).to(q.scalar_type()), v);
}

// docs/models.md 5: down(act(gate x) * up x), and beside it the experts.
Tensor Model::ffn(int64_t index, const Tensor& h) const {
  const FfnSpec& f = *spec_.layers[static_cast<size_t>(index)].ffn;
  const Tensor x = rms_norm(h, weight(TensorKind::ffn_norm, index));
  const Tensor gated = activate(f.activation, project(x, weight(TensorKind::gate, index))) *
                       project(x, weight(TensorKind::up, index));
  const Tensor dense = project(gated, weight(TensorKind::down, index));
  if (!f.moe) return dense;
  return rms_norm(dense, weight(TensorKind::dense_post_norm, index)) + experts(index, h);
}

// docs/models.md 5: the router reads the stream itself; the experts read it through a norm of their own.
Tensor Model::experts(int64_t index, const Tensor& h) const {
  const FfnSpec& f = *spec_.layers[static_cast<size_t>(index)].ffn;
  const MoeSpec& m = *f.moe;
  const Tensor seen = rms_norm(h) * (1.0 / std::sqrt(static_cast<double>(spec_.d_model))) *
                      weight(TensorKind::router_scale, index);
  const Tensor probability = at::softmax(project(seen, weight(TensorKind::router, index)), -1, wide_);
  auto [share, expert] = at::topk(probability, m.top_k, -1);  // [T, top_k] each
  share = share / share.sum(-1, true);
  share = share.to(type_) *
          weight(TensorKind::expert_scale, index).index_select(0, expert.flatten()).view_as(expert);

  const Tensor x = rms_norm(h, weight(TensorKind::expert_pre_norm, index));
  const Tensor gate_up = weight(TensorKind::expert_gate_up, index),
               down = weight(TensorKind::expert_down, index);
  Tensor sum = at::zeros_like(h);
  for (int64_t e = 0; e < m.n_experts; ++e) {
    const Tensor mine = at::nonzero(expert == e);  // [n, 2]: row, which of its choices
    if (mine.size(0) == 0) continue;
    const Tensor row = mine.select(1, 0), choice = mine.select(1, 1);
    const Tensor both = project(x.index_select(0, row), gate_up[e]);  // [n, 2 * Fe], gate first
    const Tensor gated = activate(f.activation, both.narrow(1, 0, m.d_ff)) * both.narrow(1, m.d_ff, m.d_ff);
    const Tensor weight_of_row = share.index({row, choice}).unsqueeze(1);
    sum = sum.index_add(0, row, project(gated, down[e]) * weight_of_row);
  }
  return rms_norm(sum, weight(TensorKind::expert_post_norm, index));
}

// docs/models.md 6: what every layer receives, [T, L, P]; undefined without per-layer embeddings.
Tensor Model::per_layer_inputs(const Tensor& ids, const Tensor& h) const {
  if (spec_.ple_dim == 0) return {};
  const auto shape = std::vector<int64_t>{ids.size(0), spec_.n_layers(), spec_.ple_dim};
  const Tensor projected =
      project(h, weight(TensorKind::ple_projection)) / std::sqrt(static_cast<double>(spec_.d_model));
  const Tensor context = rms_norm(projected.view(shape), weight(TensorKind::ple_norm));
  const Tensor table = parameters_.rows({TensorKind::ple_embedding, -1}, ids).view(shape) *
                       std::sqrt(static_cast<double>(spec_.ple_dim));
  return (context + table) / std::numbers::sqrt2;
}

// docs/models.md 6
Tensor Model::add_per_layer_input(int64_t index, const Tensor& h, const Tensor& ple) const {
  const Tensor gate = at::gelu(project(h, weight(TensorKind::ple_gate, index)), "tanh");
  const Tensor out = project(gate * ple.select(1, index), weight(TensorKind::ple_output, index));
  return h + rms_norm(out, weight(TensorKind::ple_post_norm, index));
}

}  // namespace lapidary::reference
