#include "cli/convert_text.h"

#include <algorithm>

#include "base/error.h"
#include "cli/text_assets.h"
#include "formats/gguf_keys.h"
#include "formats/hf_keys.h"
#include "text/vocabulary_json.h"

namespace lapidary {
namespace {

// Texts that exercise what tokenizers differ in: blanks, digits, scripts, emoji, code, and a turn marker.
constexpr std::string_view kProbes[] = {
    "The quick brown fox jumps over the lazy dog.",
    "  two  blanks,\ttabs\t\tand\n\nlines   \n",
    "In 1984 there were 12,345.67 of them; x = y**2 + 3e-8;",
    "Füße, naïve café, Москва, 東京タワー, العربية, हिन्दी",
    "🙂👩‍👩‍👧 \u200d\u00a0…—“quoted”",
    "def f(a: int) -> str:\n    return f\"{a:>8}\"  # it's\n",
    "<|im_start|>user<start_of_turn>model<|turn>user",
};

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

void check_same(const Tokenizer& source, const Tokenizer& made) {
  for (const std::string_view probe : kProbes) {
    ensure(source.prompt_ids(probe) == made.prompt_ids(probe), ErrorCode::internal,
           "the converted tokenizer reads \"{}\" into other ids than the source does", probe);
  }
}

class Converter {
 public:
  Converter(const Checkpoint& source, ModelFormat format) : source_(source), format_(format) {
    if (has_tokenizer()) {
      tokenizer_.emplace(make_tokenizer(source.text));
    } else {
      note("no tokenizer: the source has none");
    }
  }

  TextConversion run() {
    gather_ids();
    if (format_ == ModelFormat::gguf) {
      source_.text.gguf != nullptr ? gguf_to_gguf() : hf_to_gguf();
    } else {
      source_.text.gguf != nullptr ? gguf_to_hf() : hf_to_hf();
    }
    return std::move(out_);
  }

 private:
  void note(std::string text) { out_.notes.push_back(std::move(text)); }

  bool has_tokenizer() const {
    if (source_.text.gguf != nullptr) return has_gguf_vocabulary(*source_.text.gguf);
    return !source_.text.tokenizer_json.empty();
  }

  void gather_ids() {
    HfTokenIds& ids = out_.text.ids;
    ids.bos = source_.text.bos_id;
    ids.eos = source_.text.eos_id;
    ids.pad = source_.text.pad_id;
    ids.stops = source_.text.stop_ids;
    if (source_.text.gguf == nullptr || !tokenizer_) return;
    for (const TokenId id : tokenizer_->turn_end_ids()) {
      if (std::find(ids.stops.begin(), ids.stops.end(), id) == ids.stops.end()) ids.stops.push_back(id);
    }
  }

  void file(std::string_view name, std::string contents) {
    if (!contents.empty()) out_.text.files.emplace_back(name, std::move(contents));
  }

  void gguf_to_gguf() {
    for (const auto& [key, value] : source_.text.gguf->metadata) {
      if (key == gguf_key::alignment) continue;  // of the source's layout; the new file has its own
      if (starts_with(key, "general.") || starts_with(key, gguf_key::tokenizer_prefix))
        out_.text.metadata.put(key, value);
    }
  }

  void hf_to_hf() {
    file(hf_key::tokenizer_file, source_.text.tokenizer_json);
    file(hf_key::tokenizer_config_file, source_.text.tokenizer_config_json);
    if (source_.text.chat_template) file(hf_key::template_file, *source_.text.chat_template);
  }

  void gguf_to_hf() {
    if (source_.text.chat_template) file(hf_key::template_file, *source_.text.chat_template);
    for (const auto& [key, value] : source_.text.gguf->metadata) {
      if (starts_with(key, fmt::format("{}.", gguf_key::chat_template)))
        note(fmt::format("{} is left out: a folder has one chat template", key));
    }
    if (!tokenizer_) return;
    const GgufVocabulary vocabulary = gguf_vocabulary(*source_.text.gguf);
    const std::string json = tokenizer_json(vocabulary),
                      config = tokenizer_config_json(vocabulary, source_.spec.max_position);
    check_same(*tokenizer_, Tokenizer::from_json(json, source_.text.bos_id, config));
    file(hf_key::tokenizer_file, json);
    file(hf_key::tokenizer_config_file, config);
  }

