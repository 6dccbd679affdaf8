// `lapidary run` with a prompt: completion and chat on small golden models, stops, sampling, interrupts,
// refusals.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

const std::string kModel = data_path("gguf/models/gemma4-e2b-tiny-F32.gguf").string();
constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if enable_thinking %}(think){% "
    "endif %}[model]";

std::vector<std::string> raw(std::vector<std::string> more) {
  std::vector<std::string> arguments{"run", "--raw", kModel};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::string text_of(const json::object& answer) {
  return std::string(answer.at("text").as_string());
}

TEST(RunRaw, IsDeterministicAndJsonHoldsTheSameText) {
  const Program program;
  const std::vector<std::string> arguments = raw({"the end of", "-n", "24", "--ignore-eos"});
  const Outcome once = program.run(arguments), again = program.run(arguments);
  ASSERT_EQ(once.exit_code, 0) << once.err;
  EXPECT_EQ(once.out, again.out);
  EXPECT_EQ(once.err, "");
  const json::object answer = program.json(raw({"the end of", "-n", "24", "--ignore-eos", "--json"}));
  const std::string text = text_of(answer);
  EXPECT_EQ(once.out, text.ends_with('\n') ? text : text + "\n");
  EXPECT_EQ(answer.at("ids").as_array().size(), 24u);
  EXPECT_EQ(answer.at("completion_tokens").as_int64(), 24);
  EXPECT_EQ(answer.at("finish_reason").as_string(), "length");
  EXPECT_EQ(answer.at("finish_detail").as_string(), "-n");
  EXPECT_EQ(answer.at("timings").at("decode_steps").as_int64(), 23);
  EXPECT_GT(answer.at("memory").at("weight_bytes").as_int64(), 100000);
}

TEST(RunRaw, ChunkThreadsAndWayOfGivingThePromptChangeNothing) {
  const Program program;
  const json::object plain = program.json(raw({"the end of the line of the end", "-n", "16", "--json"}));
  const json::object other = program.json(raw({"-n", "16", "--json", "--chunk", "1", "--threads", "2"}),
                                          "the end of the line of the end\n");
  EXPECT_EQ(plain.at("ids"), other.at("ids"));
  EXPECT_EQ(plain.at("prompt_tokens"), other.at("prompt_tokens"));
  const json::object dash =
      program.json(raw({"-", "-n", "16", "--json"}), "the end of the line of the end\r\n");
  EXPECT_EQ(plain.at("ids"), dash.at("ids"));
}

TEST(RunRaw, SeedDecidesWhatIsSampled) {
  const Program program;
  const auto ids = [&](const std::string& seed) {
    return program.json(raw({"the", "-n", "24", "--ignore-eos", "--temp", "1.5", "--seed", seed, "--json"}))
        .at("ids");
  };
  EXPECT_EQ(ids("7"), ids("7"));
  EXPECT_NE(ids("7"), ids("8"));
}

TEST(RunRaw, DrawnSeedIsToldAndReproduces) {
  const Program program;
  const json::object drawn =
      program.json(raw({"the", "-n", "24", "--ignore-eos", "--temp", "1.5", "--json"}));
  const std::string seed = std::to_string(drawn.at("sampling").at("seed").as_int64());
  const json::object again =
      program.json(raw({"the", "-n", "24", "--ignore-eos", "--temp", "1.5", "--json", "--seed", seed}));
  EXPECT_EQ(drawn.at("ids"), again.at("ids"));
}

TEST(RunRaw, LogitBiasAndPenaltiesReachTheSampler) {
  const Program program;
  const json::object biased =
      program.json(raw({"the", "-n", "4", "--json", "--logit-bias", "9=1000", "--ignore-eos"}));
  EXPECT_EQ(biased.at("ids"), json::parse("[9, 9, 9, 9]"));
  const json::object spread = program.json(
      raw({"the", "-n", "4", "--json", "--logit-bias", "9=60", "--presence-penalty", "100", "--ignore-eos"}));
  EXPECT_NE(spread.at("ids"), biased.at("ids"));
}

// Each test cuts the text that greedy decoding gives, at characters.
class RunStops : public testing::Test {
 protected:
  RunStops() {
    whole_ = text_of(program_.json(raw({"the end of", "-n", "40", "--ignore-eos", "--json"})));
    for (size_t i = 0; i <= whole_.size(); ++i) {
      if (i == whole_.size() || (static_cast<unsigned char>(whole_[i]) & 0xC0) != 0x80) starts_.push_back(i);
    }
  }
  // `count` characters from the one with number `first` on.
  std::string piece(size_t first, size_t count) const {
    return whole_.substr(starts_.at(first), starts_.at(first + count) - starts_.at(first));
  }
  json::object stopped_at(const std::vector<std::string>& stops) const {
    std::vector<std::string> arguments = raw({"the end of", "-n", "40", "--ignore-eos", "--json"});
    for (const std::string& stop : stops) arguments.insert(arguments.end(), {"--stop", stop});
    return program_.json(arguments);
  }
  Program program_;
  std::string whole_;
  std::vector<size_t> starts_;
};

TEST_F(RunStops, TextEndsBeforeTheStop) {
  const std::string stop = piece(5, 3);
  const json::object answer = stopped_at({stop});
  EXPECT_EQ(text_of(answer), whole_.substr(0, whole_.find(stop)));
  EXPECT_EQ(answer.at("finish_reason").as_string(), "stop");
  EXPECT_EQ(answer.at("finish_detail").as_string(), stop);
  EXPECT_LT(answer.at("ids").as_array().size(), 40u);
}

TEST_F(RunStops, FirstOfSeveralWinsAndOthersDoNoHarm) {
  const std::string stop = piece(6, 2);
  EXPECT_EQ(text_of(stopped_at({"no such text", stop})), whole_.substr(0, whole_.find(stop)));
}

TEST_F(RunStops, PartOfAStopIsGivenBackAtTheEnd) {
  const std::string last = piece(starts_.size() - 3, 2);
  EXPECT_EQ(text_of(stopped_at({last + "never"})), whole_);
}

TEST(RunRaw, StopTokensEndTheAnswerUnlessIgnored) {
  const Program program;
  const json::object stopped = program.json(raw({"the", "-n", "8", "--json", "--logit-bias", "1=1000"}));
  EXPECT_EQ(stopped.at("finish_reason").as_string(), "stop");
  EXPECT_EQ(stopped.at("finish_detail").as_string(), "<eos>");
  EXPECT_TRUE(stopped.at("ids").as_array().empty());
  const json::object ignored =
      program.json(raw({"the", "-n", "8", "--json", "--logit-bias", "1=1000", "--ignore-eos"}));
  EXPECT_EQ(ignored.at("ids").as_array().size(), 8u);
  EXPECT_EQ(text_of(ignored), "") << "special tokens are not shown";
  const json::object shown = program.json(
      raw({"the", "-n", "2", "--json", "--logit-bias", "1=1000", "--ignore-eos", "--show-special"}));
  EXPECT_EQ(text_of(shown), "<eos><eos>");
}

TEST(RunRaw, FullContextEndsTheAnswer) {
  const Program program;
  const json::object answer =
      program.json(raw({"the end of", "-n", "0", "--context", "16", "--ignore-eos", "--json"}));
  EXPECT_EQ(answer.at("finish_reason").as_string(), "length");
  EXPECT_EQ(answer.at("finish_detail").as_string(), "context");
  EXPECT_EQ(answer.at("prompt_tokens").as_int64() + answer.at("completion_tokens").as_int64(), 16 + 1);
}

TEST(RunRaw, StatsSayWhereTimeAndBytesWent) {
  const Outcome outcome = Program().run(raw({"the", "-n", "8", "--ignore-eos", "--stats"}));
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* part : {"prefill", "decode", "tok/s", "weights, packed", "tables, mapped",
                           "KV cache in use", "workspace", "peak resident", "load and pack", "greedy"}) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << "\n" << outcome.err;
  }
}

