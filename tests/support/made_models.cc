#include "support/made_models.h"

#include <cmath>

#include "base/error.h"
#include "base/quantise.h"
#include "base/rng.h"

namespace lapidary::test {
namespace {

std::vector<std::byte> encoded(const std::vector<float>& values, DType type, int64_t columns) {
  const auto width = static_cast<size_t>(columns);
  const size_t stride = row_bytes(type, width), rows = values.size() / width;
  std::vector<std::byte> bytes(rows * stride);
  for (size_t r = 0; r < rows; ++r) {
    ensure(encode_row(type, std::span(values).subspan(r * width, width),
                      std::span(bytes).subspan(r * stride, stride)),
           ErrorCode::internal, "a made weight that {} cannot hold", dtype_name(type));
  }
  return bytes;
}

ModelSpec small_spec(int64_t vocab, int64_t d_model) {
  ModelSpec spec;
  spec.vocab_size = vocab;
  spec.d_model = d_model;
  spec.max_position = 128;
  return spec;
}

struct Heads {
  int64_t n, kv, dim;
};

LayerSpec& add_layer(ModelSpec& spec, Heads heads, int64_t d_ff) {
  LayerSpec layer;
  AttentionSpec& a = layer.attention.emplace();
  a.n_heads = heads.n;
  a.n_kv_heads = heads.kv;
  a.head_dim = heads.dim;
  a.scale = 1.0 / std::sqrt(static_cast<double>(heads.dim));
  a.kv_owner = spec.n_layers();
  layer.ffn = FfnSpec{d_ff, Activation::silu, {}};
  spec.layers.push_back(layer);
  return spec.layers.back();
}

ModelSpec odd_heads() {
  ModelSpec spec = small_spec(37, 96);
  add_layer(spec, {3, 1, 32}, 160).attention->window = 5;
  add_layer(spec, {5, 5, 14}, 32);  // 70 inputs of the output projection: no whole blocks
  return spec;
}

ModelSpec one_of_each() {
  ModelSpec spec = small_spec(1, 32);
  add_layer(spec, {1, 1, 2}, 32).ffn->moe = MoeSpec{1, 1, 32};
  spec.layers[0].post_ffn_norm = true;
  return spec;
}

ModelSpec wide_per_layer_embedding() {
  ModelSpec spec = small_spec(17, 32);
  spec.ple_dim = 224;  // wider than all else that is multiplied
  LayerSpec& layer = add_layer(spec, {1, 1, 32}, 64);
  layer.ple = layer.layer_scalar = true;
  return spec;
}

ModelSpec three_experts() {
  ModelSpec spec = small_spec(50, 64);
  spec.tied_head = false;
  add_layer(spec, {6, 3, 16}, 96).ffn->moe = MoeSpec{3, 2, 32};
  spec.layers[0].post_ffn_norm = true;
  return spec;
}

ModelSpec whole_super_blocks() {
  ModelSpec spec = small_spec(19, 256);
  add_layer(spec, {7, 7, 10}, 256).attention->q_norm = true;
  add_layer(spec, {2, 1, 128}, 33);  // its down projection has no whole block of any kind
  return spec;
}

ModelSpec uneven_super_blocks() {
  ModelSpec spec = small_spec(15, 768);
  add_layer(spec, {3, 3, 256}, 512);
  return spec;
}

}  // namespace

MadeModel make_model(const ModelSpec& spec, DType type, uint64_t seed) {
  MadeModel model{spec, {}};
  uint64_t stream = 0;
  for_each_tensor(spec, [&](const TensorInfo& info) {
    ++stream;
    const int64_t columns = info.shape.back();
    const bool weight = info.dtype_rule == DTypeRule::any_weight;
    const double size = weight ? 1 / std::sqrt(static_cast<double>(columns)) : 0.1;
    std::vector<float> values(static_cast<size_t>(element_count(info.shape, slot_name(info.slot))));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>((weight ? 0 : 1) + size * static_cast<double>(normal(seed, stream, i)));
    const bool whole = static_cast<size_t>(columns) % dtype_info(type).block_elements == 0;
    const DType stored = weight && whole ? type : DType::f32;
    model.tensors.write(info.slot, {stored, info.shape, encoded(values, stored, columns)});
  });
  return model;
}

MadeModel decoded(const MadeModel& model) {
  MadeModel out{model.spec, {}};
  for_each_tensor(model.spec, [&](const TensorInfo& info) {
    const std::vector<float> values = to_floats(model.tensors.read(info.slot).view);
    out.tensors.write(info.slot, {DType::f32, info.shape, std::as_bytes(std::span(values))});
  });
  return out;
}

const std::vector<HostileShape>& hostile_shapes() {
  static const std::vector<HostileShape> shapes = {
      {"odd_heads", odd_heads()},
      {"one_of_each", one_of_each()},
      {"wide_per_layer_embedding", wide_per_layer_embedding()},
      {"three_experts", three_experts()},
      {"whole_super_blocks", whole_super_blocks()},
      {"uneven_super_blocks", uneven_super_blocks()},
  };
  return shapes;
}

}  // namespace lapidary::test
