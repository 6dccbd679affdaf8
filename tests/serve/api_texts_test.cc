// From ids to deltas, and the guards.
#include <gtest/gtest.h>

#include <cmath>

#include "serve/api/guards.h"
#include "serve/api/texts.h"
#include "support/delimited_vocabulary.h"

namespace lapidary::serve {
namespace {

using namespace lapidary::test;

class ApiTexts : public testing::Test {
 protected:
  ApiTexts()
      : tokenizer_(Tokenizer::from_json(delimited_tokenizer_json(), kBos)),
        stop_ids_(tokenizer_.turn_end_ids()),
        syntax_(TurnSyntax::of(tokenizer_, stop_ids_)) {}
  static ScoredToken score(TokenId id) { return {{id, -0.5F * static_cast<float>(id)}, {}}; }
  // Everything that comes of the ids, joined.
  TextDelta read(TextReader& reader, const std::vector<TokenId>& ids) const {
    TextDelta all;
    const auto add = [&all](TextDelta delta) {
      all.content += delta.content;
      all.reasoning += delta.reasoning;
      for (ToolCall& call : delta.calls) all.calls.push_back(std::move(call));
      for (TextToken& token : delta.tokens) all.tokens.push_back(std::move(token));
    };
    for (const TokenId id : ids) {
      const ScoredToken scored = score(id);
      add(reader.push(id, &scored));
      if (reader.stop()) break;
    }
    add(reader.finish({}));
    return all;
  }
  std::vector<TokenId> bytes(std::string_view text) const {
    std::vector<TokenId> ids;
    for (const char c : text) ids.push_back(kFirstByte + static_cast<unsigned char>(c));
    return ids;
  }
  static std::vector<TokenId> ids_of(const TextDelta& delta) {
    std::vector<TokenId> ids;
    for (const TextToken& token : delta.tokens) ids.push_back(token.id);
    return ids;
  }
  static std::vector<size_t> begins_of(const TextDelta& delta) {
    std::vector<size_t> begins;
    for (const TextToken& token : delta.tokens) begins.push_back(token.begin);
    return begins;
  }
  Tokenizer tokenizer_;
  std::vector<TokenId> stop_ids_;
  TurnSyntax syntax_;
};

TEST_F(ApiTexts, TokensStandAtTheCharactersTheyBeginWith) {
  TextReader reader(tokenizer_, syntax_, {.raw = true});
  const TextDelta all = read(reader, bytes("a\xC3\xA9z"));
  EXPECT_EQ(all.content, "a\xC3\xA9z");
  EXPECT_EQ(ids_of(all), bytes("a\xC3\xA9z"));
  EXPECT_EQ(begins_of(all), (std::vector<size_t>{0, 1, 1, 2})) << "both bytes of the second character";
}

TEST_F(ApiTexts, WhatAStopTextCutsIsCutFromTheTokensToo) {
  TextReader reader(tokenizer_, syntax_, {.raw = true, .stops = {"END"}});
  const TextDelta all = read(reader, bytes("abEND more"));
  EXPECT_EQ(all.content, "ab");
  EXPECT_EQ(ids_of(all), bytes("ab"));
  EXPECT_EQ(reader.stop(), "END");
}

TEST_F(ApiTexts, HeldBackTextComesAtTheEndWithItsTokens) {
  TextReader reader(tokenizer_, syntax_, {.raw = true, .stops = {"END"}});
  const TextDelta all = read(reader, bytes("abEN"));
  EXPECT_EQ(all.content, "abEN");
  EXPECT_EQ(ids_of(all), bytes("abEN"));
  TextReader partial(tokenizer_, syntax_, {.raw = true});
  const TextDelta half = read(partial, bytes("a\xC3"));
  EXPECT_EQ(half.content, "a\xEF\xBF\xBD");
  EXPECT_EQ(ids_of(half), bytes("a\xC3"));
}

TEST_F(ApiTexts, ATurnIsTakenApartAndOnlyContentHasTokens) {
  TextReader reader(tokenizer_, syntax_, {.tools = true});
  std::vector<TokenId> ids{kChannel};
  const auto add = [&](const std::vector<TokenId>& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  add(bytes("thought\nhm"));
  add({kChannelEnd});
  add(bytes("yes"));
  add({kCall});
  add(bytes("call:f{n:1}"));
  add({kCallEnd});
  const TextDelta all = read(reader, ids);
  EXPECT_EQ(all.reasoning, "hm");
  EXPECT_EQ(all.content, "yes");
  ASSERT_EQ(all.calls.size(), 1u);
  EXPECT_EQ(all.calls[0].name, "f");
  EXPECT_EQ(ids_of(all), bytes("yes"));
  EXPECT_TRUE(reader.has_calls());
  EXPECT_EQ(reader.reasoning_tokens(), 12) << "ten of the thought, two delimiters";
}

TEST_F(ApiTexts, SpecialTokensNeverLeakUnlessAskedFor) {
  std::vector<TokenId> ids = bytes("a");
  ids.push_back(kStringMark);
  ids.push_back(kFirstByte + 'b');
  TextReader turn(tokenizer_, syntax_, {}), raw(tokenizer_, syntax_, {.raw = true}),
      shown(tokenizer_, syntax_, {.raw = true, .show_special = true});
  EXPECT_EQ(read(turn, ids).content, "ab");
  EXPECT_EQ(read(raw, ids).content, "ab");
  EXPECT_EQ(read(shown, ids).content, "a<|\"|>b");
}

TEST(LoopGuardTest, FindsCyclesOfEveryLength) {
  for (const int64_t period : {int64_t{1}, int64_t{2}, int64_t{7}, LoopGuard::kLongest}) {
    LoopGuard guard;
    for (TokenId id = 0; id < 50; ++id) EXPECT_EQ(guard.push(1000 + id), std::nullopt);
    const int64_t needed = std::max(LoopGuard::kLeast, LoopGuard::kTimes * period);
    for (int64_t i = 0; i < needed - 1; ++i) {
      ASSERT_EQ(guard.push(static_cast<TokenId>(i % period)), std::nullopt) << period << " " << i;
    }
    EXPECT_EQ(guard.push(static_cast<TokenId>((needed - 1) % period)), period);
  }
}

TEST(LoopGuardTest, LetsListsAndCountingPass) {
  LoopGuard guard;
  for (TokenId i = 0; i < 2000; ++i) {  // "- item N": the same but for its number
    EXPECT_EQ(guard.push(i % 4 == 3 ? 100 + i : i % 4), std::nullopt);
  }
}

TEST(LoopGuardTest, ForbiddenTokensLoseTheirOwnBias) {
  SamplingParams sampling;
  sampling.logit_bias = {{3, 5.0F}, {4, 5.0F}};
  forbid(sampling, {4, 9});
  ASSERT_EQ(sampling.logit_bias.size(), 3u);
  EXPECT_EQ(sampling.logit_bias[0], (std::pair<int32_t, float>{3, 5.0F}));
  for (size_t i = 1; i < 3; ++i) EXPECT_TRUE(std::isinf(sampling.logit_bias[i].second));
  EXPECT_NO_THROW(sampling.validate(10));
}

}  // namespace
}  // namespace lapidary::serve
