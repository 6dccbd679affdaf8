// POST /v1/completions on a tiny model: every field, every refusal.
#include <gtest/gtest.h>

#include <set>

#include "serve/served.h"

namespace lapidary::serve::test {
namespace {

class ApiCompletions : public testing::Test {
 protected:
  json::object ask(json::object more) { return served_.ask(kTextPath, base(std::move(more))); }
  Stream stream(json::object more) { return served_.stream(kTextPath, base(std::move(more))); }
  static json::object base(json::object more) {
    json::object body{{"model", "tiny"}, {"prompt", "hello"}, {"max_tokens", 12}, {"temperature", 0}};
    for (auto& field : more) body[field.key()] = field.value();
    return body;
  }
  static const json::object& choice(const json::object& answer, size_t i = 0) {
    return answer.at("choices").at(i).as_object();
  }
  static std::string text(const json::object& answer, size_t i = 0) {
    return std::string(choice(answer, i).at("text").as_string());
  }
  static const json::array& list(const json::object& choice, const char* name) {
    return choice.at("logprobs").at(name).as_array();
  }
  void refused(const json::object& more, const std::string& param, const std::string& part) {
    served_.refused(kTextPath, json::serialize(base(more)), 400, param, part);
  }
  Served served_;
};

TEST_F(ApiCompletions, TheAnswerHasOpenAisShape) {
  const json::object got = ask({});
  EXPECT_EQ(got.at("object"), "text_completion");
  EXPECT_EQ(got.at("model"), "tiny");
  EXPECT_TRUE(got.at("id").as_string().starts_with("cmpl-"));
  EXPECT_TRUE(got.at("system_fingerprint").as_string().starts_with("fp_"));
  EXPECT_EQ(choice(got).at("index"), 0);
  EXPECT_EQ(choice(got).at("finish_reason"), "length");
  EXPECT_TRUE(choice(got).at("logprobs").is_null());
  EXPECT_FALSE(text(got).empty());
  const json::object& usage = got.at("usage").as_object();
  EXPECT_EQ(usage.at("prompt_tokens"), 6) << "five bytes and one BOS";
  EXPECT_EQ(usage.at("completion_tokens"), 12);
  EXPECT_EQ(usage.at("total_tokens"), 18);
  EXPECT_TRUE(usage.at("prompt_tokens_details").at("cached_tokens").is_int64());
}

TEST_F(ApiCompletions, PiecesOfAStreamJoinedAreTheWholeAnswer) {
  for (const json::object& more :
       {json::object{{"logprobs", 2}}, json::object{{"stop", json::array{"o", "w"}}, {"logprobs", 1}},
        json::object{{"echo", true}, {"logprobs", 1}},
        json::object{{"n", 3}, {"temperature", 1.5}, {"seed", 5}},
        json::object{{"echo", true}, {"max_tokens", 0}}}) {
    const json::object whole = ask(more);
    json::object with_usage = more;
    with_usage["stream_options"] = {{"include_usage", true}};
    const Stream pieces = stream(with_usage);
    EXPECT_TRUE(pieces.done);
    for (size_t i = 0; i < whole.at("choices").as_array().size(); ++i) {
      EXPECT_EQ(pieces.joined("text", i), text(whole, i)) << json::serialize(more);
      json::array tokens, offsets;
      for (const json::object& event : pieces.events) {
        for (const json::value& one : event.at("choices").as_array()) {
          if (one.at("index") != i || one.at("logprobs").is_null()) continue;
          for (const json::value& token : one.at("logprobs").at("tokens").as_array()) tokens.push_back(token);
          for (const json::value& at : one.at("logprobs").at("text_offset").as_array()) offsets.push_back(at);
        }
      }
      if (!more.contains("logprobs")) continue;
      EXPECT_EQ(tokens, list(choice(whole, i), "tokens"));
      EXPECT_EQ(offsets, list(choice(whole, i), "text_offset"));
    }
    const json::object& last = pieces.events.back();
    EXPECT_TRUE(last.at("choices").as_array().empty());
    EXPECT_EQ(last.at("usage").at("completion_tokens"), whole.at("usage").at("completion_tokens"));
    EXPECT_TRUE(pieces.events.front().at("usage").is_null());
  }
}

TEST_F(ApiCompletions, PromptsAreTextsOrIdsAloneOrInBatches) {
  const std::string one = text(ask({}));
  json::array ids;
  for (const TokenId id : served_.tokenizer().prompt_ids("hello")) ids.push_back(id);
  EXPECT_EQ(text(ask({{"prompt", ids}})), one) << "ids are taken as they are";
  const json::object both = ask({{"prompt", json::array{"hello", "other"}}});
  ASSERT_EQ(both.at("choices").as_array().size(), 2u);
  EXPECT_EQ(text(both, 0), one);
  EXPECT_EQ(text(both, 1), text(ask({{"prompt", "other"}})));
  EXPECT_EQ(choice(both, 1).at("index"), 1);
  EXPECT_EQ(both.at("usage").at("prompt_tokens"), 12);
  const json::object batch = ask({{"prompt", json::array{ids, ids}}});
  EXPECT_EQ(text(batch, 0), one);
  EXPECT_EQ(text(batch, 1), one);
  const json::object mixed = ask({{"prompt", json::array{ids, "hello"}}});
  EXPECT_EQ(text(mixed, 0), text(mixed, 1));
}

TEST_F(ApiCompletions, ExactlyOneBos) {
  EXPECT_EQ(ask({{"prompt", "<bos>hello"}}).at("usage").at("prompt_tokens"), 6);
  EXPECT_EQ(ask({{"add_special_tokens", false}}).at("usage").at("prompt_tokens"), 5);
}

TEST_F(ApiCompletions, EchoWithLogprobsScoresThePrompt) {
  const json::object got = ask({{"echo", true}, {"logprobs", 2}, {"max_tokens", 3}});
  const json::object& first = choice(got);
  const json::array &tokens = list(first, "tokens"), &logprobs = list(first, "token_logprobs"),
                    &best = list(first, "top_logprobs"), &offsets = list(first, "text_offset");
  ASSERT_EQ(tokens.size(), 9u);
  ASSERT_EQ(logprobs.size(), 9u);
  ASSERT_EQ(best.size(), 9u);
  ASSERT_EQ(offsets.size(), 9u);
  EXPECT_EQ(tokens[0], "<bos>");
  EXPECT_TRUE(logprobs[0].is_null());
  EXPECT_TRUE(best[0].is_null());
  EXPECT_EQ(tokens[1], "h");
  for (size_t i = 1; i < 9; ++i) {
    EXPECT_LE(logprobs[i].to_number<double>(), 0);
    const json::object& some = best[i].as_object();
    EXPECT_GE(some.size(), 2u);
    EXPECT_LE(some.size(), 3u);
    EXPECT_TRUE(some.contains(tokens[i].as_string())) << "the token itself is always there";
    double most = -1e9;
    for (const auto& item : some) most = std::max(most, item.value().to_number<double>());
    EXPECT_GE(most, logprobs[i].to_number<double>());
    if (i <= 5) continue;
    EXPECT_EQ(most, logprobs[i].to_number<double>()) << "greedy tokens are the best ones";
  }
  EXPECT_EQ(offsets[0], 0);
  EXPECT_EQ(offsets[1], 0);
  EXPECT_EQ(offsets[2], 1);
  EXPECT_EQ(offsets[6], 5) << "the text goes on where the prompt ends";
  EXPECT_TRUE(text(got).starts_with("hello"));
}

TEST_F(ApiCompletions, PromptScoresAreThoseOfGeneratingTheSame) {
  // Letters have two tokens each: without those of the bytes, texts tell their ids.
  json::object bias;
  for (int letter = 'a'; letter <= 'z'; ++letter) bias[std::to_string(kFirstByte + letter)] = -100;
  const json::object made = ask({{"logprobs", 1}, {"max_tokens", 6}, {"logit_bias", bias}});
  json::array ids;
  for (const TokenId id : served_.tokenizer().prompt_ids("hello")) ids.push_back(id);
  const json::array& spelt = list(choice(made), "tokens");
  for (const json::value& token : spelt) {
    const std::string word(token.as_string());
    const auto id = word.starts_with("bytes:\\x")
                        ? std::optional<TokenId>(kFirstByte + std::stoi(word.substr(8), nullptr, 16))
                        : served_.tokenizer().find(word);
    ids.push_back(id ? *id : kFirstByte + static_cast<unsigned char>(word.at(0)));
  }
  for (const int64_t most : {0, 1}) {
    const json::object scored = ask({{"prompt", ids}, {"echo", true}, {"logprobs", 1}, {"max_tokens", most}});
    const json::array& all = list(choice(scored), "token_logprobs");
    ASSERT_EQ(all.size(), ids.size() + static_cast<size_t>(most));
    for (size_t i = 0; i < spelt.size(); ++i) {
      EXPECT_EQ(all[6 + i], list(choice(made), "token_logprobs")[i]) << i;
    }
  }
}

TEST_F(ApiCompletions, EchoWithoutLogprobsAndOfOneToken) {
  EXPECT_EQ(text(ask({{"echo", true}, {"max_tokens", 0}})), "hello");
  EXPECT_EQ(text(ask({{"echo", true}})), "hello" + text(ask({})));
  const json::object one =
      ask({{"prompt", json::array{kFirstByte + 'q'}}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 0}});
  EXPECT_EQ(text(one), "q");
  EXPECT_EQ(list(choice(one), "tokens").size(), 1u);
  EXPECT_EQ(choice(one).at("finish_reason"), "length");
}

TEST_F(ApiCompletions, LogprobsOfNoneOfTheBest) {
  const json::object got = ask({{"logprobs", 0}});
  EXPECT_EQ(list(choice(got), "tokens").size(), 12u);
  EXPECT_TRUE(choice(got).at("logprobs").at("top_logprobs").is_null());
}

TEST_F(ApiCompletions, SeedsAndStreamsOfDraws) {
  const json::object hot{{"temperature", 1.5}, {"seed", 7}, {"n", 3}};
  const json::object a = ask(hot), b = ask(hot);
  std::set<std::string> texts;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(text(a, i), text(b, i)) << "the same seed";
    texts.insert(text(a, i));
  }
  EXPECT_EQ(texts.size(), 3u) << "each text has draws of its own";
  EXPECT_EQ(text(ask({{"temperature", 1.5}, {"seed", 7}})), text(a, 0)) << "n changes no text";
  EXPECT_NE(text(ask({{"temperature", 1.5}, {"seed", 8}})), text(a, 0));
  EXPECT_EQ(a.at("seed"), 7);
  const json::object drawn = ask({{"temperature", 1.5}});
  EXPECT_EQ(text(ask({{"temperature", 1.5}, {"seed", drawn.at("seed")}})), text(drawn))
      << "a seed that the server drew gives the text again";
  EXPECT_EQ(ask({{"seed", -1}}).at("choices").as_array().size(), 1u);
}

