#include "verify/mutations.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/blocks.h"
#include "base/error.h"
#include "base/half.h"
#include "spec/patched_tensors.h"

namespace lapidary {
namespace {

using Result = std::optional<Mutant>;

const LayerSpec& layer_of(const ModelSpec& spec, int64_t index) {
  return spec.layers[static_cast<size_t>(index)];
}

// The middle one of the layers that `has` accepts: neither the first, whose errors have the longest way to go
// unnoticed, nor the last.
std::optional<int64_t> middle_layer(const ModelSpec& spec, const std::function<bool(int64_t)>& has) {
  std::vector<int64_t> found;
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    if (has(i)) found.push_back(i);
  }
  if (found.empty()) return std::nullopt;
  return found[found.size() / 2];
}

// Same tensors, another spec. Nothing when no layer changed or the result contradicts itself.
Result change_spec(const ModelSpec& spec, const TensorSource& source, const std::string& what,
                   const std::function<bool(ModelSpec&)>& change) {
  ModelSpec changed = spec;
  if (!change(changed)) return std::nullopt;
  try {
    changed.validate();
  } catch (const Error&) {
    return std::nullopt;
  }
  return Mutant{changed, std::make_shared<PatchedTensors>(source), what};
}

// The same for every layer with attention.
Result change_attention(const ModelSpec& spec, const TensorSource& source, const std::string& what,
                        const std::function<bool(AttentionSpec&)>& change) {
  return change_spec(spec, source, what, [&](ModelSpec& changed) {
    bool any = false;
    for (LayerSpec& layer : changed.layers) {
      if (layer.attention && change(*layer.attention)) any = true;
    }
    return any;
  });
}

Result change_tensor(const ModelSpec& spec, const TensorSource& source, std::optional<int64_t> layer,
                     TensorKind kind, const std::function<void(std::vector<float>&)>& change) {
  if (!layer) return std::nullopt;
  auto patched = std::make_shared<PatchedTensors>(source);
  patched->change({kind, *layer}, change);
  return Mutant{spec, patched, slot_name({kind, *layer})};
}

void fill_with(std::vector<float>& values, float value) {
  std::fill(values.begin(), values.end(), value);
}

// ---- the mutations, one function each ----

Result scalar_is_one(const ModelSpec& spec, const TensorSource& source) {
  const auto differs = [&](int64_t i) {
    return layer_of(spec, i).layer_scalar &&
           to_floats(source.read({TensorKind::layer_scalar, i}).view)[0] != 1.0F;
  };
  return change_tensor(spec, source, middle_layer(spec, differs), TensorKind::layer_scalar,
                       [](std::vector<float>& v) { fill_with(v, 1.0F); });
}

Result no_ple(const ModelSpec& spec, const TensorSource& source) {
  if (spec.ple_dim == 0) return std::nullopt;
  auto patched = std::make_shared<PatchedTensors>(source);
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    if (!layer_of(spec, i).ple) continue;
    patched->change({TensorKind::ple_output, i}, [](std::vector<float>& v) { fill_with(v, 0.0F); });
  }
  return Mutant{spec, patched, "every layer"};
}

Result windows(const ModelSpec& spec, const TensorSource& source, int64_t by) {
  return change_attention(spec, source, fmt::format("every window {:+}", by), [&](AttentionSpec& a) {
    if (a.window == 0 || a.window + by < 1) return false;
    a.window += by;
    return true;
  });
}
Result wider_window(const ModelSpec& spec, const TensorSource& source) {
  return windows(spec, source, 1);
}
Result narrower_window(const ModelSpec& spec, const TensorSource& source) {
  return windows(spec, source, -1);
}

Result theta(const ModelSpec& spec, const TensorSource& source) {
  return change_attention(spec, source, "theta * 1.05 in every layer", [](AttentionSpec& a) {
    a.rope.theta *= 1.05;
    return true;
  });
}

