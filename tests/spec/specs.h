// Small specs for tests, written out by hand.
#pragma once

#include <cmath>

#include "spec/model_spec.h"

namespace lapidary::test {

// Four layers, sliding and global in turn; the last two borrow from the first two. PLE, sandwich norms,
// softcap.
inline ModelSpec gemma_like() {
  ModelSpec spec;
  spec.vocab_size = 96;
  spec.d_model = 32;
  spec.max_position = 512;
  spec.embed_scale = std::sqrt(32.0);
  spec.logit_softcap = 30;
  spec.ple_dim = 8;
  for (int64_t i = 0; i < 4; ++i) {
    const bool global = i % 2 == 1;
    LayerSpec layer;
    AttentionSpec& a = layer.attention.emplace();
    a.n_heads = 4;
    a.n_kv_heads = global ? 1 : 2;
    a.head_dim = global ? 16 : 8;
    a.window = global ? 0 : 6;
    a.rope.theta = global ? 1e6 : 1e4;
    a.rope.kind = global ? RopeKind::proportional : RopeKind::plain;
    a.rope.partial_rotary_factor = global ? 0.25 : 1.0;
    a.q_norm = a.k_norm = a.v_norm = true;
    a.k_eq_v = global;
    a.kv_owner = i < 2 ? i : i - 2;
    layer.ffn = FfnSpec{i < 2 ? 24 : 48, Activation::gelu_tanh, {}};
    layer.post_attention_norm = layer.post_ffn_norm = layer.ple = layer.layer_scalar = true;
    spec.layers.push_back(layer);
  }
  return spec;
}

// Two layers without extras, an untied head.
inline ModelSpec llama_like() {
  ModelSpec spec;
  spec.vocab_size = 40;
  spec.d_model = 16;
  spec.max_position = 128;
  spec.norm_eps = 1e-5;
  spec.tied_head = false;
  for (int64_t i = 0; i < 2; ++i) {
    LayerSpec layer;
    AttentionSpec& a = layer.attention.emplace();
    a.n_heads = 4;
    a.n_kv_heads = 2;
    a.head_dim = 4;
    a.scale = 0.5;
    a.kv_owner = i;
    layer.ffn = FfnSpec{20, Activation::silu, {}};
    spec.layers.push_back(layer);
  }
  return spec;
}

// One layer with experts beside the dense FFN.
inline ModelSpec expert_like() {
  ModelSpec spec = llama_like();
  spec.layers.resize(1);
  spec.layers[0].ffn->moe = MoeSpec{6, 2, 5};
  spec.layers[0].post_ffn_norm = true;
  spec.tied_head = true;
  return spec;
}

}  // namespace lapidary::test
