// `lapidary kv trace`: the same tokens as `run`, and a report that says what was seen.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

const std::string kHybrid = data_path("gguf/models/gemma4-e2b-tiny-F32.gguf").string();  // windows of 8
const std::string kIdsOnly = data_path("models/gemma4-31b-tiny").string();

std::vector<std::string> trace(const std::string& model, std::vector<std::string> more) {
  more.insert(more.begin(), {"kv", "trace", model});
  return more;
}

void expect_parts(const Outcome& outcome, const std::vector<std::string>& parts) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const std::string& part : parts)
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
}

TEST(KvTrace, PicksTheTokensOfRun) {
  const Program program;
  for (const char* name : {"gemma4-e2b-tiny-F32", "llama-tiny-Q4_0", "gemma3-tiny-Q8_0"}) {
    const std::string model = data_path(std::string("gguf/models/") + name + ".gguf").string();
    for (const bool ignore_eos : {false, true}) {
      std::vector<std::string> run{"run",    "--raw",  model, "the end of the line", "-n", "31",
                                   "--json", "--temp", "0"};
      std::vector<std::string> traced =
          trace(model, {"the end of the line", "-n", "30", "--json", "--chunk", "4", "--threads", "2"});
      if (ignore_eos) {
        run.emplace_back("--ignore-eos");
        traced.emplace_back("--ignore-eos");
      }
      const json::object answer = program.json(run), out = program.json(traced);
      EXPECT_EQ(out.at("summary").at("ids"), answer.at("ids")) << name;
      EXPECT_EQ(out.at("summary").at("prompt_tokens").as_int64(), answer.at("prompt_tokens").as_int64());
      EXPECT_EQ(out.at("summary").at("stop_token").is_null(),
                answer.at("finish_reason").as_string() != "stop");
    }
  }
}

TEST(KvTrace, ReportsEachKindOfLayer) {
  const Outcome outcome = Program().run(trace(kHybrid, {"the end of the line", "-n", "40", "--ignore-eos"}));
  expect_parts(outcome,
               {"call 0, prefill: KV 0 -> 14 (+10,752 B)", "call 1, decode: KV 14 -> 15 (+768 B)",
                "own KV; window 8: 8 of 14 in sight", "layers 10-13: no KV of its own, reads layer 8's",
                "k [1,14,16] = 1 × 14 tok × 1 head × 16", "q [1,1,96] = 1 × 1 tok × 6 heads × 16",
                "40 decode calls -> 41 tokens", "ends at 14 + 40 = 54 positions, not 55",
                "window 8: 8 of 54 in sight, 32 evicted", "ok  cache length", "ok  unwatched run"});
  EXPECT_EQ(outcome.out.find("call 2, decode"), std::string::npos) << "shown with --every-call alone";
  EXPECT_EQ(outcome.out.find("FAILED"), std::string::npos);
}

TEST(KvTrace, ShowsEveryCallAndLayerOnDemand) {
  const Program program;
  expect_parts(program.run(trace(kHybrid, {"the end", "-n", "3", "--ignore-eos", "--every-call"})),
               {"call 2, decode", "call 3, decode"});
  const Outcome all = program.run(trace(kHybrid, {"the end", "-n", "1", "--ignore-eos", "--layers", "all"}));
  expect_parts(all, {"reads 8's", "reads 9's", "[1,1,192]"});
  const Outcome some =
      program.run(trace(kHybrid, {"the end", "-n", "1", "--ignore-eos", "--layers", "0,10-11"}));
  expect_parts(some, {"reads 8's"});
  EXPECT_EQ(some.out.find("reads 9's"), std::string::npos);
}

TEST(KvTrace, TakesIdsWithoutATokenizer) {
  const Program program;
  const json::object out =
      program.json(trace(kIdsOnly, {"--ids", "2,10,11,12", "-n", "5", "--ignore-eos", "--json"}));
  EXPECT_EQ(out.at("prompt").at("mode").as_string(), "ids");
  EXPECT_EQ(out.at("summary").at("cached_positions").as_int64(), 9);
  EXPECT_EQ(out.at("prompt").at("tokens").at(1).at("piece").as_string(), "");
  EXPECT_EQ(out.at("repro").at("model").as_string(), "gemma4-31b-tiny");
  expect_refusal(program.run(trace(kIdsOnly, {"text"})), 1, "this model has no tokenizer; give token ids");
}

