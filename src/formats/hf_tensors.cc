#include "formats/hf_tensors.h"

#include <array>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/quote.h"

namespace lapidary {
namespace {

constexpr std::array<std::string_view, 4> kPrefixes = {"model.", "model.language_model.",
                                                       "language_model.model.", ""};
constexpr std::array<std::string_view, 2> kHeads = {"lm_head.weight", "language_model.lm_head.weight"};

std::string_view model_part(TensorKind kind) {
  switch (kind) {
    case TensorKind::token_embedding: return "embed_tokens.weight";
    case TensorKind::output_norm: return "norm.weight";
    case TensorKind::output_head: return "lm_head.weight";
    case TensorKind::ple_embedding: return "embed_tokens_per_layer.weight";
    case TensorKind::ple_projection: return "per_layer_model_projection.weight";
    case TensorKind::ple_norm: return "per_layer_projection_norm.weight";
    default: fail(ErrorCode::internal, "a layer's tensor has no name without its layer");
  }
}

std::string_view layer_part(TensorKind kind, bool gemma) {
  switch (kind) {
    case TensorKind::attention_norm: return "input_layernorm.weight";
    case TensorKind::query: return "self_attn.q_proj.weight";
    case TensorKind::key: return "self_attn.k_proj.weight";
    case TensorKind::value: return "self_attn.v_proj.weight";
    case TensorKind::attention_output: return "self_attn.o_proj.weight";
    case TensorKind::query_norm: return "self_attn.q_norm.weight";
    case TensorKind::key_norm: return "self_attn.k_norm.weight";
    case TensorKind::post_attention_norm: return "post_attention_layernorm.weight";
    // Llama's norm before the FFN bears the name that Gemma gives to the norm after attention.
    case TensorKind::ffn_norm:
      return gemma ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight";
    case TensorKind::gate: return "mlp.gate_proj.weight";
    case TensorKind::up: return "mlp.up_proj.weight";
    case TensorKind::down: return "mlp.down_proj.weight";
    case TensorKind::post_ffn_norm: return "post_feedforward_layernorm.weight";
    case TensorKind::router: return "router.proj.weight";
    case TensorKind::router_scale: return "router.scale";
    case TensorKind::expert_gate_up: return "experts.gate_up_proj";
    case TensorKind::expert_down: return "experts.down_proj";
    case TensorKind::expert_scale: return "router.per_expert_scale";
    case TensorKind::dense_post_norm: return "post_feedforward_layernorm_1.weight";
    case TensorKind::expert_pre_norm: return "pre_feedforward_layernorm_2.weight";
    case TensorKind::expert_post_norm: return "post_feedforward_layernorm_2.weight";
    case TensorKind::ple_gate: return "per_layer_input_gate.weight";
    case TensorKind::ple_output: return "per_layer_projection.weight";
    case TensorKind::ple_post_norm: return "post_per_layer_input_norm.weight";
    case TensorKind::layer_scalar: return "layer_scalar";
    default: fail(ErrorCode::internal, "a model's tensor has no place in a layer");
  }
}

// Weights that multiply a normalised stream.
bool is_norm(TensorKind kind) {
  switch (kind) {
    case TensorKind::attention_norm:
    case TensorKind::query_norm:
    case TensorKind::key_norm:
    case TensorKind::post_attention_norm:
    case TensorKind::ffn_norm:
    case TensorKind::post_ffn_norm:
    case TensorKind::output_norm: return true;
    default: return false;
  }
}

std::string_view find_prefix(const std::map<std::string, HfTensor>& tensors, const std::string& folder) {
  std::optional<std::string_view> found;
  for (const std::string_view prefix : kPrefixes) {
    if (tensors.count(fmt::format("{}embed_tokens.weight", prefix)) == 0) continue;
    ensure(!found, ErrorCode::data,
           "{}: expected one token embedding, got \"{}embed_tokens.weight\" and \"{}embed_tokens.weight\"",
           folder, found.value_or(""), prefix);
    found = prefix;
  }
  ensure(found.has_value(), ErrorCode::data,
         "{}: tensor \"embed_tokens.weight\": expected it behind one of the prefixes \"model.\", "
         "\"model.language_model.\", "
         "\"language_model.model.\" or none, got none of these",
         folder);
  return *found;
}

// K/V tensors that a checkpoint still carries for layers that borrow: name → reason.
std::map<std::string, std::string> borrowers_tensors(const ModelSpec& spec, std::string_view prefix) {
  std::map<std::string, std::string> out;
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (!layer.attention || layer.owns_kv(i)) continue;
    for (const std::string_view part : {"k_proj", "v_proj", "k_norm"}) {
      out[fmt::format("{}layers.{}.self_attn.{}.weight", prefix, i, part)] =
          fmt::format("k/v of a layer that borrows KV (from layer {})", layer.attention->kv_owner);
    }
  }
  return out;
}

struct Tower {
  std::string_view start, reason;
};

constexpr Tower kTowers[] = {
    {"vision_tower.", "vision tower"},
    {"vision_embedder.", "vision embedder"},
    {"audio_tower.", "audio tower"},
    {"embed_vision.", "projection of image embeddings"},
    {"embed_audio.", "projection of audio embeddings"},
    {"multi_modal_projector.", "projection of image embeddings"},
};

// Why a tensor of no slot may stay unused; nothing when it must not.
std::optional<std::string> reason_to_skip(std::string_view name, const ModelSpec& spec,
                                          std::string_view family) {
  for (const std::string_view head : kHeads) {
    // Tied models are sometimes saved with their head; the reference ties it again on loading and never looks
    // at the copy.
    if (spec.tied_head && name == head) return "copy of the tied embedding";
  }
  if (name.ends_with("rotary_emb.inv_freq")) return "rotary frequencies are computed from the config";
  if (!family.starts_with("gemma")) return std::nullopt;
  const std::string_view inner = name.starts_with("model.") ? name.substr(6) : name;
  for (const Tower& tower : kTowers) {
    if (inner.starts_with(tower.start)) return std::string(tower.reason);
  }
  return std::nullopt;
}

std::string full_name(const Slot& slot, std::string_view prefix, std::string_view family,
                      const std::map<std::string, HfTensor>& tensors) {
  if (slot.kind != TensorKind::output_head) return fmt::format("{}{}", prefix, hf_name(slot, family));
  for (const std::string_view head : kHeads) {
    if (tensors.count(std::string(head)) != 0) return std::string(head);
  }
  return std::string(kHeads[0]);
}

}  // namespace