TEST_F(ApiCompletions, BestOfGivesTheLikeliest) {
  const json::object all = ask({{"temperature", 1.5}, {"seed", 3}, {"n", 4}, {"logprobs", 0}});
  const auto mean = [](const json::object& choice) {
    double sum = 0;
    for (const json::value& one : list(choice, "token_logprobs")) sum += one.to_number<double>();
    return sum / static_cast<double>(list(choice, "token_logprobs").size());
  };
  size_t best = 0;
  for (size_t i = 1; i < 4; ++i) {
    if (mean(choice(all, i)) > mean(choice(all, best))) best = i;
  }
  const json::object got = ask({{"temperature", 1.5}, {"seed", 3}, {"best_of", 4}});
  ASSERT_EQ(got.at("choices").as_array().size(), 1u);
  EXPECT_EQ(text(got), text(all, best));
  EXPECT_EQ(choice(got).at("index"), 0);
  EXPECT_TRUE(choice(got).at("logprobs").is_null());
  EXPECT_EQ(got.at("usage").at("completion_tokens"), all.at("usage").at("completion_tokens"));
}

TEST_F(ApiCompletions, StopTextsEndTheTextAndAreNotInIt) {
  const std::string whole = text(ask({{"max_tokens", 40}}));
  std::string stop;  // a character in the middle
  for (const char c : whole.substr(whole.size() / 3)) {
    if (stop.empty() && static_cast<unsigned char>(c) < 0x80) stop = c;
  }
  ASSERT_FALSE(stop.empty()) << whole;
  const json::object cut = ask({{"stop", stop}, {"logprobs", 1}, {"max_tokens", 40}});
  EXPECT_EQ(text(cut), whole.substr(0, whole.find(stop)));
  EXPECT_EQ(choice(cut).at("finish_reason"), "stop");
}