TEST(KvTrace, ReadsThePromptFromStandardInput) {
  const Program program;
  const json::object typed = program.json(trace(kHybrid, {"the end", "-n", "2", "--ignore-eos", "--json"}));
  const json::object piped =
      program.json(trace(kHybrid, {"-", "-n", "2", "--ignore-eos", "--json"}), "the end\n");
  EXPECT_EQ(piped.at("summary").at("ids"), typed.at("summary").at("ids"));
}

TEST(KvTrace, NamesWhatItCannotTrace) {
  const Program program;
  const auto refused = [&](std::vector<std::string> more, int code, const std::string& part) {
    expect_refusal(program.run(trace(kHybrid, std::move(more))), code, part);
  };
  refused({}, 2, "a PROMPT or --ids is required");
  refused({""}, 2, "the prompt is empty");
  refused({"a", "--ids", "1"}, 2, "PROMPT and --ids cannot be given together");
  refused({"--ids", "1", "--chat"}, 2, "--chat needs a PROMPT");
  refused({"--ids", "1,99999"}, 2, "token 1 is 99999, outside the vocabulary of 320");
  refused({"a", "--layers", "15"}, 2, "--layers: \"15\" is no layer");
  refused({"a", "--layers", "3-1"}, 2, "runs backwards");
  refused({"a", "--layers", "x"}, 2, "--layers: \"x\" is no layer");
  refused({"a", "-n", "-1"}, 2, "--decode-calls: -1 is less than 0");
  refused({"a", "--kv-dtype", "q4"}, 2, "--kv-dtype");
  refused({"the end of the line", "--context", "4"}, 1, "the prompt has 14 tokens, the context holds 4");
}

TEST(RealKvTrace, TheCapitalOfFranceAsRunHasIt) {
  const Program program;
  const auto real = [](std::vector<std::string> arguments) {
    return Invocation{.arguments = std::move(arguments), .user_cache = true};
  };
  const std::string model = "smollm2-135m-instruct", prompt = "The capital of France is";
  const json::object out = program.json(real(trace(model, {prompt, "-n", "10", "--json"})));
  const json::object answer =
      program.json(real({"run", "--raw", model, prompt, "-n", "11", "--json", "--temp", "0"}));
  EXPECT_EQ(out.at("summary").at("ids"), answer.at("ids"));
  EXPECT_EQ(out.at("summary").at("ids").as_array().size(), 11u);
  EXPECT_EQ(out.at("summary").at("cached_positions").as_int64(), 15);
  EXPECT_EQ(std::string(out.at("summary").at("text").as_string()),
            prompt + std::string(answer.at("text").as_string()));
  EXPECT_TRUE(out.at("summary").at("text").as_string().starts_with("The capital of France is Paris."));
  std::vector<int64_t> ids;
  for (const json::value& token : out.at("prompt").at("tokens").as_array())
    ids.push_back(token.at("id").as_int64());
  EXPECT_EQ(ids, (std::vector<int64_t>{504, 3575, 282, 4649, 314}));
  const json::value& layer = out.at("calls").at(0).at("layers").at(0);
  EXPECT_EQ(layer.at("q"), (json::array{1, 5, 576}));
  EXPECT_EQ(layer.at("k"), (json::array{1, 5, 192}));
  EXPECT_EQ(layer.at("v"), (json::array{1, 5, 192}));
  EXPECT_EQ(out.at("position_bytes").as_int64(), 23040);

  expect_parts(program.run(real(trace(model, {prompt, "-n", "10"}))),
               {"KV 5 -> 6 (+23,040 B)", "k [1,5,192] = 1 × 5 tok × 3 heads × 64",
                "q [1,5,576] = 1 × 5 tok × 9 heads × 64", "10 decode calls -> 11 tokens",
                "5 + 10 = 15 positions, not 16", "K and V [1,3,5,64] -> [1,3,6,64]"});
}

TEST(RealKvTrace, AChatStopsWhereRunStops) {
  const Program program;
  const std::string model = "smollm2-135m-instruct",
                    question = "What is the capital of France? Answer in one sentence.";
  const json::object answer = program.json(Invocation{
      .arguments = {"run", model, question, "--json", "-n", "81", "--temp", "0"}, .user_cache = true});
  const json::object out = program.json(
      Invocation{.arguments = trace(model, {question, "--chat", "-n", "80", "--json"}), .user_cache = true});
  EXPECT_EQ(out.at("summary").at("ids"), answer.at("ids"));
  EXPECT_EQ(out.at("summary").at("stopped_by").as_string(), "stop token");
  EXPECT_EQ(out.at("summary").at("stop_token").at("piece").as_string(), "<|im_end|>");
}

}  // namespace
}  // namespace lapidary::test
