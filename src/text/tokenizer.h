// Text ↔ token ids. One object whether the vocabulary came from tokenizer.json or from a GGUF file: the
// Hugging Face tokenizer library behind bridge/. Immutable after construction and safe to share between
// threads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lapidary {

class ChatTemplate;
struct ChatRequest;

using TokenId = int32_t;

// Ids of the left part, the right part and what they make.
using MergeIds = std::array<uint32_t, 3>;

// tokenizer.ggml.* of a GGUF file, as views. docs/formats.md says how each model kind becomes a tokenizer.
struct GgufVocabulary {
  std::string model;                     // "llama", "gemma4", "gpt2"
  std::string pre;                       // "smollm", "llama-bpe", ...; empty when absent
  std::vector<std::string_view> tokens;  // [V]
  std::vector<int64_t>
      types;  // [V]: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; may be empty
  std::vector<double> scores;            // [V]; may be empty
  std::vector<std::string_view> merges;  // "left right"; empty for SentencePiece vocabularies
  // By rank, what merge_ids() found out before; not empty: nothing has to be looked up again.
  std::span<const MergeIds> known_merges;
  std::optional<int64_t> bos_id, eos_id, unk_id, pad_id;
  std::optional<bool> add_bos, add_space_prefix;
};

// The merges of a vocabulary by id, in order of rank. Most of what it takes to build a tokenizer of a quarter
// of a million tokens goes into them. Error as Tokenizer::from_gguf() has it.
std::vector<MergeIds> merge_ids(const GgufVocabulary& vocabulary);

class Tokenizer {
 public:
  // Both throw Error(data / unsupported). Both end in a self-check: known text must encode without unknown
  // tokens and decode back. `bos_id`: of the model's configuration, when known; the BOS rule of prompt_ids()
  // rests on it and on the file's own settings.
  static Tokenizer from_json(std::string_view tokenizer_json, std::optional<int64_t> bos_id = {},
                             std::string_view tokenizer_config_json = {});
  static Tokenizer from_gguf(const GgufVocabulary& vocabulary);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Strict: Error(data) with the byte offset when `text` is not UTF-8. No BOS is added here.
  // parse_special: spellings of special tokens become those tokens; without, they are ordinary text (users
  // cannot forge turns).
  std::vector<TokenId> encode(std::string_view text, bool parse_special) const;
  // Replaces each maximal invalid part by U+FFFD first.
  std::vector<TokenId> encode_lossy(std::string_view bytes, bool parse_special) const;
  // What the model must be fed for a raw prompt: the text with exactly one BOS in front where the model wants
  // one, none added if the ids already start with it. The one place where the BOS rule lives.
  std::vector<TokenId> prompt_ids(std::string_view text, bool parse_special = true) const;
  // The same rule for a rendered chat template, which may print its own BOS. Specials are always parsed.
  std::vector<TokenId> template_ids(std::string_view rendered) const;

  // Exact bytes of the ids; special tokens are left out unless asked for. Error(usage) on an id out of range.
  std::string decode_bytes(std::span<const TokenId> ids, bool show_special) const;
  // The same as valid UTF-8 (invalid parts → U+FFFD).
  std::string decode(std::span<const TokenId> ids, bool show_special) const;
  std::string token_bytes(TokenId id) const;  // with specials shown
  std::string token_name(TokenId id) const;   // spelling in the vocabulary, for reports
  std::optional<TokenId> find(std::string_view token) const;
  bool is_special(TokenId id) const;
  int64_t vocab_size() const;
  std::optional<TokenId> bos_id() const;
  bool adds_bos() const;
  // End-of-turn tokens found by their spelling among the vocabulary's special tokens (<turn|>, <end_of_turn>,
  // <|im_end|>, <|eot_id|>,
  // <|tool_response>, ...). `</s>` of Gemma 4 is ordinary text and never here.
  std::vector<TokenId> turn_end_ids() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  friend class StreamDecoder;
  friend class GrammarEnv;
  friend std::vector<TokenId> chat_ids(const ChatTemplate&, const Tokenizer&, const ChatRequest&);
};

// Turns ids into text as they arrive; holds back bytes that do not yet form a whole character. REQUIRES: the
// tokenizer outlives it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool show_special = false);
  std::string push(TokenId id);  // text that is now certain
  std::string flush();           // what was held back, invalid parts as U+FFFD

 private:
  const Tokenizer& tokenizer_;
  bool show_special_;
  std::string held_;
};

}  // namespace lapidary