TEST(RunChat, GoesThroughTheTemplate) {
  const Program program;
  program.folder().write("t.jinja", kTemplate);
  const auto chat = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"run", kModel, "the end", "-n", "12", "--ignore-eos", "--json",
                               "--chat-template", "t.jinja"});
    return program.json(more);
  };
  const json::object plain = chat({});
  EXPECT_EQ(plain.at("mode").as_string(), "chat");
  const json::object same =
      program.json(raw({"[user]the end\n[model]", "-n", "12", "--ignore-eos", "--json"}));
  EXPECT_EQ(plain.at("ids"), same.at("ids"));
  const json::object system = chat({"--system", "of the"});
  EXPECT_EQ(
      system.at("ids"),
      program.json(raw({"[system]of the\n[user]the end\n[model]", "-n", "12", "--ignore-eos", "--json"}))
          .at("ids"));
  const json::object think = chat({"--think"});
  EXPECT_EQ(
      think.at("ids"),
      program.json(raw({"[user]the end\n(think)[model]", "-n", "12", "--ignore-eos", "--json"})).at("ids"));
}

TEST(RunChat, RefusesWhatTheTemplateCannotDo) {
  const Program program;
  program.folder().write("plain.jinja", "{{ messages[-1].content }}");
  program.folder().write("broken.jinja", "{% for x in %}");
  program.folder().write("raises.jinja", "{{ raise_exception('no system role') }}");
  const auto with = [&](const char* file, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"run", kModel, "the end", "--chat-template", file});
    return program.run(more);
  };
  expect_refusal(program.run({"run", kModel, "hi"}), 2, "has no chat template; complete text with --raw");
  expect_refusal(with("plain.jinja", {"--think"}), 2, "has no enable_thinking switch");
  expect_refusal(with("broken.jinja"), 1, "line");
  expect_refusal(with("raises.jinja"), 1, "no system role");
  expect_refusal(with("missing.jinja"), 1, "missing.jinja");
}

