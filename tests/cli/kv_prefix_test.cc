// `lapidary kv prefix`: files of prompts in both formats, saved states, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>

#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;

const std::string kModel = data_path("gguf/models/llama-tiny-F32.gguf").string();
const std::string kHybrid = data_path("gguf/models/gemma4-e2b-tiny-F32.gguf").string();  // windows of 8
constexpr const char* kPrompts = "the end of the line\nthe end of the line of it\n\nthe end of it\r\nof it\n";

std::vector<std::string> prefix(const std::string& model, std::vector<std::string> more) {
  more.insert(more.begin(), {"kv", "prefix", model});
  return more;
}

std::vector<std::string> reasons(const json::object& out) {
  std::vector<std::string> names;
  for (const json::value& p : out.at("prompts").as_array()) names.emplace_back(p.at("reason").as_string());
  return names;
}

TEST(KvPrefix, ReplaysLines) {
  const Program program;
  program.folder().write("p.txt", std::string_view(kPrompts));
  const json::object out = program.json(prefix(kModel, {"p.txt", "--json"}));
  EXPECT_EQ(reasons(out), (std::vector<std::string>{"cold", "extended", "differs", "differs"}));
  EXPECT_EQ(out.at("totals").at("prompts").as_int64(), 4);
  for (const json::value& check : out.at("checks").as_array()) EXPECT_TRUE(check.at("passed").as_bool());
  for (const json::value& p : out.at("prompts").as_array()) EXPECT_TRUE(p.at("logits_equal").as_bool());
  const json::object piped = program.json(prefix(kModel, {"-", "--json", "--no-check"}), kPrompts);
  EXPECT_EQ(reasons(piped), reasons(out));
  EXPECT_FALSE(piped.at("checked").as_bool());
  EXPECT_TRUE(piped.at("checks").as_array().empty());
  EXPECT_FALSE(piped.at("prompts").at(0).as_object().contains("logits_equal"));
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(piped.at("prompts").at(i).at("logits_xxh3"), out.at("prompts").at(i).at("logits_xxh3"));
}

TEST(KvPrefix, ReplaysJsonLines) {
  const Program program;
  const char* lines = "{\"prompt\": \"the end\"}\n{\"ids\": [5, 6, 7]}\n{\"ids\": [5, 6, 9, 8]}\n";
  program.folder().write("p.jsonl", std::string_view(lines));
  const json::object named = program.json(prefix(kModel, {"p.jsonl", "--json"}));
  EXPECT_EQ(named.at("prompts").at(1).at("tokens").as_int64(), 3);
  EXPECT_EQ(named.at("prompts").at(2).at("differs").at("at").as_int64(), 2);
  EXPECT_EQ(named.at("prompts").at(2).at("differs").at("kept").at("id").as_int64(), 7);
  EXPECT_EQ(named.at("prompts").at(2).at("differs").at("prompt").at("id").as_int64(), 9);
  const json::object guessed = program.json(prefix(kModel, {"-", "--json"}), lines);
  EXPECT_EQ(reasons(guessed), reasons(named));
  const json::object as_text = program.json(prefix(kModel, {"-", "--format", "lines", "--json"}), lines);
  EXPECT_GT(as_text.at("prompts").at(1).at("tokens").as_int64(), 3) << "the line itself is the prompt";
}

TEST(KvPrefix, EvictsWhenTheSlotsAreTaken) {
  const Program program;
  const std::string text = "the end\nof it\nthe end\n";
  const Outcome outcome = program.run(prefix(kModel, {"-", "--slots", "1"}), text);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"miss, evicted", "prompt 0 had",
                           "evicted by prompt 1 at an age of 1 prompt, idle for 0, reused 1 time",
                           "Hit rate in tokens 22.2 %: 4 of 18", "to eviction (--slots 1)",
                           "Evicted sequences: 2", "3 of 3 prompts have the bits of a fresh run"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  EXPECT_EQ(reasons(program.json(prefix(kModel, {"-", "--json"}), text)).back(), "whole");
}

TEST(KvPrefix, SaysThatAWindowIsGone) {
  const Program program;
  std::string base;
  for (int i = 0; i < 8; ++i) base += "the end of the line ";
  const std::string text = base + "\n" + base.substr(0, 30) + "of it\n";
  const json::object lost = program.json(prefix(kHybrid, {"-", "--json"}), text);
  EXPECT_EQ(lost.at("prompts").at(1).at("reason").as_string(), "window_lost");
  EXPECT_EQ(lost.at("prompts").at(1).at("window").at("window").as_int64(), 8);
  EXPECT_GT(lost.at("prompts").at(1).at("window").at("earliest_restart").as_int64(),
            lost.at("prompts").at(1).at("window").at("wanted").as_int64());
  const json::object kept = program.json(prefix(kHybrid, {"-", "--json", "--keep-behind", "512"}), text);
  EXPECT_EQ(kept.at("prompts").at(1).at("reason").as_string(), "differs");
  EXPECT_GT(kept.at("prompts").at(1).at("hit_tokens").as_int64(), 0);
}

