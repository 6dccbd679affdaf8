#include <algorithm>
#include <boost/json.hpp>

#include "base/error.h"
#include "text/bridge_call.h"
#include "text/gguf_vocabulary.h"
#include "text/vocabulary_json.h"
#include "text/vocabulary_spellings.h"

namespace lapidary {
namespace {

void append_quoted(std::string_view text, std::string& out) {
  const auto is_plain = [](unsigned char c) { return c >= 0x20 && c != '"' && c != '\\'; };
  if (std::all_of(text.begin(), text.end(), is_plain)) {
    out.append(1, '"').append(text).append(1, '"');
  } else {
    out += boost::json::serialize(boost::json::value(boost::json::string_view(text.data(), text.size())));
  }
}

std::string json_text(std::string_view text) {
  std::string out;
  append_quoted(text, out);
  return out;
}

class Writer {
 public:
  explicit Writer(const GgufVocabulary& vocabulary)
      : vocabulary_(vocabulary), parts_(bpe_parts(vocabulary)) {}

  std::string run() {
    out_ = R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)";
    write_added();
    out_ += fmt::format(R"(],"normalizer":{},"pre_tokenizer":{},"post_processor":{},"decoder":{},"model":)",
                        normalizer(), pre_tokenizer(), post_processor(), decoder());
    write_model();
    out_ += "}\n";
    return std::move(out_);
  }

 private:
  bool spiece() const { return parts_.split == LB_SPLIT_SPIECE; }
  std::string_view name(size_t id) const { return view(parts_.tokens.at(id)); }

  void write_added() {
    bool first = true;
    for (size_t id = 0; id < parts_.tokens.size(); ++id) {
      if (parts_.kinds[id] != LB_ADDED && parts_.kinds[id] != LB_SPECIAL) continue;
      out_ += fmt::format(
          R"({}{{"id":{},"content":{},"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":{}}})",
          first ? "" : ",", id, json_text(name(id)), parts_.kinds[id] == LB_SPECIAL);
      first = false;
    }
  }

  std::string normalizer() const {
    if (!spiece()) return "null";
    return std::string(parts_.prefix_space ? kPrefixAndShowBlanks : kShowBlanks);
  }

  std::string pre_tokenizer() const {
    switch (parts_.split) {
      case LB_SPLIT_SPIECE: return parts_.prefix_space ? "null" : std::string(kSplitAtBlanks);
      case LB_SPLIT_SMOLLM: return std::string(kSmollmSplit);
      case LB_SPLIT_LLAMA3: break;
    }
    return fmt::format(
        R"({{"type":"Sequence","pretokenizers":[{{"type":"Split","pattern":{{"Regex":{}}},"behavior":"Isolated","invert":false}},{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}}]}})",
        json_text(kLlama3Pattern));
  }

  std::string post_processor() const {
    if (!parts_.adds_bos) return "null";
    const auto id = static_cast<size_t>(vocabulary_.bos_id.value());
    const std::string bos = json_text(name(id));
    const std::string first = fmt::format(R"({{"SpecialToken":{{"id":{},"type_id":0}}}})", bos),
                      second = fmt::format(R"({{"SpecialToken":{{"id":{},"type_id":1}}}})", bos);
    const std::string a = R"({"Sequence":{"id":"A","type_id":0}})",
                      b = R"({"Sequence":{"id":"B","type_id":1}})";
    return fmt::format(
        R"({{"type":"TemplateProcessing","single":[{0},{2}],"pair":[{0},{2},{1},{3}],"special_tokens":{{{4}:{{"id":{4},"ids":[{5}],"tokens":[{4}]}}}}}})",
        first, second, a, b, bos, id);
  }

  std::string decoder() const {
    if (!spiece())
      return R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})";
    const std::string_view strip =
        parts_.prefix_space ? R"(,{"type":"Strip","content":" ","start":1,"stop":0})" : "";
    return fmt::format(
        R"({{"type":"Sequence","decoders":[{{"type":"Replace","pattern":{{"String":"{}"}},"content":" "}},{{"type":"ByteFallback"}},{{"type":"Fuse"}}{}]}})",
        kVisibleBlank, strip);
  }

  void write_model() {
    const std::string unknown =
        spiece() && parts_.unk_id >= 0 ? json_text(name(static_cast<size_t>(parts_.unk_id))) : "null";
    out_ += fmt::format(
        R"({{"type":"BPE","dropout":null,"unk_token":{},"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":{},"byte_fallback":{},"ignore_merges":{},"vocab":{{)",
        unknown, spiece(), spiece(), parts_.split == LB_SPLIT_LLAMA3);
    for (size_t id = 0; id < parts_.tokens.size(); ++id) {
      if (id != 0) out_ += ',';
      append_quoted(name(id), out_);
      out_ += fmt::format(":{}", id);
    }
    out_ += R"(},"merges":[)";
    for (size_t rank = 0; rank < parts_.merges.size(); ++rank) {
      out_ += rank == 0 ? "[" : ",[";
      append_quoted(name(parts_.merges[rank][0]), out_);
      out_ += ',';
      append_quoted(name(parts_.merges[rank][1]), out_);
      out_ += ']';
    }
    out_ += "]}";
  }

  const GgufVocabulary& vocabulary_;
  BpeParts parts_;
  std::string out_;
};

}  // namespace

std::string tokenizer_json(const GgufVocabulary& vocabulary) {
  return Writer(vocabulary).run();
}

std::string tokenizer_config_json(const GgufVocabulary& vocabulary, int64_t max_position) {
  const BpeParts parts = bpe_parts(vocabulary);
  std::string out = "{\n";
  const auto token = [&](std::string_view key, std::optional<int64_t> id) {
    if (id)
      out += fmt::format("  \"{}\": {},\n", key, json_text(view(parts.tokens.at(static_cast<size_t>(*id)))));
  };
  out += fmt::format("  \"add_bos_token\": {},\n", parts.adds_bos);
  token("bos_token", vocabulary.bos_id);
  out += "  \"clean_up_tokenization_spaces\": false,\n";
  token("eos_token", vocabulary.eos_id);
  out += fmt::format("  \"model_max_length\": {},\n", max_position);
  token("pad_token", vocabulary.pad_id);
  out += "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"";
  const auto unknown = parts.unk_id >= 0 ? std::optional<int64_t>(parts.unk_id) : std::nullopt;
  if (!unknown) return out + "\n}\n";
  return fmt::format("{},\n  \"unk_token\": {}\n}}\n", out,
                     json_text(view(parts.tokens.at(static_cast<size_t>(*unknown)))));
}

}  // namespace lapidary
