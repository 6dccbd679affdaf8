// Every tokenizer golden, from tokenizer.json and from the GGUF vocabulary of the same model.
#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "text/goldens.h"

namespace lapidary {
namespace {

using goldens::ids_of;
using goldens::text_of;

struct Origin {
  std::string model, source;
};

void PrintTo(const Origin& origin, std::ostream* out) {
  *out << origin.model << " from " << origin.source;
}

class TokenizerGolden : public testing::TestWithParam<Origin> {
 protected:
  const Tokenizer& tokenizer() const { return goldens::tokenizer(GetParam().model, GetParam().source); }
  std::vector<boost::json::object> cases(const std::string& name) const {
    return goldens::read_cases(GetParam().model + "/" + name + ".jsonl");
  }
};

std::string joined(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string bytes;
  for (TokenId id : ids) bytes += tokenizer.token_bytes(id);
  return bytes;
}

TEST_P(TokenizerGolden, EncodesAndDecodesEveryCase) {
  for (const auto& row : cases("cases")) {
    SCOPED_TRACE(text_of(row.at("id")));
    const std::string text = text_of(row.at("text"));
    std::vector<TokenId> ids = tokenizer().encode(text, row.at("parse_special").as_bool());
    if (row.at("add_special").as_bool() && tokenizer().adds_bos())
      ids.insert(ids.begin(), tokenizer().bos_id().value());
    EXPECT_EQ(ids, ids_of(row.at("ids")));
    const std::string decoded = row.contains("decoded") ? text_of(row.at("decoded")) : text;
    EXPECT_EQ(tokenizer().decode(ids, true), decoded);
    EXPECT_EQ(tokenizer().decode_bytes(ids, true), joined(tokenizer(), ids));
  }
}

TEST_P(TokenizerGolden, PutsExactlyOneBosInFront) {
  for (const auto& row : cases("bos")) {
    SCOPED_TRACE(text_of(row.at("id")));
    const std::string text = text_of(row.at("text"));
    EXPECT_EQ(tokenizer().encode(text, true), ids_of(row.at("raw_ids")));
    EXPECT_EQ(tokenizer().prompt_ids(text), ids_of(row.at("prompt_ids")));
    EXPECT_EQ(tokenizer().template_ids(text), ids_of(row.at("prompt_ids")));
  }
}

TEST_P(TokenizerGolden, EncodesLongTextsInLinearTime) {
  for (const auto& row : cases("long")) {
    SCOPED_TRACE(text_of(row.at("id")));
    std::string text = text_of(row.at("prefix"));
    for (int64_t i = 0; i < row.at("count").as_int64(); ++i) text += text_of(row.at("repeat"));
    text += text_of(row.at("suffix"));
    ASSERT_EQ(text.size(), row.at("utf8_bytes").to_number<size_t>());
    const std::vector<TokenId> ids = tokenizer().encode(text, true);
    EXPECT_EQ(ids.size(), row.at("n_ids").to_number<size_t>());
    std::string bytes;
    for (TokenId id : ids) {
      for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(id >> shift));
    }
    EXPECT_EQ(goldens::sha256_hex(bytes), text_of(row.at("ids_sha256")));
    EXPECT_EQ(tokenizer().decode_bytes(ids, true) == text, row.at("round_trip").as_bool());
  }
}

TEST_P(TokenizerGolden, RefusesInvalidUtf8OrReplacesIt) {
  for (const auto& row : cases("invalid_utf8")) {
    SCOPED_TRACE(text_of(row.at("id")));
    const std::string bytes = goldens::from_hex(text_of(row.at("bytes_hex")));
    EXPECT_EQ(tokenizer().encode_lossy(bytes, true), ids_of(row.at("lossy_ids")));
    EXPECT_EQ(tokenizer().encode(text_of(row.at("lossy_text")), true), ids_of(row.at("lossy_ids")));
    // UTF-16 of ASCII letters is UTF-8 with zero bytes between: nothing is replaced, and nothing can be
    // refused.
    if (bytes == text_of(row.at("lossy_text"))) {
      EXPECT_EQ(text_of(row.at("id")), GetParam().model + "-bad-utf16");
      continue;
    }
    try {
      (void)tokenizer().encode(bytes, true);
      ADD_FAILURE() << "strict encoding took invalid UTF-8";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::data);
      EXPECT_NE(std::string(error.what()).find("text is not UTF-8: invalid or incomplete character at byte"),
                std::string::npos);
    }
  }
}