TEST(KvPrefix, BeginsWithASavedState) {
  const Program program;
  program.json({"run", "--raw", kModel, "the end of the line", "-n", "1", "--ignore-eos", "--json", "--temp",
                "0", "--save-state", "s"});
  const std::string text = "the end of the line of it\n";
  const json::object loaded = program.json(prefix(kModel, {"-", "--json", "--state", "s"}), text);
  EXPECT_TRUE(loaded.at("state").at("loaded").as_bool());
  EXPECT_EQ(loaded.at("prompts").at(0).at("reason").as_string(), "extended");
  EXPECT_EQ(loaded.at("prompts").at(0).at("source").as_int64(), -1);
  const json::object other =
      program.json(prefix(kModel, {"-", "--json", "--state", "s", "--kv-dtype", "k=f16,v=q8"}), text);
  EXPECT_EQ(other.at("state").at("field").as_string(), "value dtype");
  EXPECT_EQ(other.at("prompts").at(0).at("reason").as_string(), "header_mismatch");
  EXPECT_EQ(other.at("prompts").at(0).at("mismatch").at("field").as_string(), "value dtype");
  program.folder().write("damaged", std::string_view("LAPIDKV"));
  expect_refusal(program.run(prefix(kModel, {"-", "--state", "damaged"}), text), 1, "damaged: cut short");
  program.folder().write("other", std::string(400, 'x'));
  expect_refusal(program.run(prefix(kModel, {"-", "--state", "other"}), text), 1,
                 "magic: expected a saved state");
  expect_refusal(program.run(prefix(kModel, {"-", "--state", "missing"}), text), 1, "missing");
}

TEST(KvPrefix, WritesCsv) {
  const Outcome outcome = Program().run(prefix(kModel, {"-", "--csv"}), kPrompts);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 5);
  EXPECT_TRUE(outcome.out.starts_with("prompt,tokens,hit_tokens,"));
  EXPECT_NE(outcome.out.find(",hit,extended,0,"), std::string::npos) << outcome.out;
}

TEST(KvPrefix, NamesWhatItCannotReplay) {
  const Program program;
  const auto refused = [&](const std::string& input, std::vector<std::string> more, int code,
                           const std::string& part) {
    more.insert(more.begin(), "-");
    expect_refusal(program.run(prefix(kModel, more), input), code, part);
  };
  refused("", {}, 2, "there are no prompts in it");
  refused("\n\n", {}, 2, "there are no prompts in it");
  refused("{\"ids\": [1]}\n{\"ids\": [1], \"n\": 2}\n", {}, 1, "line 2");
  refused("{\"ids\": [1], \"prompt\": \"a\"}\n", {}, 1, "either \"prompt\" or \"ids\"");
  refused("{\"ids\": [1, -2]}\n", {}, 1, "ids[1] is no token id: -2");
  refused("{\"ids\": [1, 5000]}\n", {}, 2, "line 1: token id 5000 is outside the vocabulary of 320");
  refused("{\"ids\": []}\n", {}, 2, "line 1: the prompt is empty");
  refused("not json\n", {"--format", "jsonl"}, 1, "line 1");
  refused("a\n", {"--format", "xml"}, 2, "--format");
  refused("a\n", {"--slots", "0"}, 2, "--slots");
  refused("the end of the line\n", {"--context", "4"}, 1, "line 1: the prompt has");
  expect_refusal(program.run(prefix(kModel, {"missing.txt"})), 1, "missing.txt");
}

TEST(RealKvPrefix, SharesPagesOfARealModel) {
  std::string base = "The quick brown fox jumps over the lazy dog.";
  for (int i = 0; i < 3; ++i) base += " " + base.substr(0, 44);
  const json::object out = Program().json(
      Invocation{.arguments = prefix("smollm2-135m-instruct", {"-", "--json"}),
                 .input = base + "\n" + base + " And then it sleeps.\n" + base.substr(0, 60) + "\n",
                 .user_cache = true});
  const json::value& extended = out.at("prompts").at(1);
  EXPECT_EQ(extended.at("reason").as_string(), "extended");
  const int64_t hit = extended.at("hit_tokens").as_int64();
  EXPECT_GE(hit, 32);
  EXPECT_EQ(extended.at("pages_shared").as_int64(), 30 * (hit / 32)) << "whole pages of 30 layers";
  EXPECT_EQ(extended.at("pages_copied").as_int64(), hit % 32 == 0 ? 0 : 30);
  EXPECT_EQ(extended.at("bytes_not_recomputed").as_int64(), hit * 23040);
  for (const json::value& p : out.at("prompts").as_array()) EXPECT_TRUE(p.at("logits_equal").as_bool());
}

}  // namespace
}  // namespace lapidary::test