TEST(Run, RefusesBadPrompts) {
  const Program program;
  expect_refusal(program.run(raw({""})), 2, "the prompt is empty");
  expect_refusal(program.run(raw({}), ""), 2, "the prompt is empty");
  expect_refusal(program.run(raw({}), "\n"), 2, "the prompt is empty");
  expect_refusal(program.run(raw({"-"}), "a\xff"), 1, "UTF-8");
  expect_refusal(program.run(raw({"the end of the line", "--context", "3"})), 1, "the context holds 3");
  std::string many;
  for (int i = 0; i < 2000; ++i) many += "the ";
  expect_refusal(program.run(raw({}), many), 1, "the context holds 512; shorten it or raise --context");
}

TEST(Run, RefusesContradictoryFlags) {
  const Program program;
  expect_refusal(program.run(raw({"x", "--system", "y"})), 2, "--system belongs to a chat");
  expect_refusal(program.run(raw({"x", "--think"})), 2, "--think and --no-think belong to a chat");
  expect_refusal(program.run(raw({"x", "--chat-template", "y"})), 2, "--chat-template belongs to a chat");
  expect_refusal(program.run(raw({"x", "--stop", ""})), 2, "--stop: the text is empty");
  expect_refusal(program.run(raw({"x", "--stop", "a\xff"})), 2, "--stop: \"a\\xff\" is not UTF-8");
  expect_refusal(program.run(raw({"x", "--context", "513"})), 2,
                 "the model was made for at most 512 positions");
  expect_refusal(program.run(raw({"x", "--logit-bias", "5"})), 2, "--logit-bias: expected ID=VALUE");
  expect_refusal(program.run(raw({"x", "--logit-bias", "5=much"})), 2, "--logit-bias: expected ID=VALUE");
  expect_refusal(program.run(raw({"x", "--logit-bias", "99999=1"})), 2, "99999");
  expect_refusal(program.run(raw({"x", "--temp", "-1"})), 2, "temperature");
  expect_refusal(program.run(raw({"x", "--top-p", "1.5"})), 2, "top_p");
}

TEST(Run, InterruptEndsTheAnswerAndSaysSo) {
  const Program program;
  Invocation invocation;
  // Plain loops on a wide model: the answer would go on for seconds, so the interrupt comes in time on any
  // machine.
  const std::string model = data_path("gguf/models/gemma4-e2b-wide-Q8_0.gguf").string();
  invocation.arguments = {"run", "--raw", model, "the end of", "-n", "0", "--ignore-eos"};
  invocation.environment["LAPIDARY_ISA"] = "scalar";
  invocation.interrupt_after = 1;
  const Outcome outcome = program.run(invocation);
  EXPECT_EQ(outcome.err, "");
  EXPECT_TRUE(outcome.out.ends_with('\n'));
  EXPECT_EQ(outcome.exit_code, 130);
}

}  // namespace
}  // namespace lapidary::test