  void hf_to_gguf() {
    GgufMetadata& metadata = out_.text.metadata;
    metadata.put("general.type", {std::string_view("model")});
    const std::string name = std::filesystem::absolute(source_.path).lexically_normal().filename().string();
    metadata.put_text("general.name", name.empty() ? "model" : name);
    if (source_.text.chat_template)
      metadata.put(gguf_key::chat_template, {std::string_view(*source_.text.chat_template)});
    if (!tokenizer_) {
      metadata.put(gguf_key::tokenizer_model, {kNoVocabulary});
      put_ids(out_.text.ids);
      return;
    }
    OwnedVocabulary made =
        gguf_vocabulary_of_json(source_.text.tokenizer_json, {.gemma4 = source_.family == "gemma4",
                                                              .vocab_size = source_.spec.vocab_size,
                                                              .bos_id = tokenizer_->bos_id(),
                                                              .eos_id = source_.text.eos_id,
                                                              .pad_id = source_.text.pad_id,
                                                              .adds_bos = tokenizer_->adds_bos()});
    const Tokenizer again = Tokenizer::from_gguf(made.vocabulary);
    check_same(*tokenizer_, again);
    for (std::string& text : made.notes) note("tokenizer: " + text);
    put_ids(out_.text.ids);
    put_vocabulary(std::move(made));
    note_lost_stops(again);
  }

  void put_id(std::string_view key, const std::optional<int64_t>& id) {
    if (id) out_.text.metadata.put(key, {*id});
  }

  void put_ids(const HfTokenIds& ids) {
    put_id(gguf_key::bos_token_id, ids.bos);
    put_id(gguf_key::eos_token_id, ids.eos);
    put_id(gguf_key::padding_token_id, ids.pad);
    for (const int64_t id : ids.stops) {
      if (id == ids.eos) continue;
      put_id(gguf_key::eot_token_id, id);  // a file names one more
      break;
    }
  }

  void put_vocabulary(OwnedVocabulary made) {
    GgufMetadata& metadata = out_.text.metadata;
    GgufVocabulary& v = made.vocabulary;
    metadata.put_text(gguf_key::tokenizer_model, v.model);
    if (!v.pre.empty()) metadata.put_text(gguf_key::tokenizer_pre, v.pre);
    metadata.put(gguf_key::tokens, {std::move(v.tokens)});
    metadata.put(gguf_key::token_types, {std::move(v.types)});
    if (!v.scores.empty()) metadata.put(gguf_key::scores, {std::move(v.scores)});
    if (!v.merges.empty()) metadata.put(gguf_key::merges, {std::move(v.merges)});
    put_id(gguf_key::bos_token_id, v.bos_id);
    put_id(gguf_key::unknown_token_id, v.unk_id);
    metadata.put(gguf_key::add_bos_token, {v.add_bos.value_or(false)});
    metadata.put(gguf_key::add_space_prefix, {v.add_space_prefix.value_or(false)});
    metadata.adopt(std::move(made.texts));
  }

  // Readers of a GGUF file find further stops by the spelling of tokens alone.
  void note_lost_stops(const Tokenizer& made) {
    const std::vector<TokenId> found = made.turn_end_ids();
    for (const int64_t id : out_.text.ids.stops) {
      const bool named = id == out_.text.ids.eos || std::find(found.begin(), found.end(), id) != found.end();
      if (!named)
        note(fmt::format("stop id {} is named as eot_token_id at most: GGUF has no list of stops", id));
    }
  }

  const Checkpoint& source_;
  ModelFormat format_;
  std::optional<Tokenizer> tokenizer_;
  TextConversion out_;
};

}  // namespace

TextConversion convert_text(const Checkpoint& source, ModelFormat format) {
  return Converter(source, format).run();
}

}  // namespace lapidary