TEST_P(TokenizerGolden, DecodesExactBytesWholeAndInAStream) {
  for (const auto& row : cases("decode")) {
    SCOPED_TRACE(text_of(row.at("id")));
    const std::vector<TokenId> ids = ids_of(row.at("ids"));
    EXPECT_EQ(tokenizer().decode_bytes(ids, true), goldens::from_hex(text_of(row.at("bytes_hex"))));
    EXPECT_EQ(tokenizer().decode(ids, true), text_of(row.at("text_lossy")));
    StreamDecoder stream(tokenizer(), true);
    const boost::json::array& chunks = row.at("stream_chunks").as_array();
    ASSERT_EQ(chunks.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(stream.push(ids[i]), text_of(chunks[i])) << "id " << i;
    EXPECT_EQ(stream.flush(), text_of(row.at("stream_flush")));
    EXPECT_EQ(stream.flush(), "");
  }
}

TEST_P(TokenizerGolden, KnowsSpecialTokensAndTheEndsOfATurn) {
  const auto facts = boost::json::parse(goldens::read_text(GetParam().model + "/special.json")).as_object();
  EXPECT_EQ(tokenizer().adds_bos(), facts.at("add_bos").as_bool());
  if (!facts.at("bos").is_null()) {
    EXPECT_EQ(tokenizer().bos_id(), facts.at("bos").to_number<TokenId>());
  }
  size_t specials = 0;
  for (const auto& row : facts.at("specials").as_array()) {
    const auto id = row.at("id").to_number<TokenId>();
    if (id >= tokenizer().vocab_size())
      continue;  // Gemma 3's soft image token, which text-only GGUF files leave out
    ++specials;
    EXPECT_TRUE(tokenizer().is_special(id)) << id;
    EXPECT_EQ(tokenizer().token_name(id), text_of(row.at("text")));
    EXPECT_EQ(tokenizer().find(text_of(row.at("text"))), id);
    EXPECT_EQ(tokenizer().encode(text_of(row.at("text")), true), std::vector<TokenId>{id});
    EXPECT_NE(tokenizer().encode(text_of(row.at("text")), false), std::vector<TokenId>{id});
    EXPECT_EQ(tokenizer().decode({{id}}, false), "");
    EXPECT_EQ(tokenizer().decode({{id}}, true), text_of(row.at("text")));
  }
  EXPECT_GE(specials + 1, facts.at("specials").as_array().size());
  if (GetParam().model != "gemma3" || GetParam().source == "json") {
    size_t counted = 0;
    for (TokenId id = 0; id < tokenizer().vocab_size(); ++id) counted += tokenizer().is_special(id) ? 1 : 0;
    EXPECT_EQ(counted, facts.at("specials").as_array().size());
  }
  std::vector<TokenId> ends = tokenizer().turn_end_ids();
  for (const auto& stop : facts.at("stop_ids").as_array()) {
    const auto id = stop.to_number<TokenId>();
    const bool end_of_text = tokenizer().token_name(id) == "<eos>";
    EXPECT_EQ(std::erase(ends, id), end_of_text ? 0U : 1U) << id;
  }
  EXPECT_TRUE(ends.empty()) << ends.front() << " ends a turn but is no stop";
}

INSTANTIATE_TEST_SUITE_P(Models, TokenizerGolden,
                         testing::Values(Origin{"gemma4", "json"}, Origin{"gemma4", "gguf"},
                                         Origin{"gemma3", "json"}, Origin{"gemma3", "gguf"},
                                         Origin{"smollm2", "json"}, Origin{"smollm2", "gguf"},
                                         Origin{"gemma4", "gguf_of_json"}, Origin{"gemma4", "json_of_gguf"},
                                         Origin{"gemma3", "gguf_of_json"}, Origin{"gemma3", "json_of_gguf"},
                                         Origin{"smollm2", "gguf_of_json"},
                                         Origin{"smollm2", "json_of_gguf"}),
                         [](const auto& test) { return test.param.model + "_" + test.param.source; });

// The two origins of one model must be one object: same spelling and same bytes for every id.
TEST(TokenizerOrigins, AgreeOnEveryToken) {
  for (const std::string model : {"gemma4", "gemma3", "smollm2"}) {
    const Tokenizer& json = goldens::tokenizer(model, "json");
    const Tokenizer& gguf = goldens::tokenizer(model, "gguf");
    EXPECT_LE(json.vocab_size() - gguf.vocab_size(), 1) << model;
    size_t different_names = 0;
    for (TokenId id = 0; id < gguf.vocab_size(); ++id) {
      different_names += json.token_name(id) != gguf.token_name(id) ? 1 : 0;
      EXPECT_EQ(json.token_bytes(id), gguf.token_bytes(id)) << model << " " << id;
    }
    EXPECT_EQ(different_names, 0U) << model;
  }
}

// Twice the text must not take four times as long. Generous, because the machine may be busy.
TEST(TokenizerTime, GrowsWithTheText) {
  const auto seconds = [](const Tokenizer& tokenizer, size_t bytes) {
    const std::string text(bytes, 'a');
    const auto start = std::chrono::steady_clock::now();
    EXPECT_FALSE(tokenizer.encode(text, true).empty());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const Tokenizer& tokenizer = goldens::tokenizer("gemma4", "gguf");
  const double small = seconds(tokenizer, size_t{1} << 17);
  EXPECT_LT(seconds(tokenizer, size_t{1} << 21), 16 * 6 * std::max(small, 0.005));
}

}  // namespace
}  // namespace lapidary
