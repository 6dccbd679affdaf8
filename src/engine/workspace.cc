// Plans and takes every buffer of a forward step, so that decoding allocates nothing.
#include <algorithm>

#include "engine/forward.h"

namespace lapidary {
namespace {

struct Widest {
  int64_t queries = 0, kv = 0, ff = 0, padded_head = 0, experts = 0, expert_ff = 0;
};

Widest widest(const ModelSpec& spec) {
  Widest w;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.attention) {
      const AttentionSpec& a = *layer.attention;
      w.queries = std::max(w.queries, a.n_heads * a.head_dim);
      w.kv = std::max(w.kv, a.n_kv_heads * a.head_dim);
      w.padded_head =
          std::max(w.padded_head, (a.head_dim + kernels::kLanes - 1) / kernels::kLanes * kernels::kLanes);
    }
    if (layer.ffn) {
      w.ff = std::max(w.ff, layer.ffn->d_ff);
      if (layer.ffn->moe) {
        w.experts = std::max(w.experts, layer.ffn->moe->n_experts);
        w.expert_ff = std::max(w.expert_ff, layer.ffn->moe->d_ff);
      }
    }
  }
  w.ff = std::max(w.ff, spec.ple_dim);
  return w;
}

Workspace::Rows make_rows(int64_t rows, int64_t width, const char* name) {
  return {Buffer(static_cast<size_t>(rows * width) * sizeof(float), name), width};
}

Workspace::Integers make_integers(int64_t rows, int64_t width, bool two_terms) {
  width = (width + kernels::kQuantGroup - 1) / kernels::kQuantGroup * kernels::kQuantGroup;
  const auto n = static_cast<size_t>((rows + kernels::kMaxTileHeight - 1) / kernels::kMaxTileHeight *
                                     kernels::kMaxTileHeight * width);
  Workspace::Integers out;
  out.hi = Buffer(n, "workspace: activations as integers");
  if (two_terms) out.lo = Buffer(n, "workspace: second terms of activations");
  out.scales = Buffer((n / kernels::kQuantGroup + kernels::kMaxTileHeight) * sizeof(float),
                      "workspace: scales of activations");
  out.sums = Buffer((n / kernels::kSumGroup + kernels::kMaxTileHeight) * sizeof(int32_t),
                    "workspace: sums of activations");
  out.width = width;
  out.two_terms = two_terms;
  return out;
}

size_t find_or_add(std::vector<RopeSpec>& ropes, std::vector<int64_t>& dims, const RopeSpec& rope,
                   int64_t head_dim) {
  for (size_t i = 0; i < ropes.size(); i++)
    if (ropes[i] == rope && dims[i] == head_dim) return i;
  ropes.push_back(rope);
  dims.push_back(head_dim);
  return ropes.size() - 1;
}

}  // namespace

kernels::QuantisedRows Workspace::Integers::view(int64_t rows, bool both_terms) const {
  return {reinterpret_cast<int8_t*>(hi.data()),
          two_terms && both_terms ? reinterpret_cast<int8_t*>(lo.data()) : nullptr,
          scales.floats(),
          reinterpret_cast<int32_t*>(sums.data()),
          width,
          kernels::tile_height(rows)};
}

int64_t Workspace::Integers::bytes() const {
  return static_cast<int64_t>(hi.size() + lo.size() + scales.size() + sums.size());
}

int64_t Workspace::bytes() const {
  size_t total = 0;
  for (const Rows* r :
       {&hidden, &normed, &branch, &queries, &keys, &values, &attended, &gate, &up, &ple, &ple_table, &router,
        &expert_in, &expert_rows, &expert_gate_up, &expert_sum, &logits, &scratch, &halves})
    total += r->memory.size();
  total += static_cast<size_t>(integers.bytes()) + part_states.size();
  for (const Rows& r : cosines) total += 2 * r.memory.size();
  return static_cast<int64_t>(total);
}

