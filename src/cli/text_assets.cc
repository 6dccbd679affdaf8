#include "cli/text_assets.h"

#include "base/error.h"

namespace lapidary {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";

std::string key(std::string_view name) {
  return std::string(kPrefix).append(name);
}

std::optional<int64_t> optional_int(const GgufFile& file, std::string_view name) {
  return file.has(key(name)) ? std::optional(file.get_int(key(name))) : std::nullopt;
}

std::optional<bool> optional_bool(const GgufFile& file, std::string_view name) {
  return file.has(key(name)) ? std::optional(file.get_bool(key(name))) : std::nullopt;
}

}  // namespace

bool has_gguf_vocabulary(const GgufFile& file) {
  return file.has(key("model")) && file.get_string(key("model")) != kNoVocabulary;
}

GgufVocabulary gguf_vocabulary(const GgufFile& file) {
  GgufVocabulary vocabulary;
  vocabulary.model = file.get_string(key("model"));
  if (file.has(key("pre"))) vocabulary.pre = file.get_string(key("pre"));
  vocabulary.tokens = file.get_strings(key("tokens"));
  if (file.has(key("token_type"))) vocabulary.types = file.get_ints(key("token_type"));
  if (file.has(key("scores"))) vocabulary.scores = file.get_floats(key("scores"));
  if (file.has(key("merges"))) vocabulary.merges = file.get_strings(key("merges"));
  vocabulary.bos_id = optional_int(file, "bos_token_id");
  vocabulary.eos_id = optional_int(file, "eos_token_id");
  vocabulary.unk_id = optional_int(file, "unknown_token_id");
  vocabulary.pad_id = optional_int(file, "padding_token_id");
  vocabulary.add_bos = optional_bool(file, "add_bos_token");
  vocabulary.add_space_prefix = optional_bool(file, "add_space_prefix");
  return vocabulary;
}

bool has_tokenizer(const TextAssets& text) {
  return text.gguf != nullptr ? text.gguf->has(key("model")) : !text.tokenizer_json.empty();
}

Tokenizer make_tokenizer(const TextAssets& text) {
  if (text.gguf != nullptr) {
    ensure(has_gguf_vocabulary(*text.gguf), ErrorCode::not_found,
           "{}: this model has no tokenizer; only commands that take token ids can use it", text.gguf->name);
    GgufVocabulary vocabulary = gguf_vocabulary(*text.gguf);
    const size_t merges = text.merge_ids.size() / sizeof(MergeIds);
    if (merges > 0)
      vocabulary.known_merges = {reinterpret_cast<const MergeIds*>(text.merge_ids.data()), merges};
    return Tokenizer::from_gguf(vocabulary);
  }
  ensure(!text.tokenizer_json.empty(), ErrorCode::not_found,
         "this model has no tokenizer.json; only commands that take token ids can use it");
  return Tokenizer::from_json(text.tokenizer_json, text.bos_id, text.tokenizer_config_json);
}

}  // namespace lapidary
