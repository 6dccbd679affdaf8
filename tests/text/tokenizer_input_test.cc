// Damaged, contradictory and unusable tokenizers end in an error that says what and where; usable odd ones
// load.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "cli/text_assets.h"
#include "formats/mapped_file.h"
#include "text/goldens.h"

namespace lapidary {
namespace {

template <typename Work>
void expect_error(ErrorCode code, const std::string& part, Work&& work) {
  try {
    work();
    ADD_FAILURE() << "no error; expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// A small SentencePiece-style vocabulary with every byte.
struct Small {
  std::vector<std::string> tokens = {"<pad>", "<eos>", "<bos>", "<unk>"};
  std::vector<int64_t> types = {3, 3, 3, 2};
  std::vector<std::string> merges;
  GgufVocabulary vocabulary;

  explicit Small(const std::string& model = "gemma4") {
    for (const char* piece : {"\xE2\x96\x81", "t", "h", "e", "th", "the"}) add(piece, 1);
    for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), 6);
    if (model == "gemma4") merges = {"t h", "th e"};
    vocabulary.model = model;
    vocabulary.bos_id = 2;
    vocabulary.unk_id = 3;
  }
  void add(const std::string& token, int64_t type) {
    tokens.push_back(token);
    types.push_back(type);
  }
  Tokenizer load() {
    vocabulary.tokens.assign(tokens.begin(), tokens.end());
    vocabulary.types = types;
    vocabulary.merges.assign(merges.begin(), merges.end());
    return Tokenizer::from_gguf(vocabulary);
  }
};

TEST(GgufTokenizer, LoadsASmallVocabulary) {
  Small small;
  const Tokenizer tokenizer = small.load();
  EXPECT_EQ(tokenizer.encode("the th", false), (std::vector<TokenId>{9, 4, 8}));
  EXPECT_EQ(tokenizer.prompt_ids("<bos>the<eos>"), (std::vector<TokenId>{2, 9, 1}));
  EXPECT_EQ(tokenizer.prompt_ids("the"), (std::vector<TokenId>{2, 9}));
  EXPECT_EQ(tokenizer.prompt_ids(""), (std::vector<TokenId>{2}));
  EXPECT_EQ(tokenizer.decode({{2, 9, 4, 8}}, false), "the th");
}

TEST(GgufTokenizer, RebuildsMergesOfSentencePiece) {
  Small small("llama");
  small.vocabulary.add_space_prefix = false;
  EXPECT_EQ(small.load().encode("the th", false), (std::vector<TokenId>{9, 4, 8}));
  small.vocabulary.add_space_prefix.reset();  // older files: a blank goes in front of every text
  EXPECT_EQ(small.load().encode("the th", false), (std::vector<TokenId>{4, 9, 4, 8}));
  EXPECT_EQ(small.load().decode({{4, 9}}, false), " the");
}

// Merges go by score where scores do not fall with the id.
TEST(GgufTokenizer, ScoresOrderMergesWhenIdsDoNot) {
  Small small("llama");
  small.vocabulary.add_space_prefix = false;
  small.add("he", 1);
  const TokenId he = static_cast<TokenId>(small.tokens.size()) - 1;
  EXPECT_EQ(small.load().encode("the", false), (std::vector<TokenId>{9}));  // "th" has the lower id
  small.vocabulary.scores.assign(small.tokens.size(), -1000);
  small.vocabulary.scores[8] = -3;  // th
  small.vocabulary.scores[9] = -9;  // the
  small.vocabulary.scores[static_cast<size_t>(he)] = -1;
  EXPECT_EQ(small.load().encode("hethe", false), (std::vector<TokenId>{he, 9}));
  EXPECT_EQ(small.load().encode("thh", false), (std::vector<TokenId>{8, 6}));
}

TEST(GgufTokenizer, RefusesUnknownKinds) {
  Small small;
  small.vocabulary.model = "bert\n";
  expect_error(ErrorCode::unsupported,
               "tokenizer.ggml.model is \"bert\\x0a\", expected llama, gemma4 or gpt2",
               [&] { small.load(); });
  small.vocabulary.model = "gpt2";
  small.vocabulary.pre = "qwen2";
  expect_error(ErrorCode::unsupported, "tokenizer.ggml.pre is \"qwen2\", expected smollm or llama-bpe",
               [&] { small.load(); });
  small.vocabulary.model = "gemma4";
  expect_error(ErrorCode::unsupported, "tokenizer.ggml.pre is \"qwen2\"", [&] { small.load(); });
}

TEST(GgufTokenizer, RefusesContradictions) {
  const auto broken = [](ErrorCode code, const std::string& part, auto change) {
    Small small;
    change(small);
    expect_error(code, part, [&] { small.load(); });
  };
  broken(ErrorCode::data, "tokenizer.ggml.tokens is empty",
         [](Small& s) { s.tokens.clear(), s.types.clear(); });
  broken(ErrorCode::data, "tokenizer.ggml.token_type has 5 entries, expected 266",
         [](Small& s) { s.types.resize(5); });
  broken(ErrorCode::data, "tokenizer.ggml.token_type is missing", [](Small& s) { s.types.clear(); });
  broken(ErrorCode::data, "tokenizer.ggml.scores has 1 entries",
         [](Small& s) { s.vocabulary.scores = {1.0}; });
  broken(ErrorCode::data, "token_type of token 5: 9, expected 1 to 6", [](Small& s) { s.types[5] = 9; });
  broken(ErrorCode::data, "tokens 5 and 6 have the same spelling \"t\"",
         [](Small& s) { s.tokens[6] = "t", s.merges.clear(), s.merges = {"t t"}, s.tokens[8] = "tt"; });
  broken(ErrorCode::data, "token 6: its spelling is not UTF-8",
         [](Small& s) { s.tokens[6] = "\xFF", s.merges = {"t e"}, s.tokens[8] = "te"; });
  broken(ErrorCode::data, "tokenizer.ggml.merges is missing", [](Small& s) { s.merges.clear(); });
  broken(ErrorCode::data, "entry 1: \"th\" is not two tokens", [](Small& s) { s.merges[1] = "th"; });
  broken(ErrorCode::data, "entry 1: \"t h e\" is not two tokens", [](Small& s) { s.merges[1] = "t h e"; });
  broken(ErrorCode::data, "entry 1: \"th x\" needs a token that is not in the vocabulary",
         [](Small& s) { s.merges[1] = "th x"; });
  broken(ErrorCode::data, "entry 1: \"e h\" needs a token that is not in the vocabulary",
         [](Small& s) { s.merges[1] = "e h"; });
  broken(ErrorCode::data, "tokenizer.ggml.bos_token_id is 266, but there are 266 tokens",
         [](Small& s) { s.vocabulary.bos_id = 266; });
  broken(ErrorCode::data, "tokenizer.ggml.unknown_token_id is -1",
         [](Small& s) { s.vocabulary.unk_id = -1; });
  broken(ErrorCode::data, "tokenizer.ggml.bos_token_id is missing",
         [](Small& s) { s.vocabulary.bos_id.reset(); });
}

TEST(GgufTokenizer, SelfCheckRefusesWhatAnswersWithUnknowns) {
  Small small;
  for (int64_t& type : small.types) {
    if (type == 6) type = 1;  // bytes that the decoder would print as text
  }
  expect_error(ErrorCode::data, "tokenizer self-check", [&] { small.load(); });
  Small few;
  few.tokens.resize(10), few.types.resize(10);  // no bytes: most letters are unknown
  expect_error(ErrorCode::data, "unknown (id 3); this vocabulary does not fit its rules",
               [&] { few.load(); });
  Small no_blank;
  no_blank.tokens.resize(10), no_blank.types.resize(10);
  for (char c = 'a'; c <= 'z'; ++c) {
    if (c != 't' && c != 'h' && c != 'e') no_blank.add(std::string(1, c), 1);
  }
  EXPECT_EQ(no_blank.load().encode("the fox", false).size(), 5U);  // letters and the blank are enough
  no_blank.tokens[4] = "_";
  expect_error(ErrorCode::data, "tokenizer self-check: \"the capital of france is in the north\" encodes to",
               [&] { no_blank.load(); });
  Small plain_bos;
  plain_bos.types[2] = 1;
  expect_error(ErrorCode::data, "the beginning-of-text token \"<bos>\" (id 2) is not recognised",
               [&] { plain_bos.load(); });
}

// A byte-level vocabulary read as SentencePiece drops or garbles text; a damaged one too.
TEST(GgufTokenizer, SelfCheckRefusesMissingLetters) {
  const std::string bytes = goldens::read_text("smollm2/vocab.gguf.gz");
  const GgufFile file = parse_gguf(std::as_bytes(std::span(bytes)), "smollm2");
  GgufVocabulary vocabulary = gguf_vocabulary(file);
  for (std::string_view& token : vocabulary.tokens) {
    if (token == "q") token = "\xEF\xBF\xBC";
    if (token == "f") token = "\xEF\xBF\xBD";
  }
  std::erase_if(vocabulary.merges,
                [](std::string_view m) { return m.find('f') != m.npos || m.find('q') != m.npos; });
  expect_error(
      ErrorCode::data,
      "tokenizer self-check: \"the capital of france is in the north\" comes back as \"the capital o rance",
      [&] { Tokenizer::from_gguf(vocabulary); });
}

TEST(GgufTokenizer, LoadsEveryTinyModelsVocabulary) {
  size_t loaded = 0;
  for (const auto& entry : std::filesystem::directory_iterator(LAPIDARY_TEST_DATA "/gguf/models")) {
    if (entry.path().extension() != ".gguf") continue;
    SCOPED_TRACE(entry.path());
    const MappedFile file(entry.path());
    const GgufFile gguf = parse_gguf(file.bytes(), file.name());
    const Tokenizer tokenizer = Tokenizer::from_gguf(gguf_vocabulary(gguf));
    EXPECT_TRUE(tokenizer.adds_bos());
    const std::string text = "We the People, \xC3\xA9 \xF0\x9F\x99\x82";
    std::string back = tokenizer.decode(tokenizer.encode(text, false), false);
    if (back.starts_with(' ')) back.erase(0, 1);
    EXPECT_EQ(back, text);
    ++loaded;
  }
  EXPECT_GT(loaded, 10U);
}

// tokenizer.json
// ---------------------------------------------------------------------------------------------------------------

const std::string kBytes = [] {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += fmt::format(R"(,"<0x{:02X}>":{})", byte, 10 + byte);
  return all;
}();

std::string json_file(const std::string& model_extra = "", const std::string& added = "",
                      const std::string& rest = "") {
  return R"({"version":"1.0","added_tokens":[)" + added +
         R"(],"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"},)" +
         R"("pre_tokenizer":null,"post_processor":null,"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},)" +
         R"("content":" "},{"type":"ByteFallback"},{"type":"Fuse"}]},)" + rest +
         R"("model":{"type":"BPE","byte_fallback":true,"fuse_unk":true,"unk_token":"<unk>","vocab":{"<pad>":0,"<eos>":1,"<bos>":2,"<unk>":3,)" +
         R"("▁":4,"t":5,"h":6,"e":7,"th":8,"the":9)" + kBytes + R"(},"merges":[["t","h"],"th e"])" +
         model_extra + "}}";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

const std::string kBosToken =
    R"({"id":2,"content":"<bos>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})";

