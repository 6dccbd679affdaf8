#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "spec/specs.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(),
                 kNan = std::numeric_limits<double>::quiet_NaN();

struct Case {
  std::string_view expected;  // in the message
  std::function<void(ModelSpec&)> spoil;
};

AttentionSpec& attention(ModelSpec& spec, size_t layer) {
  return *spec.layers[layer].attention;
}

void expect_all(const std::vector<Case>& cases, ModelSpec (*make)()) {
  for (const Case& c : cases) {
    ModelSpec spec = make();
    ASSERT_NO_THROW(spec.validate());
    c.spoil(spec);
    expect_error([&] { spec.validate(); }, ErrorCode::data, c.expected);
  }
}

TEST(Validate, AcceptsWhatIsSound) {
  EXPECT_NO_THROW(gemma_like().validate());
  EXPECT_NO_THROW(llama_like().validate());
  EXPECT_NO_THROW(expert_like().validate());
  ModelSpec cut = gemma_like();  // sublayers may be missing
  cut.layers[3].attention.reset();
  cut.layers[3].post_attention_norm = false;
  cut.layers[0].ffn.reset();
  cut.layers[0].post_ffn_norm = false;
  EXPECT_NO_THROW(cut.validate());
}

TEST(Validate, NamesSizesOfTheModel) {
  expect_all(
      {
          {"spec: vocab_size: expected 1 to 16777216, got 0", [](ModelSpec& s) { s.vocab_size = 0; }},
          {"spec: vocab_size: expected 1 to 16777216, got 9223372036854775807",
           [](ModelSpec& s) { s.vocab_size = INT64_MAX; }},
          {"spec: d_model: expected 1 to 262144, got -3", [](ModelSpec& s) { s.d_model = -3; }},
          {"spec: max_position: expected 1 to 4294967296, got 0", [](ModelSpec& s) { s.max_position = 0; }},
          {"spec: number of layers: expected 1 to 2048, got 0", [](ModelSpec& s) { s.layers.clear(); }},
          {"spec: number of layers: expected 1 to 2048, got 2049",
           [](ModelSpec& s) { s.layers.resize(2049); }},
          {"spec: norm_eps: expected a finite number of at least 0, got nan",
           [](ModelSpec& s) { s.norm_eps = kNan; }},
          {"spec: embed_scale: expected a finite number above 0, got inf",
           [](ModelSpec& s) { s.embed_scale = kInfinity; }},
          {"spec: embed_scale: expected a finite number above 0, got 0",
           [](ModelSpec& s) { s.embed_scale = 0; }},
          {"spec: logit_softcap: expected a finite number of at least 0 (0: none), got -1",
           [](ModelSpec& s) { s.logit_softcap = -1; }},
          {"spec: ple_dim: expected 0 to 16384, got -1", [](ModelSpec& s) { s.ple_dim = -1; }},
          {"spec: layers[0].ple: expected false (ple_dim is 0), got true",
           [](ModelSpec& s) { s.ple_dim = 0; }},
          {"spec: ple_dim: expected 0 (no layer takes a per-layer embedding), got 8",
           [](ModelSpec& s) {
             for (LayerSpec& layer : s.layers) layer.ple = false;
           }},
      },
      gemma_like);
}

TEST(Validate, NamesAttentionFields) {
  expect_all(
      {
          {"spec: layers[1].attention.n_heads: expected 1 to 4096, got 0",
           [](ModelSpec& s) { attention(s, 1).n_heads = 0; }},
          {"spec: layers[0].attention.n_kv_heads: expected 1 to 4096, got 0",
           [](ModelSpec& s) { attention(s, 0).n_kv_heads = 0; }},
          {"spec: layers[0].attention.n_kv_heads: expected a divisor of n_heads (4), got 3",
           [](ModelSpec& s) { attention(s, 0).n_kv_heads = 3; }},
          {"spec: layers[1].attention.head_dim: expected an even number, got 15",
           [](ModelSpec& s) { attention(s, 1).head_dim = 15; }},
          {"spec: layers[2].attention.window: expected 0 to 4294967296, got -1",
           [](ModelSpec& s) { attention(s, 2).window = -1; }},
          {"spec: layers[0].attention.scale: expected a finite number above 0, got nan",
           [](ModelSpec& s) { attention(s, 0).scale = kNan; }},
          {"spec: layers[0].attention.rope.theta: expected a finite number above 0, got -1",
           [](ModelSpec& s) { attention(s, 0).rope.theta = -1; }},
          {"spec: layers[1].attention.rope.partial_rotary_factor: expected above 0 and at most 1, got 1.5",
           [](ModelSpec& s) { attention(s, 1).rope.partial_rotary_factor = 1.5; }},
          {"spec: layers[0].attention.rope.high_freq_factor: expected above low_freq_factor (4), got 4",
           [](ModelSpec& s) {
             attention(s, 0).rope.kind = RopeKind::llama3;
             attention(s, 0).rope.low_freq_factor = 4;
           }},
          {"spec: layers[0].attention.rope.original_max_position: expected 1 to 4294967296, got 0",
           [](ModelSpec& s) { attention(s, 0).rope.kind = RopeKind::llama3; }},
          {"spec: layers[0].attention.rope.factor: expected a finite number above 0, got 0",
           [](ModelSpec& s) { attention(s, 0).rope.factor = 0; }},
          {"spec: layers[0].attention.rope.divisors: expected 4 numbers (kind divisors, head_dim 8), got 3",
           [](ModelSpec& s) {
             attention(s, 0).rope.kind = RopeKind::divisors;
             attention(s, 0).rope.divisors = {1, 1, 1};
           }},
          {"spec: layers[0].attention.rope.divisors[2]: expected a finite number above 0, got 0",
           [](ModelSpec& s) {
             attention(s, 0).rope.kind = RopeKind::divisors;
             attention(s, 0).rope.divisors = {1, 1, 0, 1};
           }},
          {"spec: layers[0].attention.rope.divisors: expected 0 numbers (kind plain, head_dim 8), got 4",
           [](ModelSpec& s) {
             attention(s, 0).rope.divisors = {1, 1, 1, 1};
           }},
          {"spec: layers[3].post_attention_norm: expected false (the layer has no attention), got true",
           [](ModelSpec& s) { s.layers[3].attention.reset(); }},
          {"spec: layers[2].post_ffn_norm: expected false (the layer has no FFN), got true",
           [](ModelSpec& s) { s.layers[2].ffn.reset(); }},
      },
      gemma_like);
}