Forward::Forward(const ModelSpec& spec, const Weights& weights, const kernels::Kernels& kernels, Team& team,
                 KvCache& cache, Numerics numerics, int64_t max_rows)
    : spec_(spec),
      weights_(weights),
      k_(kernels),
      team_(team),
      cache_(cache),
      arithmetic_(numerics.arithmetic),
      mode_(numerics.mode),
      eps_(static_cast<float>(spec.norm_eps)) {
  const Widest w = widest(spec);
  const int64_t d = spec.d_model, ple = spec.n_layers() * spec.ple_dim, R = max_rows;
  const int64_t moe_rows = w.experts ? R : 0;
  ws_.hidden = make_rows(R, d, "workspace: hidden");
  ws_.normed = make_rows(R, d, "workspace: normed");
  ws_.branch = make_rows(R, d, "workspace: branch");
  ws_.queries = make_rows(R, w.queries, "workspace: queries");
  ws_.keys = make_rows(R, w.kv, "workspace: keys");
  ws_.values = make_rows(R, w.kv, "workspace: values");
  ws_.attended = make_rows(R, w.queries, "workspace: attended");
  ws_.gate = make_rows(R, w.ff, "workspace: gate");
  ws_.up = make_rows(R, w.ff, "workspace: up");
  ws_.ple = make_rows(R, ple, "workspace: per-layer embeddings");
  ws_.ple_table = make_rows(1, ple, "workspace: per-layer embedding row");
  ws_.router = make_rows(moe_rows, w.experts, "workspace: router");
  ws_.expert_in = make_rows(moe_rows, d, "workspace: expert input");
  ws_.expert_rows = make_rows(moe_rows, d, "workspace: expert rows");
  ws_.expert_gate_up = make_rows(moe_rows, 2 * w.expert_ff, "workspace: expert gate and up");
  ws_.expert_sum = make_rows(moe_rows, d, "workspace: expert sum");
  ws_.logits = make_rows(std::min(kHeadRows, R), spec.vocab_size, "workspace: logits");
  if (arithmetic_ != Arithmetic::f32) {
    const int64_t widest_input = std::max({d, w.queries, w.ff, w.expert_ff});
    ws_.integers = make_integers(R, widest_input, arithmetic_ == Arithmetic::a16);
  }
  if (mode_ == NumericMode::fast)
    ws_.halves = make_rows(team.size(), R * kernels::kLanes, "workspace: sums of half the inputs");
  plan_attention(w.padded_head, max_rows);
  ws_.expert_row.resize(static_cast<size_t>(moe_rows));
  ws_.expert_share.resize(static_cast<size_t>(moe_rows));
  ws_.choice.resize(static_cast<size_t>(moe_rows * w.experts));

  std::vector<RopeSpec> ropes;
  std::vector<int64_t> dims;
  int64_t most_tiles = 1;
  for (int64_t i = 0; i < spec.n_layers(); i++) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (layer.owns_kv(i)) last_owner_ = i;
    rope_of_layer_.push_back(
        layer.attention ? find_or_add(ropes, dims, layer.attention->rope, layer.attention->head_dim) : 0);
    if (layer.attention) most_tiles = std::max(most_tiles, layer.attention->n_heads);
  }
  for (size_t i = 0; i < ropes.size(); i++) {
    ropes_.push_back({ropes[i], dims[i], rope_frequencies(ropes[i], dims[i])});
    ws_.cosines.push_back(make_rows(R, dims[i] / 2, "workspace: cosines"));
    ws_.sines.push_back(make_rows(R, dims[i] / 2, "workspace: sines"));
  }
  rows_.reserve(static_cast<size_t>(R));
  ids_.reserve(static_cast<size_t>(R));
  tiles_.reserve(static_cast<size_t>(R * most_tiles));
  traffic_.kv_read.resize(spec.layers.size());
  traffic_.kv_written.resize(spec.layers.size());
}

}  // namespace lapidary