TEST(JsonTokenizer, LoadsASmallVocabulary) {
  const Tokenizer tokenizer = Tokenizer::from_json(json_file("", kBosToken));
  EXPECT_EQ(tokenizer.encode("the th", false), (std::vector<TokenId>{9, 4, 8}));
  EXPECT_FALSE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.vocab_size(), 266);
}

TEST(JsonTokenizer, MergesMayStandBeforeTheVocabulary) {
  std::string file = json_file();
  file = replaced(file, R"(,"merges":[["t","h"],"th e"])", "");
  file = replaced(file, R"("type":"BPE",)", R"("type":"BPE","merges":["t h",["th","e"]],)");
  EXPECT_EQ(Tokenizer::from_json(file).encode("the", false), (std::vector<TokenId>{9}));
}

// One BOS for SentencePiece-style vocabularies whose file leaves it to the template; none for byte-level ones
// unless asked.
TEST(JsonTokenizer, BosComesFromTheFileOrTheConfiguration) {
  EXPECT_TRUE(Tokenizer::from_json(json_file("", kBosToken), 2).adds_bos());
  EXPECT_EQ(Tokenizer::from_json(json_file("", kBosToken), 2).prompt_ids("the"),
            (std::vector<TokenId>{2, 9}));
  EXPECT_TRUE(Tokenizer::from_json(json_file("", kBosToken), {}, R"({"bos_token":"<bos>"})").adds_bos());
  EXPECT_TRUE(
      Tokenizer::from_json(json_file("", kBosToken), {}, R"({"bos_token":{"content":"<bos>"}})").adds_bos());
  EXPECT_FALSE(Tokenizer::from_json(json_file("", kBosToken), 2, R"({"add_bos_token":false})").adds_bos());
  EXPECT_FALSE(Tokenizer::from_json(goldens::tokenizer_json("smollm2"), 1).adds_bos());
  EXPECT_TRUE(
      Tokenizer::from_json(goldens::tokenizer_json("smollm2"), 1, R"({"add_bos_token":true})").adds_bos());
  expect_error(ErrorCode::data, "add_bos_token is 1, expected true or false",
               [] { Tokenizer::from_json(json_file(), 2, R"({"add_bos_token":1})"); });
  expect_error(ErrorCode::data, "tokenizer_config.json", [] { Tokenizer::from_json(json_file(), 2, "{"); });
  expect_error(ErrorCode::data, "bos_token_id is 99999, but the tokenizer has 266 tokens",
               [] { Tokenizer::from_json(json_file(), 99999); });
}

