#include <fmt/ranges.h>

#include <cmath>

#include "base/error.h"
#include "cli/inspect.h"
#include "cli/numbers.h"
#include "cli/table.h"
#include "formats/artifact.h"
#include "spec/footprint.h"

namespace lapidary {
namespace {

std::string rope_text(const RopeSpec& rope) {
  const bool whole = rope.theta == std::floor(rope.theta) && rope.theta < 1e15;
  std::string text = whole ? grouped(static_cast<int64_t>(rope.theta)) : fmt::format("{:g}", rope.theta);
  switch (rope.kind) {
    case RopeKind::plain: return text;
    case RopeKind::proportional: return fmt::format("{} proportional {:g}", text, rope.partial_rotary_factor);
    case RopeKind::llama3: return fmt::format("{} llama3 ×{:g}", text, rope.factor);
    case RopeKind::divisors: return fmt::format("{} with {} divisors", text, rope.divisors.size());
  }
  fail(ErrorCode::internal, "rope kind {} has no text", static_cast<int>(rope.kind));
}

std::string ffn_text(const LayerSpec& layer) {
  return layer.ffn ? grouped(layer.ffn->d_ff) : "-";
}

std::string experts_text(const LayerSpec& layer) {
  if (!layer.ffn || !layer.ffn->moe) return "";
  const MoeSpec& moe = *layer.ffn->moe;
  return fmt::format("{}×{} top {}", moe.n_experts, moe.d_ff, moe.top_k);
}

std::string extras_text(const LayerSpec& layer) {
  std::vector<std::string> parts;
  if (layer.attention && layer.attention->k_eq_v) parts.push_back("k=v");
  if (layer.ple) parts.push_back("PLE");
  if (layer.layer_scalar) parts.push_back("scalar");
  return fmt::format("{}", fmt::join(parts, " "));
}

std::vector<std::string> layer_cells(const ModelSpec& spec, const std::string& name, int64_t index) {
  const LayerSpec& layer = spec.layers[static_cast<size_t>(index)];
  std::vector<std::string> cells{name};
  if (layer.attention) {
    const AttentionSpec& a = *layer.attention;
    cells.insert(cells.end(),
                 {a.window > 0 ? "sliding" : "global", a.window > 0 ? grouped(a.window) : "-",
                  std::to_string(a.n_heads), std::to_string(a.n_kv_heads), std::to_string(a.head_dim),
                  rope_text(a.rope), layer.owns_kv(index) ? "own" : fmt::format("reads L{}", a.kv_owner)});
  } else {
    cells.insert(cells.end(), {"no attention", "-", "-", "-", "-", "-", "-"});
  }
  cells.insert(cells.end(), {ffn_text(layer), experts_text(layer), extras_text(layer)});
  return cells;
}

std::string layers_text(const ModelSpec& spec, bool every_layer, const Style& style) {
  std::vector<std::pair<std::string, Align>> columns{
      {"layer", Align::left}, {"kind", Align::left},    {"window", Align::right}, {"heads", Align::right},
      {"kv", Align::right},   {"head", Align::right},   {"rope", Align::left},    {"KV", Align::left},
      {"F", Align::right},    {"experts", Align::left}, {"with", Align::left}};
  if (every_layer) {
    TextTable table(columns);
    for (int64_t i = 0; i < spec.n_layers(); ++i) table.add(layer_cells(spec, std::to_string(i), i));
    return table.text(style);
  }
  columns[0] = {"layers", Align::right};
  columns.emplace_back("which", Align::left);
  TextTable table(columns);
  for (const LayerGroup& group : group_layers(spec)) {
    std::vector<std::string> cells = layer_cells(spec, std::to_string(group.layers.size()), group.first);
    cells.push_back(layer_ranges(group.layers));
    table.add(cells);
  }
  return table.text(style);
}

std::string parameters_text(const ModelSpec& spec, const Style& style) {
  const ParameterCount count = count_parameters(spec);
  TextTable table({{"parameters", Align::left},
                   {"", Align::right},
                   {"", Align::right},
                   {"matrices and tables alone", Align::right}});
  table.add(
      {"resident", grouped(count.resident), count_text(count.resident), grouped(count.matrices_resident)});
  table.add({"touched per token", grouped(count.touched_per_token), count_text(count.touched_per_token),
             grouped(count.matrices_touched_per_token)});
  return table.text(style);
}

std::string kv_text(const ModelSpec& spec, const std::string& dtype, const Style& style) {
  const KvTypes types = kv_types_from_name(dtype, "--kv-dtype");
  const KvBytes kv = kv_bytes_per_token(spec, types);
  TextTable rates({{"KV bytes per token, " + dtype, Align::left},
                   {"stored", Align::right},
                   {"read by each step", Align::right},
                   {"", Align::left}});
  if (kv.sliding == 0 && kv.read_sliding == 0) {
    rates.add({"at any length", grouped(kv.global), grouped(kv.read_global), ""});
  } else {
    rates.add({"below the window", grouped(kv.global + kv.sliding), grouped(kv.read_global + kv.read_sliding),
               fmt::format("{} global + {} sliding stored", grouped(kv.global), grouped(kv.sliding))});
    rates.add({"past the window", grouped(kv.global), grouped(kv.read_global),
               kv.read_global != kv.global ? "borrowers read an owner's KV again" : ""});
  }
  TextTable sizes({{"KV cache of one sequence", Align::left}, {"", Align::right}, {"", Align::right}});
  for (const int64_t length : kv_lengths(spec)) {
    const int64_t bytes = kv_bytes_needed(spec, length, types);
    sizes.add({fmt::format("{} positions", grouped(length)), grouped(bytes), bytes_text(bytes)});
  }
  return rates.text(style) + sizes.text(style);
}

std::string stops_text(const TextAssets& text, const TokenizerFacts& facts) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < text.stop_ids.size(); ++i) {
    const std::string& name = facts.spelled_stops[i];
    parts.push_back(name.empty() ? std::to_string(text.stop_ids[i])
                                 : fmt::format("{} {}", text.stop_ids[i], terminal_safe(name)));
  }
  return parts.empty() ? "none named" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string id_text(const std::optional<int64_t>& id) {
  return id ? std::to_string(*id) : "none";
}

std::string texts_text(const TextAssets& text, const Style& style) {
  const TokenizerFacts facts = tokenizer_facts(text);
  TextTable table({{"text", Align::left}, {"", Align::left}});
  table.add({"tokenizer", facts.vocab_size == 0
                              ? "none"
                              : fmt::format("{}, {} tokens, from {}", terminal_safe(facts.kind),
                                            grouped(facts.vocab_size), facts.source)});
  table.add({"bos, eos, pad",
             fmt::format("{}, {}, {}", id_text(text.bos_id), id_text(text.eos_id), id_text(text.pad_id))});
  table.add({"stop ids", stops_text(text, facts) +
                             (facts.vocab_size == 0 ? "" : "; run adds the vocabulary's ends of turns")});
  table.add(
      {"chat template", text.chat_template
                            ? fmt::format("{}, {} characters", text.chat_template_source,
                                          grouped(static_cast<int64_t>(display_width(*text.chat_template))))
                            : "none"});
  return table.text(style);
}

std::string bytes_section(const Checkpoint& checkpoint, const Style& style) {
  if (checkpoint.dtype_bytes.empty()) return {};
  TextTable table({{"weights", Align::left}, {"", Align::right}, {"", Align::right}});
  for (const auto& [dtype, bytes] : checkpoint.dtype_bytes)
    table.add({dtype, grouped(bytes), bytes_text(bytes)});
  table.add({"files", grouped(checkpoint.file_bytes), bytes_text(checkpoint.file_bytes)});
  std::string out = table.text(style);
  if (checkpoint.skipped.empty()) return out;
  TextTable skipped({{"skipped", Align::right}, {"why", Align::left}, {"such as", Align::left}});
  for (const SkippedGroup& group : group_skipped(checkpoint.skipped)) {
    skipped.add({std::to_string(group.names.size()), group.reason, terminal_safe(group.names.front())});
  }
  return out + skipped.text(style);
}

}  // namespace

