#include <algorithm>
#include <array>
#include <boost/json.hpp>

#include "base/error.h"
#include "base/quote.h"
#include "text/gguf_vocabulary.h"
#include "text/vocabulary_json.h"
#include "text/vocabulary_spellings.h"

namespace lapidary {
namespace {

namespace json = boost::json;

// Types of tokenizer.ggml.token_type.
enum : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// Special tokens of Gemma 4 that other readers must show, since their parsers look for them in the text.
constexpr std::array<std::string_view, 7> kShownByGemma4 = {
    "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
    "<|\"|>",       "<|channel>",   "<channel|>"};

std::string_view text_of(const json::value& value) {
  const json::string& text = value.as_string();
  return {text.data(), text.size()};
}

const json::value& member(const json::object& object, std::string_view key) {
  static const json::value kNull;
  const json::value* found = object.if_contains({key.data(), key.size()});
  return found == nullptr ? kNull : *found;
}

bool equals(const json::value& value, std::string_view text) {
  return value == json::parse({text.data(), text.size()});
}

bool is_true(const json::value& value) {
  return value.is_bool() && value.get_bool();
}

bool is_byte_token(std::string_view token) {
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  return token.size() == 6 && token.starts_with("<0x") && token[5] == '>' && hex(token[3]) && hex(token[4]);
}

bool is_blank_run(std::string_view token) {
  if (token.empty() || token.size() % kVisibleBlank.size() != 0) return false;
  for (size_t i = 0; i < token.size(); i += kVisibleBlank.size()) {
    if (token.substr(i, kVisibleBlank.size()) != kVisibleBlank) return false;
  }
  return true;
}

class Reader {
 public:
  Reader(std::string_view text, const VocabularyFacts& facts) : facts_(facts) {
    json::error_code error;
    root_ = json::parse({text.data(), text.size()}, error);
    ensure(!error && root_.is_object(), ErrorCode::data, "tokenizer.json: {}",
           error ? error.message() : "expected an object");
    const json::value& model = member(root_.get_object(), "model");
    ensure(model.is_object(), ErrorCode::data, "tokenizer.json: expected a model, got none");
    model_ = &model.get_object();
  }

  OwnedVocabulary run() {
    settings();
    choose_kind();
    read_tokens();
    if (vocabulary().model == "llama") {
      score_tokens();
      read_merges();
      check_rebuilt_merges();
      vocabulary().merges.clear();
      spell_runs_as_blanks();
    } else {
      if (vocabulary().model == "gemma4") vocabulary().scores.assign(vocabulary().tokens.size(), -1000.0);
      read_merges();
    }
    own_texts();
    return std::move(out_);
  }

 private:
  GgufVocabulary& vocabulary() { return out_.vocabulary; }
  std::string_view keep(std::string text) { return out_.texts.emplace_back(std::move(text)); }

  [[noreturn]] void no_word_for(std::string_view part) const {
    const std::string shown = json::serialize(member(root_.get_object(), part));
    fail(ErrorCode::unsupported, "tokenizer.json: {}: GGUF has no word for {}", part, quoted(shown));
  }

  // Which of the vocabularies that GGUF knows this is, from its normalizer and pre-tokenizer.
  void choose_kind() {
    const json::object& root = root_.get_object();
    const json::value &normalizer = member(root, "normalizer"), &split = member(root, "pre_tokenizer");
    if (is_true(member(*model_, "byte_fallback"))) {
      const bool shown = equals(normalizer, kShowBlanks), prefixed = equals(normalizer, kPrefixAndShowBlanks);
      if (!shown && !prefixed) no_word_for("normalizer");
      if (!split.is_null() && !equals(split, kSplitAtBlanks)) no_word_for("pre_tokenizer");
      vocabulary().model = facts_.gemma4 ? "gemma4" : "llama";
      if (!facts_.gemma4) vocabulary().pre = "default";
      vocabulary().add_space_prefix = prefixed;
      ensure(!facts_.gemma4 || !prefixed, ErrorCode::unsupported,
             "tokenizer.json: normalizer: GGUF vocabularies of the kind gemma4 have no blank in front");
      return;
    }
    if (!normalizer.is_null()) no_word_for("normalizer");
    vocabulary().model = "gpt2";
    vocabulary().add_space_prefix = false;
    if (equals(split, kSmollmSplit)) {
      vocabulary().pre = "smollm";
    } else if (is_llama3(split) && is_true(member(*model_, "ignore_merges"))) {
      vocabulary().pre = "llama-bpe";
    } else {
      no_word_for("pre_tokenizer");
    }
  }