TEST_F(ApiCompletions, BiasesAndPenaltiesBind) {
  const json::object only{{std::to_string(kFirstByte + 'x'), 100}};
  EXPECT_EQ(text(ask({{"logit_bias", only}, {"max_tokens", 4}})), "xxxx");
  EXPECT_EQ(text(ask({{"logit_bias", json::object{{std::to_string(kEos), 100}}}})), "") << "the end at once";
  EXPECT_EQ(choice(ask({{"logit_bias", json::object{{std::to_string(kEos), 100}}}})).at("finish_reason"),
            "stop");
  const std::string punished = text(ask({{"logit_bias", json::object{{std::to_string(kFirstByte + 'x'), 20}}},
                                         {"presence_penalty", 2},
                                         {"frequency_penalty", 2},
                                         {"repetition_penalty", 50},
                                         {"max_tokens", 20}}));
  EXPECT_NE(punished, std::string(20, 'x'));
  EXPECT_EQ(text(ask({{"temperature", 2}, {"top_k", 1}})), text(ask({})));
  EXPECT_EQ(text(ask({{"temperature", 2}, {"top_p", 0}})), text(ask({})));
  EXPECT_EQ(text(ask({{"temperature", 2}, {"min_p", 1}})), text(ask({})));
}

TEST_F(ApiCompletions, SpecialTokensAreShownOnlyWhenAskedFor) {
  const json::object bias{{std::to_string(kStringMark), 100}};
  EXPECT_EQ(text(ask({{"logit_bias", bias}, {"max_tokens", 2}})), "");
  EXPECT_EQ(text(ask({{"logit_bias", bias}, {"max_tokens", 2}, {"skip_special_tokens", false}})),
            "<|\"|><|\"|>");
}