std::string inspect_text(const Checkpoint& checkpoint, const InspectOptions& options, const Style& style) {
  const ModelSpec& spec = checkpoint.spec;
  std::string out =
      fmt::format("{}  {}, {}\n", style.bold(checkpoint.path.string()), checkpoint.family, checkpoint.format);
  if (checkpoint.artifact != nullptr)
    out += fmt::format("  packed from {} ({})\n", terminal_safe(checkpoint.artifact->facts.source),
                       terminal_safe(checkpoint.artifact->facts.source_format));
  out += fmt::format("  {} layers, width {}, vocabulary {}, {} positions, {} head{}{}\n", spec.n_layers(),
                     grouped(spec.d_model), grouped(spec.vocab_size), grouped(spec.max_position),
                     spec.tied_head ? "tied" : "untied",
                     spec.logit_softcap > 0 ? fmt::format(", softcap {:g}", spec.logit_softcap) : "",
                     spec.ple_dim > 0 ? fmt::format(", per-layer embeddings of {}", spec.ple_dim) : "");
  out += fmt::format("  pattern {}\n\n", layer_pattern(spec));
  out += layers_text(spec, options.every_layer, style) + "\n";
  out += parameters_text(spec, style) + "\n";
  out += kv_text(spec, options.kv_dtype, style) + "\n";
  const std::string weights = bytes_section(checkpoint, style);
  if (!weights.empty()) out += weights + "\n";
  return out + texts_text(checkpoint.text, style);
}

}  // namespace lapidary