TEST(Validate, NamesWhatABorrowerContradicts) {
  expect_all(
      {
          {"spec: layers[2].attention.kv_owner: expected this layer (2) or an earlier one, got 3",
           [](ModelSpec& s) { attention(s, 2).kv_owner = 3; }},
          {"spec: layers[2].attention.kv_owner: expected this layer (2) or an earlier one, got -1",
           [](ModelSpec& s) { attention(s, 2).kv_owner = -1; }},
          {"spec: layers[3].attention.kv_owner: expected a layer that owns its K/V, got 2, which borrows "
           "from 0",
           [](ModelSpec& s) { attention(s, 3).kv_owner = 2; }},
          {"spec: layers[3].attention.kv_owner: expected a layer that owns its K/V, got 1, which has no "
           "attention",
           [](ModelSpec& s) {
             s.layers[1].attention.reset();
             s.layers[1].post_attention_norm = false;
           }},
          {"spec: layers[2].attention.n_kv_heads: expected that of the owner, layer 0 (2), got 4",
           [](ModelSpec& s) { attention(s, 2).n_kv_heads = 4; }},
          {"spec: layers[3].attention.head_dim: expected that of the owner, layer 1 (16), got 8",
           [](ModelSpec& s) { attention(s, 3).head_dim = 8; }},
          {"spec: layers[2].attention.rope: expected that of the owner, layer 0, got another",
           [](ModelSpec& s) { attention(s, 2).rope.theta = 5e4; }},
          {"spec: layers[2].attention.window: expected 1 to that of the owner, layer 0 (6), got 0",
           [](ModelSpec& s) { attention(s, 2).window = 0; }},
          {"spec: layers[2].attention.window: expected 1 to that of the owner, layer 0 (6), got 7",
           [](ModelSpec& s) { attention(s, 2).window = 7; }},
      },
      gemma_like);
  ModelSpec narrower = gemma_like();  // an owner keeps enough for a smaller window, and a global one for any
  attention(narrower, 2).window = 3;
  attention(narrower, 3).window = 100;
  EXPECT_NO_THROW(narrower.validate());
}

TEST(Validate, NamesFfnFields) {
  expect_all(
      {
          {"spec: layers[0].ffn.d_ff: expected 1 to 4194304, got 0",
           [](ModelSpec& s) { s.layers[0].ffn->d_ff = 0; }},
          {"spec: layers[0].ffn.activation: expected a known one, got number 9",
           [](ModelSpec& s) { s.layers[0].ffn->activation = static_cast<Activation>(9); }},
          {"spec: layers[0].ffn.moe.n_experts: expected 1 to 8192, got 0",
           [](ModelSpec& s) { s.layers[0].ffn->moe->n_experts = 0; }},
          {"spec: layers[0].ffn.moe.top_k: expected 1 to n_experts (6), got 7",
           [](ModelSpec& s) { s.layers[0].ffn->moe->top_k = 7; }},
          {"spec: layers[0].ffn.moe.top_k: expected 1 to n_experts (6), got 0",
           [](ModelSpec& s) { s.layers[0].ffn->moe->top_k = 0; }},
          {"spec: layers[0].ffn.moe.d_ff: expected 1 to 4194304, got -1",
           [](ModelSpec& s) { s.layers[0].ffn->moe->d_ff = -1; }},
      },
      expert_like);
}

TEST(Validate, RefusesModelsWhoseProductsWouldOverflow) {
  ModelSpec spec = expert_like();
  spec.d_model = int64_t{1} << 18;
  spec.layers[0].ffn->moe = MoeSpec{int64_t{1} << 13, 1, int64_t{1} << 22};
  spec.layers.resize(3, spec.layers[0]);
  for (size_t i = 0; i < 3; ++i) attention(spec, i).kv_owner = static_cast<int64_t>(i);
  expect_error([&] { spec.validate(); }, ErrorCode::data,
               "spec: expected at most 36028797018963968 parameters, got more at layers.");
}

}  // namespace
}  // namespace lapidary::test