Result plain_rope(const ModelSpec& spec, const TensorSource& source) {
  return change_attention(spec, source, "frequencies as if rope were plain", [](AttentionSpec& a) {
    if (a.rope.kind == RopeKind::plain) return false;
    a.rope = {.kind = RopeKind::plain, .theta = a.rope.theta};
    return true;
  });
}

// A borrower that reads another owner, one whose K and V have the same shape.
Result other_donor(const ModelSpec& spec, const TensorSource& source) {
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& borrower = layer_of(spec, i);
    if (!borrower.attention || borrower.owns_kv(i)) continue;
    for (int64_t donor = borrower.attention->kv_owner - 1; donor >= 0; --donor) {
      if (!layer_of(spec, donor).owns_kv(donor)) continue;
      ModelSpec changed = spec;
      changed.layers[static_cast<size_t>(i)].attention->kv_owner = donor;
      try {
        changed.validate();
      } catch (const Error&) {
        continue;  // of another shape, window or rope
      }
      return Mutant{changed, std::make_shared<PatchedTensors>(source),
                    fmt::format("layer {} reads layer {}, not {}", i, donor, borrower.attention->kv_owner)};
    }
  }
  return std::nullopt;
}

Result swapped_kv(const ModelSpec& spec, const TensorSource& source) {
  const auto layer = middle_layer(
      spec, [&](int64_t i) { return layer_of(spec, i).owns_kv(i) && !layer_of(spec, i).attention->k_eq_v; });
  if (!layer) return std::nullopt;
  auto patched = std::make_shared<PatchedTensors>(source);
  patched->swap({TensorKind::key, *layer}, {TensorKind::value, *layer});
  return Mutant{spec, patched, fmt::format("layer {}", *layer)};
}

Result no_v_norm(const ModelSpec& spec, const TensorSource& source) {
  return change_attention(spec, source, "every layer", [](AttentionSpec& a) {
    const bool had = a.v_norm;
    a.v_norm = false;
    return had;
  });
}

Result attention_scale(const ModelSpec& spec, const TensorSource& source) {
  return change_attention(spec, source, "scale * 1.01 in every layer", [](AttentionSpec& a) {
    a.scale *= 1.01;
    return true;
  });
}

std::optional<int64_t> layer_with_experts(const ModelSpec& spec) {
  return middle_layer(spec, [&](int64_t i) { return layer_of(spec, i).ffn && layer_of(spec, i).ffn->moe; });
}

Result expert_scale(const ModelSpec& spec, const TensorSource& source) {
  return change_tensor(spec, source, layer_with_experts(spec), TensorKind::expert_scale,
                       [](std::vector<float>& v) {
                         const bool ones = std::all_of(v.begin(), v.end(), [](float x) { return x == 1.0F; });
                         fill_with(v, ones ? 1.05F : 1.0F);
                       });
}

Result fewer_experts(const ModelSpec& spec, const TensorSource& source) {
  return change_spec(spec, source, "top_k - 1 in every layer", [](ModelSpec& changed) {
    bool any = false;
    for (LayerSpec& layer : changed.layers) {
      if (!layer.ffn || !layer.ffn->moe || layer.ffn->moe->top_k < 2) continue;
      layer.ffn->moe->top_k -= 1;
      any = true;
    }
    return any;
  });
}

Result no_softcap(const ModelSpec& spec, const TensorSource& source) {
  return change_spec(spec, source, "the head", [](ModelSpec& changed) {
    const bool had = changed.logit_softcap != 0;
    changed.logit_softcap = 0;
    return had;
  });
}

Result norm_offset(const ModelSpec& spec, const TensorSource& source) {
  const auto layer = middle_layer(spec, [&](int64_t i) { return layer_of(spec, i).attention.has_value(); });
  return change_tensor(spec, source, layer, TensorKind::attention_norm, [](std::vector<float>& v) {
    for (float& x : v) x += 1.0F;
  });
}