TEST_F(ApiCompletions, TheLimitThatIsNotGivenIsSane) {
  Served small({.limits = {.default_max_tokens = 7}});
  json::object body{{"prompt", "hello"}, {"temperature", 0}};
  EXPECT_EQ(small.ask(kTextPath, body).at("usage").at("completion_tokens"), 7);
  body["prompt"] = std::string(508, 'a');
  json::object& bias = (body["logit_bias"] = json::object{}).as_object();
  for (const TokenId id : served_.tokenizer().turn_end_ids()) bias[std::to_string(id)] = -100;
  bias[std::to_string(kEos)] = -100;
  EXPECT_EQ(small.ask(kTextPath, body).at("usage").at("completion_tokens"), 3) << "as much as there is room";
}

TEST_F(ApiCompletions, HarmlessFieldsAreAcceptedAndNullIsAbsent) {
  const std::string plain = text(ask({}));
  EXPECT_EQ(text(ask({{"user", "me"}, {"metadata", json::object{{"a", 1}}}, {"store", false}})), plain);
  EXPECT_EQ(text(ask({{"stop", nullptr}, {"seed", nullptr}, {"n", nullptr}, {"suffix", nullptr}})), plain);
}

TEST_F(ApiCompletions, Refusals) {
  refused({{"temprature", 1}}, "temprature", "did you mean temperature?");
  refused({{"temperature", "hot"}}, "temperature", "expected a number");
  refused({{"temperature", -1}}, "temperature", "0 to 100");
  refused({{"top_p", 1.5}}, "top_p", "0 to 1");
  refused({{"top_k", -1}}, "top_k", "0 to");
  refused({{"min_p", 2}}, "min_p", "0 to 1");
  refused({{"repetition_penalty", 0}}, "repetition_penalty", "0.01 to 100");
  refused({{"frequency_penalty", 3}}, "frequency_penalty", "-2 to 2");
  refused({{"presence_penalty", -3}}, "presence_penalty", "-2 to 2");
  refused({{"n", 0}}, "n", "1 to 8");
  refused({{"n", 9}}, "n", "1 to 8");
  refused({{"best_of", 1}, {"n", 2}}, "best_of", "expected n (2) or more");
  refused({{"best_of", 2}, {"stream", true}}, "best_of", "not with \"stream\"");
  refused({{"max_tokens", -1}}, "max_tokens", "0 to");
  refused({{"max_tokens", 507}}, "prompt", "the context holds 512 tokens: the prompt has 6, and 507");
  refused({{"prompt", std::string(512, 'a')}}, "prompt", "the prompt has 513");
  refused({{"prompt", std::string(100'000, 'a')}}, "prompt", "100000 bytes of text cannot fit");
  refused({{"prompt", ""}, {"add_special_tokens", false}}, "prompt", "empty");
  refused({{"prompt", json::array{}}}, "prompt", "empty");
  refused({{"prompt", json::array{"a", json::array{}}}}, "prompt[1]", "empty");
  refused({{"prompt", json::array{5, 320}}}, "prompt[1]", "0 to 319");
  refused({{"prompt", json::array{5, "a"}}}, "prompt[1]", "expected a token id");
  refused({{"prompt", json::array{"a", 5}}}, "prompt[1]", "expected a string or an array");
  refused({{"prompt", 5}}, "prompt", "expected a string, token ids");
  refused({{"prompt", nullptr}}, "prompt", "missing");
  refused({{"prompt", json::array{"a", "b", "c"}}, {"n", 4}}, "prompt", "at most 2 prompts, got 3");
  refused({{"suffix", "x"}}, "suffix", "fills in no middle");
  refused({{"logprobs", 21}}, "logprobs", "0 to 20");
  refused({{"logprobs", true}}, "logprobs", "expected an integer");
  refused({{"logit_bias", json::object{{"320", 1}}}}, "logit_bias", "0 to 319");
  refused({{"logit_bias", json::object{{"x", 1}}}}, "logit_bias", "0 to 319");
  refused({{"logit_bias", json::object{{"5", 101}}}}, "logit_bias.5", "-100 to 100");
  refused({{"logit_bias", json::object{{"5", 1}, {"05", 1}}}}, "logit_bias", "twice");
  refused({{"stop", ""}}, "stop", "empty");
  refused({{"stop", json::array{1}}}, "stop[0]", "expected a string");
  refused({{"stop", std::string(1025, 'a')}}, "stop", "1024 bytes");
  refused({{"stream_options", json::object{}}}, "stream_options", "only together");
  refused({{"stream", true}, {"stream_options", json::object{{"include_usge", true}}}},
          "stream_options.include_usge", "did you mean stream_options.include_usage?");
  refused({{"seed", 1.5}}, "seed", "expected an integer");
  served_.refused(kTextPath, R"({"prompt": "a", "model": "other"})", 404, "model", "this server runs tiny");
  served_.refused(kTextPath, R"({"prompt": )", 400, "", "the body is not JSON: line 1");
}

}  // namespace
}  // namespace lapidary::serve::test
