// What `lapidary inspect` says about a model, from headers and metadata alone: as text and as JSON.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/terminal.h"
#include "formats/checkpoint.h"

namespace lapidary {

// Layers that are alike but for their place.
struct LayerGroup {
  std::vector<int64_t> layers;
  int64_t first = 0;  // stands for all
};
std::vector<LayerGroup> group_layers(const ModelSpec& spec);
std::string layer_ranges(const std::vector<int64_t>& layers);  // "0-4, 6-10, 12"
// One letter a layer, S sliding, F full (global), lower case where it borrows KV, - without attention;
// repeated pieces are counted: "SSSSF ×3, ssssf ×4".
std::string layer_pattern(const ModelSpec& spec);

// The tokenizer as far as it shows without being built.
struct TokenizerFacts {
  std::string source;  // "tokenizer.json", "GGUF metadata", "none"
  std::string kind;    // "BPE", "gpt2 (smollm)"; empty when there is none
  int64_t vocab_size = 0;
  std::vector<std::string> spelled_stops;  // spelling of each stop id, empty where unknown
};
TokenizerFacts tokenizer_facts(const TextAssets& text);

struct InspectOptions {
  bool every_layer = false;
  std::string kv_dtype = "f16";
};
std::string inspect_text(const Checkpoint& checkpoint, const InspectOptions& options, const Style& style);
boost::json::object inspect_json(const Checkpoint& checkpoint, const InspectOptions& options);

// Lengths at which the size of the KV cache is told: powers of four from 1,024 on, and the model's greatest.
std::vector<int64_t> kv_lengths(const ModelSpec& spec);

// Skipped tensors by reason.
struct SkippedGroup {
  std::string reason;
  std::vector<std::string> names;
};
std::vector<SkippedGroup> group_skipped(const std::vector<SkippedTensor>& skipped);

}  // namespace lapidary