Result no_query_norm(const ModelSpec& spec, const TensorSource& source) {
  const auto layer = middle_layer(
      spec, [&](int64_t i) { return layer_of(spec, i).attention && layer_of(spec, i).attention->q_norm; });
  return change_tensor(spec, source, layer, TensorKind::query_norm,
                       [](std::vector<float>& v) { fill_with(v, 1.0F); });
}

Result other_activation(const ModelSpec& spec, const TensorSource& source) {
  return change_spec(spec, source, "every layer", [](ModelSpec& changed) {
    bool any = false;
    for (LayerSpec& layer : changed.layers) {
      if (!layer.ffn) continue;
      layer.ffn->activation =
          layer.ffn->activation == Activation::silu ? Activation::gelu_tanh : Activation::silu;
      any = true;
    }
    return any;
  });
}

Result rounded_embed_scale(const ModelSpec& spec, const TensorSource& source) {
  return change_spec(spec, source, "the embedding", [](ModelSpec& changed) {
    const auto exact = static_cast<float>(changed.embed_scale);
    const float rounded = bf16_to_float(float_to_bf16(exact));
    changed.embed_scale = static_cast<double>(rounded);
    return rounded != exact;
  });
}

// The top exponent bit of one weight: of a float itself, of a block's scale else.
void flip_exponent(DType dtype, std::span<std::byte> bytes) {
  const DTypeInfo& format = dtype_info(dtype);
  const size_t middle = bytes.size() / format.block_bytes / 2 * format.block_bytes;
  size_t high = middle + format.block_bytes - 1;  // floats: their last byte holds sign and exponent
  switch (dtype) {
    case DType::q2_k: high = middle + offsetof(BlockQ2_K, d) + 1; break;
    case DType::q3_k: high = middle + offsetof(BlockQ3_K, d) + 1; break;
    case DType::q6_k: high = middle + offsetof(BlockQ6_K, d) + 1; break;
    default:
      if (is_quantised(dtype)) high = middle + 1;  // the other formats begin with their scale
  }
  bytes[high] ^= std::byte{0x40};
}

Result flipped_bit(const ModelSpec& spec, const TensorSource& source) {
  const auto layer = middle_layer(spec, [&](int64_t i) { return layer_of(spec, i).ffn.has_value(); });
  if (!layer) return std::nullopt;
  const Slot slot{TensorKind::down, *layer};
  auto patched = std::make_shared<PatchedTensors>(source);
  patched->change_bytes(slot, flip_exponent);
  return Mutant{spec, patched, slot_name(slot)};
}

}  // namespace

const std::vector<Mutation>& mutations() {
  static const std::vector<Mutation> all = {
      {"layer_scalar := 1", scalar_is_one, "no layer scalar other than 1"},
      {"per-layer embedding off", no_ple, "no per-layer embeddings"},
      {"window + 1", wider_window, "no layer with a window", true},
      {"window - 1", narrower_window, "no layer with a window", true},
      {"rope theta", theta, "no attention"},
      {"rope scaling off", plain_rope, "no layer whose rope is other than plain"},
      {"borrower's donor", other_donor, "no borrower with another owner of the same shape"},
      {"k and v swapped", swapped_kv, "no layer with both projections"},
      {"v norm off", no_v_norm, "no v norm"},
      {"q norm := 1", no_query_norm, "no q norm"},
      {"attention scale", attention_scale, "no attention"},
      {"expert scale", expert_scale, "no experts"},
      {"one expert fewer", fewer_experts, "no experts"},
      {"softcap off", no_softcap, "no softcap"},
      {"norm offset + 1", norm_offset, "no attention"},
      {"other activation", other_activation, "no feed-forward layer"},
      {"embedding factor in bf16", rounded_embed_scale, "no embedding factor that bf16 would round"},
      {"one exponent bit of a weight", flipped_bit, "no feed-forward layer"},
  };
  return all;
}

}  // namespace lapidary
