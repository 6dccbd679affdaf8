#include "cli/inspect.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/error.h"

namespace lapidary {
namespace {

// Alike: everything but the index, which an owner's kv_owner repeats.
bool alike(const ModelSpec& spec, int64_t a, int64_t b) {
  LayerSpec left = spec.layers[static_cast<size_t>(a)], right = spec.layers[static_cast<size_t>(b)];
  if (left.owns_kv(a) && right.owns_kv(b)) right.attention->kv_owner = a;
  return left == right;
}

char layer_letter(const ModelSpec& spec, int64_t index) {
  const LayerSpec& layer = spec.layers[static_cast<size_t>(index)];
  if (!layer.attention) return '-';
  const bool owner = layer.owns_kv(index);
  if (layer.attention->window > 0) return owner ? 'S' : 's';
  return owner ? 'F' : 'f';
}

size_t repeats(std::string_view text, size_t at, size_t length) {
  size_t count = 1;
  while (text.substr(at + count * length, length) == text.substr(at, length)) ++count;
  return count;
}

void facts_from_json(const TextAssets& text, TokenizerFacts& facts) {
  boost::system::error_code problem;
  const boost::json::value document = boost::json::parse(text.tokenizer_json, problem);
  ensure(!problem && document.is_object(), ErrorCode::data, "tokenizer.json is no JSON object");
  const auto* model = document.get_object().if_contains("model");
  ensure(model != nullptr && model->is_object(), ErrorCode::data, "tokenizer.json has no \"model\" object");
  if (const auto* type = model->get_object().if_contains("type"); type != nullptr && type->is_string()) {
    facts.kind = type->get_string();
  }
  int64_t highest = -1;
  const auto* vocabulary = model->get_object().if_contains("vocab");
  if (vocabulary != nullptr && vocabulary->is_object()) {
    for (const auto& [spelled, id] : vocabulary->get_object()) {
      if (id.is_int64()) highest = std::max(highest, id.get_int64());
    }
  }
  const auto* added = document.get_object().if_contains("added_tokens");
  if (added != nullptr && added->is_array()) {
    for (const auto& token : added->get_array()) {
      const auto* entry = token.if_object();
      const auto* id = entry != nullptr ? entry->if_contains("id") : nullptr;
      const auto* content = entry != nullptr ? entry->if_contains("content") : nullptr;
      if (id == nullptr || content == nullptr || !id->is_int64() || !content->is_string()) continue;
      highest = std::max(highest, id->get_int64());
      for (size_t i = 0; i < text.stop_ids.size(); ++i) {
        if (text.stop_ids[i] == id->get_int64()) facts.spelled_stops[i] = std::string(content->get_string());
      }
    }
  }
  facts.vocab_size = highest + 1;
}

void facts_from_gguf(const TextAssets& text, TokenizerFacts& facts) {
  const GgufFile& file = *text.gguf;
  if (!file.has("tokenizer.ggml.tokens")) return;
  const auto& tokens = file.get_strings("tokenizer.ggml.tokens");
  facts.kind = file.get_string("tokenizer.ggml.model");
  if (file.has("tokenizer.ggml.pre"))
    facts.kind += fmt::format(" ({})", file.get_string("tokenizer.ggml.pre"));
  facts.vocab_size = static_cast<int64_t>(tokens.size());
  for (size_t i = 0; i < text.stop_ids.size(); ++i) {
    const auto id = static_cast<size_t>(text.stop_ids[i]);
    if (id < tokens.size()) facts.spelled_stops[i] = std::string(tokens[id]);
  }
}

}  // namespace

std::vector<LayerGroup> group_layers(const ModelSpec& spec) {
  std::vector<LayerGroup> groups;
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const LayerGroup& g) { return alike(spec, g.first, i); });
    if (group == groups.end()) group = groups.insert(groups.end(), LayerGroup{{}, i});
    group->layers.push_back(i);
  }
  return groups;
}

std::string layer_ranges(const std::vector<int64_t>& layers) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < layers.size();) {
    size_t j = i;
    while (j + 1 < layers.size() && layers[j + 1] == layers[j] + 1) ++j;
    parts.push_back(i == j ? std::to_string(layers[i]) : fmt::format("{}-{}", layers[i], layers[j]));
    i = j + 1;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string layer_pattern(const ModelSpec& spec) {
  std::string letters;
  for (int64_t i = 0; i < spec.n_layers(); ++i) letters += layer_letter(spec, i);
  std::vector<std::string> parts;
  for (size_t at = 0; at < letters.size();) {
    // The piece whose repetition covers most; a shorter piece wins a tie.
    size_t best_length = 1, best_count = repeats(letters, at, 1);
    for (size_t length = 2; at + 2 * length <= letters.size(); ++length) {
      const size_t count = repeats(letters, at, length);
      if (count > 1 && length * count > best_length * best_count) {
        best_length = length;
        best_count = count;
      }
    }
    const std::string piece = letters.substr(at, best_length);
    parts.push_back(best_count == 1 ? piece : fmt::format("{} ×{}", piece, best_count));
    at += best_length * best_count;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

TokenizerFacts tokenizer_facts(const TextAssets& text) {
  TokenizerFacts facts;
  facts.source = "none";
  facts.spelled_stops.resize(text.stop_ids.size());
  if (!text.tokenizer_json.empty()) {
    facts.source = "tokenizer.json";
    facts_from_json(text, facts);
  } else if (text.gguf != nullptr) {
    facts_from_gguf(text, facts);
    if (facts.vocab_size > 0) facts.source = "GGUF metadata";
  }
  return facts;
}

std::vector<int64_t> kv_lengths(const ModelSpec& spec) {
  std::vector<int64_t> lengths;
  for (int64_t length = 1024; length < spec.max_position; length *= 4) lengths.push_back(length);
  lengths.push_back(spec.max_position);
  return lengths;
}

std::vector<SkippedGroup> group_skipped(const std::vector<SkippedTensor>& skipped) {
  std::vector<SkippedGroup> groups;
  for (const SkippedTensor& tensor : skipped) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const SkippedGroup& g) { return g.reason == tensor.reason; });
    if (group == groups.end()) group = groups.insert(groups.end(), SkippedGroup{tensor.reason, {}});
    group->names.push_back(tensor.name);
  }
  return groups;
}

}  // namespace lapidary