TEST(JsonTokenizer, RefusesWhatItCannotRead) {
  const auto broken = [](ErrorCode code, const std::string& part, const std::string& file) {
    expect_error(code, part, [&] { Tokenizer::from_json(file); });
  };
  broken(ErrorCode::data, "tokenizer.json: EOF", "");
  broken(ErrorCode::data, "tokenizer.json: EOF", json_file().substr(0, 900));
  broken(ErrorCode::data, "missing field `model`", "{}");
  broken(ErrorCode::data, "tokenizer.json: not UTF-8 at byte 2", "{\"\xC3\"}");
  broken(ErrorCode::data, "recursion limit", R"({"post_processor":)" + std::string(100000, '['));
  broken(ErrorCode::unsupported, "version \"2.0\"", replaced(json_file(), "1.0", "2.0"));
  broken(ErrorCode::data, "model.type is \"Unigram\", expected \"BPE\"",
         replaced(json_file(), "\"type\":\"BPE\"", "\"type\":\"Unigram\""));
  broken(ErrorCode::data, "model.colour is not a setting we know", json_file(R"(,"colour":1)"));
  broken(ErrorCode::data, "model.dropout", json_file(R"(,"dropout":0.1)"));
  broken(ErrorCode::data, "model.end_of_word_suffix is not supported",
         json_file(R"(,"end_of_word_suffix":"</w>")"));
  broken(ErrorCode::data, "model.vocab gives id 7 twice", replaced(json_file(), R"("h":6)", R"("h":7)"));
  broken(ErrorCode::data, "ids up to 4000000000", replaced(json_file(), R"("h":6)", R"("h":4000000000)"));
  broken(ErrorCode::data, "invalid value: integer `-1`", replaced(json_file(), R"("h":6)", R"("h":-1)"));
  broken(ErrorCode::data, "merge 1 (\"th\", \"x\") needs the token \"x\"",
         replaced(json_file(), "th e", "th x"));
  broken(ErrorCode::data, "merge 1 (\"h\", \"e\") needs the token \"he\"",
         replaced(json_file(), "th e", "h e"));
  broken(ErrorCode::data, "merge \"the\" is not two tokens", replaced(json_file(), "th e", "the"));
  broken(ErrorCode::data, "a merge must have two tokens", replaced(json_file(), R"(["t","h"])", R"(["t"])"));
  broken(ErrorCode::data, "model.unk_token \"<none>\" is not in the vocabulary",
         replaced(json_file(), R"("unk_token":"<unk>")", R"("unk_token":"<none>")"));
  broken(ErrorCode::unsupported, "decoder {\"type\":\"CTC\"}",
         replaced(json_file(), R"({"type":"Fuse"})", R"({"type":"CTC"})"));
  broken(ErrorCode::unsupported, "post_processor \"BertProcessing\"",
         replaced(json_file(), R"("post_processor":null)", R"("post_processor":{"type":"BertProcessing"})"));
  broken(ErrorCode::data, "added_tokens gives \"<bos>\" the id 200",
         json_file("", replaced(kBosToken, "\"id\":2", "\"id\":200")));
  broken(ErrorCode::data, "added_tokens gives \"<new>\" the id 5000",
         json_file("", replaced(replaced(kBosToken, "<bos>", "<new>"), "\"id\":2", "\"id\":5000")));
}