std::string hf_name(const Slot& slot, std::string_view family) {
  if (slot.layer < 0) return std::string(model_part(slot.kind));
  return fmt::format("layers.{}.{}", slot.layer, layer_part(slot.kind, family.starts_with("gemma")));
}

std::string hf_saved_name(const Slot& slot, std::string_view family) {
  if (slot.kind == TensorKind::output_head) return std::string(kHeads[0]);
  return fmt::format("{}{}", kPrefixes[0], hf_name(slot, family));
}

bool hf_norm_has_offset(TensorKind kind, std::string_view family) {
  return family == "gemma3" && is_norm(kind);
}

std::vector<SkippedTensor> bind_hf_tensors(const ModelSpec& spec, const std::string& family,
                                           const std::map<std::string, HfTensor>& tensors,
                                           const std::string& folder, BoundTensors& out) {
  const std::string_view prefix = find_prefix(tensors, folder);
  std::set<std::string> used;
  for_each_tensor(spec, [&](const TensorInfo& info) {
    const std::string name = full_name(info.slot, prefix, family, tensors);
    const auto it = tensors.find(name);
    if (it == tensors.end()) {
      ensure(!info.required, ErrorCode::data, "{}: tensor \"{}\": expected {} for {}, got no such tensor",
             folder, name, shape_text(info.shape), slot_name(info.slot));
      return;
    }
    const Remake remake = hf_norm_has_offset(info.slot.kind, family) ? Remake::add_one : Remake::none;
    out.bind(it->second.file, info, {name, it->second.view, remake, 0, {}});
    used.insert(name);
  });
  const auto borrowed = borrowers_tensors(spec, prefix);
  std::vector<SkippedTensor> skipped;
  for (const auto& [name, tensor] : tensors) {
    if (used.count(name) != 0) continue;
    const auto known = borrowed.find(name);
    const auto reason =
        known != borrowed.end() ? std::optional(known->second) : reason_to_skip(name, spec, family);
    ensure(reason.has_value(), ErrorCode::data,
           "{}: tensor {}: expected no such tensor in this model, got {} of {}", tensor.file, quoted(name),
           shape_text(tensor.view.shape), dtype_name(tensor.view.dtype));
    skipped.push_back({name, *reason});
  }
  return skipped;
}

}  // namespace lapidary
