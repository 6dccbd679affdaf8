#include <boost/json.hpp>

#include "cli/inspect.h"
#include "spec/footprint.h"
#include "text/utf8.h"

namespace lapidary {
namespace json = boost::json;
namespace {

json::object rope_json(const RopeSpec& rope) {
  json::object out{{"kind", rope_kind_name(rope.kind)}, {"theta", rope.theta}};
  if (rope.kind == RopeKind::proportional) out["partial_rotary_factor"] = rope.partial_rotary_factor;
  if (rope.kind == RopeKind::llama3) {
    out["factor"] = rope.factor;
    out["low_freq_factor"] = rope.low_freq_factor;
    out["high_freq_factor"] = rope.high_freq_factor;
    out["original_max_position"] = rope.original_max_position;
  }
  return out;
}

json::object layer_json(const LayerSpec& layer, int64_t index) {
  json::object out{{"index", index}};
  if (layer.attention) {
    const AttentionSpec& a = *layer.attention;
    out["kind"] = a.window > 0 ? "sliding" : "global";
    out["window"] = a.window;
    out["heads"] = a.n_heads;
    out["kv_heads"] = a.n_kv_heads;
    out["head_dim"] = a.head_dim;
    out["rope"] = rope_json(a.rope);
    out["scale"] = a.scale;
    out["k_eq_v"] = a.k_eq_v;
    out["kv_owner"] = a.kv_owner;
    out["owns_kv"] = layer.owns_kv(index);
  }
  if (layer.ffn) {
    out["d_ff"] = layer.ffn->d_ff;
    out["activation"] = activation_name(layer.ffn->activation);
    if (const auto& moe = layer.ffn->moe) {
      out["experts"] = json::object{{"count", moe->n_experts}, {"top_k", moe->top_k}, {"d_ff", moe->d_ff}};
    }
  }
  out["ple"] = layer.ple;
  out["layer_scalar"] = layer.layer_scalar;
  return out;
}

json::object parameters_json(const ModelSpec& spec) {
  const ParameterCount count = count_parameters(spec);
  return {{"resident", count.resident},
          {"touched_per_token", count.touched_per_token},
          {"matrices_resident", count.matrices_resident},
          {"matrices_touched_per_token", count.matrices_touched_per_token}};
}

json::object kv_json(const ModelSpec& spec, const std::string& dtype) {
  const KvTypes types = kv_types_from_name(dtype, "--kv-dtype");
  const KvBytes kv = kv_bytes_per_token(spec, types);
  json::array sizes;
  for (const int64_t length : kv_lengths(spec)) {
    sizes.push_back(json::object{{"positions", length}, {"bytes", kv_bytes_needed(spec, length, types)}});
  }
  return {{"dtype", dtype},
          {"bytes_per_token_below_window", kv.global + kv.sliding},
          {"bytes_per_token_past_window", kv.global},
          {"global_bytes_per_token", kv.global},
          {"sliding_bytes_per_token", kv.sliding},
          {"read_bytes_per_token_below_window", kv.read_global + kv.read_sliding},
          {"read_bytes_per_token_past_window", kv.read_global},
          {"sequence", sizes}};
}

json::value id_json(const std::optional<int64_t>& id) {
  return id ? json::value(*id) : json::value(nullptr);
}

json::object text_json(const TextAssets& text) {
  const TokenizerFacts facts = tokenizer_facts(text);
  json::object tokenizer{{"source", facts.source}, {"kind", facts.kind}, {"vocab_size", facts.vocab_size}};
  return {
      {"tokenizer", tokenizer},
      {"bos_id", id_json(text.bos_id)},
      {"eos_id", id_json(text.eos_id)},
      {"pad_id", id_json(text.pad_id)},
      {"stop_ids", json::value_from(text.stop_ids)},
      {"chat_template", text.chat_template ? json::value(text.chat_template_source) : json::value(nullptr)}};
}

}  // namespace

json::object inspect_json(const Checkpoint& checkpoint, const InspectOptions& options) {
  const ModelSpec& spec = checkpoint.spec;
  json::array layers, skipped;
  for (int64_t i = 0; i < spec.n_layers(); ++i)
    layers.push_back(layer_json(spec.layers[static_cast<size_t>(i)], i));
  for (const SkippedTensor& tensor : checkpoint.skipped) {
    skipped.push_back(json::object{{"name", tensor.name}, {"reason", tensor.reason}});
  }
  return {{"model", utf8_lossy(checkpoint.path.string())},
          {"format", checkpoint.format},
          {"family", checkpoint.family},
          {"file_bytes", checkpoint.file_bytes},
          {"vocab_size", spec.vocab_size},
          {"d_model", spec.d_model},
          {"n_layers", spec.n_layers()},
          {"max_position", spec.max_position},
          {"tied_head", spec.tied_head},
          {"logit_softcap", spec.logit_softcap},
          {"ple_dim", spec.ple_dim},
          {"pattern", layer_pattern(spec)},
          {"layers", layers},
          {"parameters", parameters_json(spec)},
          {"kv", kv_json(spec, options.kv_dtype)},
          {"dtype_bytes", json::value_from(checkpoint.dtype_bytes)},
          {"text", text_json(checkpoint.text)},
          {"skipped", skipped}};
}

}  // namespace lapidary