TEST(JsonTokenizer, SelfCheckRefusesWhatAnswersWithUnknowns) {
  expect_error(ErrorCode::data, "are unknown (id 3); this vocabulary does not fit its rules", [] {
    Tokenizer::from_json(replaced(json_file(), R"("byte_fallback":true)", R"("byte_fallback":false)"));
  });
  expect_error(ErrorCode::data, "tokenizer self-check",
               [] { Tokenizer::from_json(replaced(json_file(), R"({"type":"ByteFallback"},)", "")); });
  expect_error(
      ErrorCode::data,
      "tokenizer self-check",  // blanks are not made visible: each becomes the byte 20, which is text
      [] { Tokenizer::from_json(replaced(json_file(), R"("content":" ")", R"("content":"x")")); });
}

TEST(TokenizerIds, OutsideTheVocabularyAreRefused) {
  const Tokenizer& tokenizer = goldens::tokenizer("smollm2", "gguf");
  for (TokenId id : {-1, 49152, 2147483647}) {
    const std::string part = fmt::format("token id {} is outside the vocabulary of 49152 tokens", id);
    expect_error(ErrorCode::usage, part, [&] { tokenizer.decode({{1, id}}, true); });
    expect_error(ErrorCode::usage, part, [&] { tokenizer.decode_bytes({{1, id}}, true); });
    expect_error(ErrorCode::usage, part, [&] { tokenizer.token_bytes(id); });
    expect_error(ErrorCode::usage, part, [&] { tokenizer.token_name(id); });
    expect_error(ErrorCode::usage, part, [&] { tokenizer.is_special(id); });
    expect_error(ErrorCode::usage, part, [&] { StreamDecoder(tokenizer).push(id); });
  }
  EXPECT_EQ(tokenizer.find("no such token"), std::nullopt);
}

TEST(TextAssets, NameWhatIsMissing) {
  expect_error(ErrorCode::not_found, "no tokenizer.json", [] { make_tokenizer(TextAssets{}); });
  TextAssets assets;
  assets.tokenizer_json = json_file("", kBosToken);
  assets.bos_id = 2;
  EXPECT_TRUE(make_tokenizer(assets).adds_bos());
}

}  // namespace
}  // namespace lapidary
