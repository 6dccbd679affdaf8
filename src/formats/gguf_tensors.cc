// GGUF tensor names ↔ slots.
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/quote.h"
#include "formats/gguf_keys.h"
#include "formats/import_gguf.h"

namespace lapidary {
namespace {

std::string_view part_name(TensorKind kind) {
  switch (kind) {
    case TensorKind::token_embedding: return "token_embd.weight";
    case TensorKind::output_norm: return "output_norm.weight";
    case TensorKind::output_head: return "output.weight";
    case TensorKind::ple_embedding: return "per_layer_token_embd.weight";
    case TensorKind::ple_projection: return "per_layer_model_proj.weight";
    case TensorKind::ple_norm: return "per_layer_proj_norm.weight";
    case TensorKind::attention_norm: return "attn_norm.weight";
    case TensorKind::query: return "attn_q.weight";
    case TensorKind::key: return "attn_k.weight";
    case TensorKind::value: return "attn_v.weight";
    case TensorKind::attention_output: return "attn_output.weight";
    case TensorKind::query_norm: return "attn_q_norm.weight";
    case TensorKind::key_norm: return "attn_k_norm.weight";
    case TensorKind::post_attention_norm: return "post_attention_norm.weight";
    case TensorKind::ffn_norm: return "ffn_norm.weight";
    case TensorKind::gate: return "ffn_gate.weight";
    case TensorKind::up: return "ffn_up.weight";
    case TensorKind::down: return "ffn_down.weight";
    case TensorKind::post_ffn_norm: return "post_ffw_norm.weight";
    case TensorKind::router: return "ffn_gate_inp.weight";
    case TensorKind::router_scale: return "ffn_gate_inp.scale";
    case TensorKind::expert_gate_up: return "ffn_gate_up_exps.weight";
    case TensorKind::expert_down: return "ffn_down_exps.weight";
    case TensorKind::expert_scale: return "ffn_down_exps.scale";
    case TensorKind::dense_post_norm: return "post_ffw_norm_1.weight";
    case TensorKind::expert_pre_norm: return "pre_ffw_norm_2.weight";
    case TensorKind::expert_post_norm: return "post_ffw_norm_2.weight";
    case TensorKind::ple_gate: return "inp_gate.weight";
    case TensorKind::ple_output: return "proj.weight";
    case TensorKind::ple_post_norm: return "post_norm.weight";
    case TensorKind::layer_scalar: return "layer_output_scale.weight";
  }
  fail(ErrorCode::internal, "unknown tensor kind {}", static_cast<int>(kind));
}

class Binder {
 public:
  Binder(const GgufModel& model, const GgufFile& file, BoundTensors& out)
      : model_(model), file_(file), out_(out) {}

  std::vector<SkippedTensor> run() {
    for_each_tensor(model_.spec, [&](const TensorInfo& info) { bind(info); });
    return skipped();
  }

 private:
  const TensorView* find(const std::string& name) {
    const auto it = file_.tensors.find(name);
    if (it == file_.tensors.end()) return nullptr;
    used_.insert(name);
    return &it->second;
  }

  const AttentionSpec& attention(const Slot& slot) const {
    return *model_.spec.layers[static_cast<size_t>(slot.layer)].attention;
  }

  void bind(const TensorInfo& info) {
    const std::string name = gguf_name(info.slot);
    std::optional<Binding> binding;
    if (const TensorView* view = find(name)) {
      binding = Binding{name, *view, Remake::none, 0, {}};
    } else {
      binding = bind_otherwise(info);
    }
    if (!binding) {
      ensure(!info.required, ErrorCode::data, "{}: tensor \"{}\": expected {} for {}, got no such tensor",
             file_.name, name, shape_text(info.shape), slot_name(info.slot));
      return;
    }
    binding->heads = gguf_paired_heads(model_.spec, info.slot, model_.family);
    if (binding->heads != 0) binding->remake = Remake::unpermute;
    out_.bind(file_.name, info, std::move(*binding));
  }