  static bool is_llama3(const json::value& split) {
    const json::array* steps =
        split.is_object() ? member(split.get_object(), "pretokenizers").if_array() : nullptr;
    if (steps == nullptr || steps->size() != 2 || !(*steps)[0].is_object() || !(*steps)[1].is_object())
      return false;
    const json::object &first = (*steps)[0].get_object(), &second = (*steps)[1].get_object();
    const json::object* pattern = member(first, "pattern").if_object();
    return pattern != nullptr &&
           member(*pattern, "Regex") == json::string_view(kLlama3Pattern.data(), kLlama3Pattern.size()) &&
           member(first, "behavior") == "Isolated" && member(second, "type") == "ByteLevel" &&
           !is_true(member(second, "use_regex")) && !is_true(member(second, "add_prefix_space"));
  }

  void read_tokens() {
    const auto size = static_cast<size_t>(facts_.vocab_size);
    auto& tokens = vocabulary().tokens;
    tokens.assign(size, {});
    vocabulary().types.assign(size, kUnused);
    std::vector<std::string_view> beyond;
    const auto place = [&](std::string_view name, int64_t id, int64_t type) {
      if (id >= facts_.vocab_size) {
        beyond.push_back(name);
        return;
      }
      tokens[static_cast<size_t>(id)] = name;
      vocabulary().types[static_cast<size_t>(id)] = type;
    };
    const bool bytes = vocabulary().model != "gpt2";
    for (const auto& entry : member(*model_, "vocab").as_object()) {
      const std::string_view name(entry.key().data(), entry.key().size());
      place(name, entry.value().as_int64(), bytes && is_byte_token(name) ? kByte : kNormal);
    }
    const json::value& added = member(root_.get_object(), "added_tokens");
    if (added.is_array()) {
      for (const json::value& token : added.get_array()) {
        const std::string_view name = text_of(token.at("content"));
        place(name, token.at("id").as_int64(), added_type(name, is_true(token.at("special"))));
      }
    }
    const json::value& unknown = member(*model_, "unk_token");
    if (unknown.is_string()) vocabulary().unk_id = id_of(text_of(unknown));
    note_changes(beyond, fill_holes());
  }

  int64_t added_type(std::string_view name, bool special) const {
    const bool shown = facts_.gemma4 &&
                       std::find(kShownByGemma4.begin(), kShownByGemma4.end(), name) != kShownByGemma4.end();
    return special && !shown ? kControl : kUserDefined;
  }

  int64_t id_of(std::string_view name) {
    const auto& tokens = vocabulary().tokens;
    const auto found = std::find(tokens.begin(), tokens.end(), name);
    ensure(found != tokens.end(), ErrorCode::data,
           "tokenizer.json: model.unk_token {} is not in the vocabulary", quoted(name));
    return found - tokens.begin();
  }

  // Rows of the embedding that no token owns get a name of their own.
  int64_t fill_holes() {
    int64_t filled = 0;
    auto& tokens = vocabulary().tokens;
    for (size_t id = 0; id < tokens.size(); ++id) {
      if (!tokens[id].empty()) continue;
      tokens[id] = keep(fmt::format("[PAD{}]", id));
      ++filled;
    }
    return filled;
  }

