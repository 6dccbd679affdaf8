// The real SmolLM2-135M-Instruct of the user's model cache. A missing model is a failure, not a pass.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <numeric>

#include "formats/mapped_file.h"
#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

constexpr const char* kModel = "smollm2-135m-instruct";

Invocation with_cache(std::vector<std::string> arguments, std::string input = "") {
  return {.arguments = std::move(arguments), .input = std::move(input), .user_cache = true};
}

TEST(RealSmolLM2, SaysParis) {
  const Program program;
  const json::object answer = program.json(
      with_cache({"run", "--raw", kModel, "The capital of France is", "-n", "4", "--json", "--temp", "0"}));
  const std::string text(answer.at("text").as_string());
  EXPECT_EQ(text.find(" Paris"), 0u) << text;
  EXPECT_EQ(answer.at("prompt_tokens").as_int64(), 5);
}

TEST(RealSmolLM2, TokenizesAsPublished) {
  const Outcome outcome = Program().run(with_cache({"tokenize", kModel, "The capital of France is"}));
  EXPECT_EQ(outcome.out, "504 3575 282 4649 314\n") << outcome.err;
}

TEST(RealSmolLM2, ChatsThroughItsOwnTemplateAndStopsByItself) {
  const Program program;
  const json::object answer = program.json(with_cache(
      {"run", kModel, "What is the capital of France? Answer in one sentence.", "--json", "-n", "80"}));
  EXPECT_NE(std::string(answer.at("text").as_string()).find("Paris"), std::string::npos) << answer.at("text");
  EXPECT_EQ(answer.at("finish_reason").as_string(), "stop");
  EXPECT_EQ(answer.at("finish_detail").as_string(), "<|im_end|>");
}

// The schema's promise, checked by hand: real weights, greedy and sampled.
TEST(RealSmolLM2, AnswersUnderASchema) {
  const Program program;
  const char* schema =
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":30},"age":{"type":"integer","minimum":0,"maximum":30},)"
      R"("colours":{"type":"array","items":{"enum":["black","white","red"]},"minItems":1,"maxItems":3}},)"
      R"("required":["name","age","colours"],"additionalProperties":false})";
  const std::vector<std::vector<std::string>> ways = {{"--temp", "0"},
                                                      {"--temp", "1", "--seed", "1"},
                                                      {"--temp", "1.5", "--seed", "2"},
                                                      {"--raw", "--temp", "0"}};
  for (const std::vector<std::string>& way : ways) {
    std::vector<std::string> arguments = {"run", kModel, "Describe a cat as JSON.", "--json",
                                          "-n",  "200",  "--json-schema",           schema};
    arguments.insert(arguments.end(), way.begin(), way.end());
    const json::object answer = program.json(with_cache(arguments));
    SCOPED_TRACE(json::serialize(answer));
    EXPECT_EQ(answer.at("finish_reason").as_string(), "stop");
    const json::object cat = json::parse(answer.at("content").as_string()).as_object();
    EXPECT_EQ(cat.size(), 3u);
    EXPECT_LE(cat.at("name").as_string().size(), 120u);
    EXPECT_GE(cat.at("age").as_int64(), 0);
    EXPECT_LE(cat.at("age").as_int64(), 30);
    EXPECT_GE(cat.at("colours").as_array().size(), 1u);
    EXPECT_LE(cat.at("colours").as_array().size(), 3u);
    for (const json::value& colour : cat.at("colours").as_array())
      EXPECT_TRUE(colour == "black" || colour == "white" || colour == "red");
  }
}

TEST(RealSmolLM2, AnswersUnderARegexInItsChat) {
  const Program program;
  const json::object answer = program.json(with_cache({"run", kModel, "Is Paris the capital of France?",
                                                       "--json", "--regex", "(Yes|No), [A-Za-z ]{5,60}\\."}));
  const std::string text(answer.at("content").as_string());
  EXPECT_TRUE(text.starts_with("Yes, ") || text.starts_with("No, ")) << text;
  EXPECT_TRUE(text.ends_with('.')) << text;
}

TEST(RealSmolLM2, InspectsInNoTime) {
  const Outcome outcome = Program().run(with_cache({"inspect", kModel}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_LT(outcome.seconds, 1.0);
  for (const char* part : {"F ×30", "23,040", "gpt2 (smollm)", "49,152 tokens", "q4_1", "<|im_end|>"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
}

TEST(RealSmolLM2, ScoresATextToItsGoldenLogProbabilities) {
  const Golden golden(data_path("gguf/real/smollm2-135m-instruct-q4_1.safetensors"));
  const TensorView& view = golden.view("text.logprobs");
  ASSERT_EQ(view.dtype, DType::f64);
  std::vector<double> expected(view.bytes.size() / sizeof(double));
  std::memcpy(expected.data(), view.bytes.data(), view.bytes.size());

  // The first bytes of the text that the golden covers: enough to see a wrong position or a missing token,
  // and quick.
  const Program program;
  program.folder().write("text.txt", read_text_file(data_path("gguf/real/constitution.txt")).substr(0, 900));
  const json::object out = program.json(
      with_cache({"score", kModel, "text.txt", "--arithmetic", "f32", "--kv-dtype", "f32", "--json"}));
  EXPECT_EQ(out.at("windows").as_int64(), 1);
  const auto logprobs = json::value_to<std::vector<double>>(out.at("logprobs"));
  ASSERT_GT(logprobs.size(), 150u);
  for (size_t i = 0; i + 2 < logprobs.size(); ++i) {  // the cut may have changed the last token
    ASSERT_NEAR(logprobs[i], expected[i], 5e-4 * std::max(1.0, std::abs(expected[i]))) << "token " << i + 1;
  }
  const double sum = std::accumulate(logprobs.begin(), logprobs.end(), 0.0);
  const double perplexity = std::exp(-sum / static_cast<double>(logprobs.size()));
  EXPECT_NEAR(out.at("perplexity").as_double(), perplexity, 1e-9 * perplexity);
  EXPECT_NEAR(out.at("bits_per_byte").as_double(), -sum / std::log(2.0) / 900, 1e-9);
}

}  // namespace
}  // namespace lapidary::test