  // The spellings that split or join tensors otherwise than the table does.
  std::optional<Binding> bind_otherwise(const TensorInfo& info) {
    switch (info.slot.kind) {
      case TensorKind::query:
      case TensorKind::key:
      case TensorKind::value: return slice_qkv(info);
      case TensorKind::expert_gate_up: return join_experts(info);
      default: return std::nullopt;
    }
  }

  // attn_qkv [(H + 2K) * Hd, D]: rows of q, then of k, then of v.
  std::optional<Binding> slice_qkv(const TensorInfo& info) {
    const std::string name = fmt::format("blk.{}.attn_qkv.weight", info.slot.layer);
    const TensorView* fused = find(name);
    if (fused == nullptr) return std::nullopt;
    const AttentionSpec& a = attention(info.slot);
    const int64_t q = a.n_heads * a.head_dim, kv = a.n_kv_heads * a.head_dim;
    check_stored(file_.name, name, info, *fused, {q + 2 * kv, model_.spec.d_model});
    const int64_t first = info.slot.kind == TensorKind::query ? 0
                          : info.slot.kind == TensorKind::key ? q
                                                              : q + kv;
    const size_t row = fused->row(0).size(), rows = static_cast<size_t>(info.shape[0]);
    const auto bytes = fused->bytes.subspan(static_cast<size_t>(first) * row, rows * row);
    return Binding{name, {fused->dtype, info.shape, bytes}, Remake::none, 0, {}};
  }

  std::optional<Binding> join_experts(const TensorInfo& info) {
    const std::string gate_name = fmt::format("blk.{}.ffn_gate_exps.weight", info.slot.layer);
    const TensorView* gate = find(gate_name);
    const TensorView* up = find(fmt::format("blk.{}.ffn_up_exps.weight", info.slot.layer));
    if (gate == nullptr || up == nullptr) return std::nullopt;
    return Binding{gate_name, *gate, Remake::join_experts, 0, *up};
  }

  // rope_freqs became part of the spec; borrowers may carry K/V that nothing reads.
  std::vector<SkippedTensor> skipped() const {
    std::map<std::string, std::string> reasons;
    for (int64_t i = 0; i < model_.spec.n_layers(); ++i) {
      const LayerSpec& layer = model_.spec.layers[static_cast<size_t>(i)];
      if (!layer.attention || layer.owns_kv(i)) continue;
      for (const std::string_view part : {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"}) {
        reasons[fmt::format("blk.{}.{}", i, part)] =
            fmt::format("k/v of a layer that borrows KV (from layer {})", layer.attention->kv_owner);
      }
    }
    std::vector<SkippedTensor> out;
    for (const auto& [name, view] : file_.tensors) {
      if (used_.count(name) != 0 || (name == gguf_key::rope_freqs && model_uses_divisors())) continue;
      const auto reason = reasons.find(name);
      ensure(reason != reasons.end(), ErrorCode::data,
             "{}: tensor {}: expected no such tensor in this model, got {} of {}", file_.name, quoted(name),
             shape_text(view.shape), dtype_name(view.dtype));
      out.push_back({name, reason->second});
    }
    return out;
  }

  bool model_uses_divisors() const {
    for (const LayerSpec& layer : model_.spec.layers) {
      if (layer.attention && layer.attention->rope.kind == RopeKind::divisors) return true;
    }
    return false;
  }

  const GgufModel& model_;
  const GgufFile& file_;
  BoundTensors& out_;
  std::set<std::string> used_;
};

}  // namespace

std::string gguf_name(const Slot& slot) {
  const std::string_view part = part_name(slot.kind);
  return slot.layer < 0 ? std::string(part) : fmt::format("blk.{}.{}", slot.layer, part);
}

int64_t gguf_paired_heads(const ModelSpec& spec, const Slot& slot, std::string_view family) {
  if (family != "llama") return 0;
  if (slot.kind != TensorKind::query && slot.kind != TensorKind::key) return 0;
  const AttentionSpec& a = *spec.layers[static_cast<size_t>(slot.layer)].attention;
  return slot.kind == TensorKind::query ? a.n_heads : a.n_kv_heads;
}

std::vector<SkippedTensor> bind_gguf_tensors(const GgufModel& model, const GgufFile& file,
                                             BoundTensors& out) {
  return Binder(model, file, out).run();
}

}  // namespace lapidary