  void note_changes(const std::vector<std::string_view>& beyond, int64_t filled) {
    if (!beyond.empty()) {
      out_.notes.push_back(
          fmt::format("{} tokens without a row in the embedding are left out, the first is {}", beyond.size(),
                      quoted(beyond.front())));
    }
    if (filled > 0)
      out_.notes.push_back(fmt::format("{} rows of the embedding have no token; named [PADn]", filled));
  }

  // SentencePiece merges by score; the order of ids says the same.
  void score_tokens() {
    double next = 0;
    for (const int64_t type : vocabulary().types) {
      if (type == kByte) {
        vocabulary().scores.push_back(0);
      } else if (type == kNormal) {
        vocabulary().scores.push_back(next);
        next -= 1;
      } else {
        vocabulary().scores.push_back(-1000);
      }
    }
  }

  void read_merges() {
    for (const json::value& merge : member(*model_, "merges").as_array()) {
      if (merge.is_string()) {
        vocabulary().merges.push_back(text_of(merge));
        continue;
      }
      const std::string_view left = text_of(merge.as_array().at(0)), right = text_of(merge.as_array().at(1));
      ensure(left.find(' ') == std::string_view::npos && right.find(' ') == std::string_view::npos,
             ErrorCode::unsupported,
             "tokenizer.json: model.merges: GGUF has no word for a token with a blank, {} {}", quoted(left),
             quoted(right));
      vocabulary().merges.push_back(keep(fmt::format("{} {}", left, right)));
    }
  }

  // A vocabulary of this kind is written without its merges, which readers rebuild: they must be those.
  void check_rebuilt_merges() {
    GgufVocabulary without = vocabulary();
    without.merges.clear();
    const BpeParts rebuilt = bpe_parts(without), given = bpe_parts(vocabulary());
    const auto matter = [&](const BpeParts& parts) {
      std::vector<std::array<uint32_t, 3>> out;
      for (const auto& merge : parts.merges) {
        // Runs of tabs are merged by whole runs either way; published files differ in the place of one.
        const std::string_view made(parts.tokens[merge[2]].data, parts.tokens[merge[2]].size);
        if (made.find_first_not_of('\t') != std::string_view::npos) out.push_back(merge);
      }
      return out;
    };
    const auto ours = matter(rebuilt), theirs = matter(given);
    const auto at = std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end());
    ensure(at.first == ours.end() && at.second == theirs.end(), ErrorCode::unsupported,
           "tokenizer.json: model.merges: a GGUF vocabulary of the kind llama is written without merges, and "
           "those "
           "that follow from its tokens differ from these at place {}",
           at.second - theirs.begin());
  }

  // Added runs of blanks are matched in the text as it is, before blanks are made visible.
  void spell_runs_as_blanks() {
    for (size_t id = 0; id < vocabulary().tokens.size(); ++id) {
      std::string_view& token = vocabulary().tokens[id];
      if (vocabulary().types[id] != kUserDefined || !is_blank_run(token)) continue;
      token = keep(std::string(token.size() / kVisibleBlank.size(), ' '));
    }
  }

  void settings() {
    vocabulary().bos_id = facts_.bos_id;
    vocabulary().eos_id = facts_.eos_id;
    vocabulary().pad_id = facts_.pad_id;
    vocabulary().add_bos = facts_.adds_bos;
  }

  // What was read so far points into root_, which goes with this object.
  void own_texts() {
    for (std::string_view& token : vocabulary().tokens) token = keep(std::string(token));
    for (std::string_view& merge : vocabulary().merges) merge = keep(std::string(merge));
  }

  const VocabularyFacts& facts_;
  json::value root_;
  const json::object* model_ = nullptr;
  OwnedVocabulary out_;
};

}  // namespace

OwnedVocabulary gguf_vocabulary_of_json(std::string_view text, const VocabularyFacts& facts) {
  return Reader(text, facts).run();
}

}  // namespace lapidary
