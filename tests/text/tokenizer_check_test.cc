// check_tokenizer: sound vocabularies pass, damaged ones are named.
#include "text/tokenizer_check.h"

#include <gtest/gtest.h>

#include "text/goldens.h"

namespace lapidary {
namespace {

const TokenizerCheck& find(const std::vector<TokenizerCheck>& checks, const std::string& name) {
  for (const TokenizerCheck& check : checks) {
    if (check.name == name) return check;
  }
  throw std::runtime_error("no check is called " + name);
}

class TokenizerChecks : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerChecks, PublishedVocabulariesPass) {
  const Tokenizer& tokenizer = goldens::tokenizer(GetParam(), "json");
  for (const TokenizerCheck& check :
       check_tokenizer(tokenizer, {tokenizer.vocab_size(), tokenizer.bos_id(), {}, {}})) {
    EXPECT_TRUE(check.passed) << check.name << ": " << check.detail;
    if (check.name == "known texts") {
      EXPECT_EQ(check.detail, "2 encode to the ids of the published tokenizer");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, TokenizerChecks, testing::Values("gemma4", "gemma3", "smollm2"));

// Two entries exchanged: every text still encodes, comes back, and means something else.
TEST(TokenizerCheck, TwoExchangedEntriesAreSeenInKnownTexts) {
  boost::json::object root = boost::json::parse(goldens::tokenizer_json("smollm2")).as_object();
  boost::json::object& vocab = root["model"].as_object()["vocab"].as_object();
  ASSERT_EQ(vocab["\xC4\xA0of"].to_number<int>(), 282);
  std::swap(vocab["\xC4\xA0of"], vocab["\xC4\xA0"
                                       "and"]);
  const Tokenizer damaged = Tokenizer::from_json(boost::json::serialize(root));
  const auto checks = check_tokenizer(damaged, {damaged.vocab_size(), {}, {}, {}});
  EXPECT_TRUE(find(checks, "texts come back").passed);
  EXPECT_FALSE(find(checks, "known texts").passed);
  EXPECT_NE(find(checks, "known texts").detail.find("expected ids [504, 3575, 282,"), std::string::npos)
      << find(checks, "known texts").detail;
}

TEST(TokenizerCheck, ClaimsOfTheModelAreHeldAgainstTheVocabulary) {
  const Tokenizer& tokenizer = goldens::tokenizer("smollm2", "json");
  const auto failed = [&](const VocabularyClaims& claims, const std::string& name) {
    const TokenizerCheck check = find(check_tokenizer(tokenizer, claims), name);
    return check.passed ? "passed" : check.detail;
  };
  EXPECT_EQ(failed({49151, {}, {}, {}}, "fits the embedding table"),
            "49152 tokens, 49151 rows of the embedding");
  EXPECT_EQ(failed({49152, 504, {}, {}}, "special ids"), "bos 504 is \"The\", which is no special token");
  EXPECT_EQ(failed({49152, {}, {}, {2, 70000}}, "special ids"), "stop 70000: expected an id below 49152");
  EXPECT_EQ(failed({49152, 1, 2, {2}}, "special ids"), "passed");
}

}  // namespace
}  // namespace lapidary
