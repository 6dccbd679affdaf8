// Saved states, going back and doing again, as a user meets them.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>

#include "formats/mapped_file.h"
#include "support/golden.h"
#include "support/program.h"
#include "support/small_files.h"

namespace lapidary::test {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

const std::string kModel = data_path("gguf/models/gemma4-e2b-tiny-F32.gguf").string();  // windows of 8
const std::string kOtherModel = data_path("gguf/models/gemma3-tiny-F32.gguf").string();
constexpr const char* kTemplate = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[model]";

std::string repeated(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}
const std::string kLong = repeated("the end of the line ", 30);  // several pages beyond the window

int64_t number(const json::object& answer, const char* group, const char* name) {
  return answer.at(group).at(name).as_int64();
}

class StateFile : public testing::Test {
 protected:
  StateFile() { program_.folder().write("t.jinja", std::string_view(kTemplate)); }
  static std::vector<std::string> raw(const std::string& prompt, std::vector<std::string> more = {},
                                      const std::string& model = kModel, const std::string& n = "12") {
    std::vector<std::string> arguments{"run", "--raw", model, prompt, "--ignore-eos", "--json", "-n", n};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static std::vector<std::string> chat(const std::string& prompt, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"run",    kModel, prompt, "--ignore-eos", "--chat-template", "t.jinja",
                                       "--json", "-n",   "12"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  json::object parsed(const Outcome& outcome) const {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out).as_object();
  }
  size_t files() const {
    const fs::directory_iterator all(program_.folder().path());
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }
  Program program_;
};

TEST_F(StateFile, ALongPromptIsNotComputedAgain) {
  for (const std::string kv : {"f32", "bf16", "k=q8,v=f16"}) {
    program_.json(
        raw(kLong, {"--save-state", "s", "--kv-dtype", kv}, kModel, "1"));  // no more than the prompt
    const json::object cold = program_.json(raw(kLong + "of it", {"--kv-dtype", kv}));
    const Outcome outcome = program_.run(
        raw(kLong + "of it", {"--load-state", "s", "--kv-dtype", kv, "--chunk", "7", "--threads", "2"}));
    const json::object warm = parsed(outcome);
    EXPECT_EQ(outcome.err, "");
    EXPECT_EQ(warm.at("ids"), cold.at("ids"));
    const int64_t cached = number(warm, "cache", "cached_tokens");
    EXPECT_GT(cached, 100);
    EXPECT_EQ(number(warm, "cache", "used_tokens"), cached);
    EXPECT_EQ(number(warm, "timings", "prefill_tokens"), number(cold, "timings", "prefill_tokens") - cached);
    EXPECT_EQ(number(cold, "memory", "kv_bytes_restored"), 0);
    EXPECT_GT(number(warm, "memory", "kv_bytes_restored"), 0);
  }
}

TEST_F(StateFile, APromptThatPartsFromItGoesBackAndSaysSo) {
  const std::string other = kLong.substr(0, kLong.size() - 60) + "of it";
  const json::object cold = program_.json(raw(other));
  program_.json(raw(kLong, {"--save-state", "behind"}));
  program_.json(raw(kLong, {"--save-state", "nothing", "--keep-behind", "0"}));
  const Outcome some = program_.run(raw(other, {"--load-state", "behind"}));
  const json::object went_back = parsed(some);
  EXPECT_NE(some.err.find("tokens in the cache were used; the prompt parts from them at token"),
            std::string::npos)
      << some.err;
  EXPECT_EQ(went_back.at("ids"), cold.at("ids"));
  EXPECT_GT(number(went_back, "cache", "used_tokens"), 50);
  EXPECT_LT(number(went_back, "cache", "used_tokens"), number(went_back, "cache", "cached_tokens"));
  const Outcome none = program_.run(raw(other, {"--load-state", "nothing"}));
  const json::object again = parsed(none);
  EXPECT_NE(none.err.find("note: nothing: none of"), std::string::npos) << none.err;
  EXPECT_NE(none.err.find("layers with a window go back to token"), std::string::npos) << none.err;
  EXPECT_EQ(again.at("ids"), cold.at("ids"));
  EXPECT_EQ(number(again, "cache", "used_tokens"), 0);
  EXPECT_GT(number(again, "cache", "common_tokens"), 50);
  const Outcome stats =
      program_.run({"run", "--raw", kModel, other, "-n", "2", "--load-state", "nothing", "--stats"});
  EXPECT_NE(stats.err.find("read the saved state"), std::string::npos) << stats.err;
  EXPECT_NE(stats.err.find("none of"), std::string::npos) << stats.err;
}

TEST_F(StateFile, AConversationGoesOnInAnotherProcess) {
  const json::object first = program_.json(chat("the end", {"--system", "of it", "--save-state", "s"}));
  const std::string text(first.at("text").as_string());
  const json::object second = program_.json(chat("the line", {"--load-state", "s", "--save-state", "s"}));
  const std::string so_far = "[system]of it\n[user]the end\n[assistant]" + text + "\n[user]the line\n";
  EXPECT_EQ(second.at("ids"), program_.json(raw(so_far + "[model]")).at("ids"));
  EXPECT_GT(number(second, "cache", "used_tokens"), 5);
  const json::object third = program_.json(chat("of", {"--load-state", "s"}));
  const std::string then(second.at("text").as_string());
  EXPECT_EQ(third.at("ids"),
            program_.json(raw(so_far + "[assistant]" + then + "\n[user]of\n[model]")).at("ids"));
}

TEST_F(StateFile, WhatDoesNotFitIsNamed) {
  program_.json(raw(kLong, {"--save-state", "raw.state"}));
  program_.json(chat("the end", {"--save-state", "chat.state"}));
  const auto refused = [&](const std::vector<std::string>& arguments, int code, const std::string& part) {
    expect_refusal(program_.run(arguments), code, part);
  };
  refused(raw("x", {"--load-state", "none"}), 1, "none: cannot open: No such file");
  refused(raw("x", {"--load-state", "t.jinja"}), 1, "t.jinja: damaged: cut short in the header");
  refused(raw("x", {"--load-state", "raw.state", "--kv-dtype", "bf16"}), 2,
          "raw.state: key dtype: expected bf16, got f16");
  refused(raw("x", {"--load-state", "raw.state"}, kOtherModel), 2,
          "raw.state: number of layers: expected 8, got 15");
  refused(raw("x", {"--load-state", "raw.state", "--context", "50"}), 1, "raw.state: length: ");
  refused(chat("x", {"--load-state", "raw.state"}), 2, "raw.state: holds raw text and no conversation");
  refused(chat("x", {"--load-state", "chat.state", "--system", "y"}), 2, "--system and --load-state");
  const std::string other = data_path("gguf/models/gemma4-e2b-tiny-Q8_0.gguf").string();
  refused(raw("x", {"--load-state", "raw.state"}, other), 2, "raw.state: arithmetic: expected");
  refused(raw("x", {"--load-state", "raw.state", "--arithmetic", "f32"}, other), 2,
          "raw.state: model hash: expected");
  std::string bytes = read_text_file(program_.folder().path() / "raw.state");
  bytes[bytes.size() - 100] ^= 4;
  program_.folder().write("bad.state", std::string_view(bytes));
  refused(raw("x", {"--load-state", "bad.state"}), 1, "bad.state: damaged: layer 9, positions");
}

// K and V came from products in one arithmetic: another would go on with other bits.
TEST_F(StateFile, OfAnotherArithmeticIsRefused) {
  const std::string model = data_path("gguf/models/gemma4-e2b-tiny-Q8_0.gguf").string();
  program_.json(raw("the end", {"--save-state", "shipped.state"}, model));
  program_.json(raw("x", {"--load-state", "shipped.state"}, model));
  program_.json(raw("x", {"--load-state", "shipped.state", "--arithmetic", "a16"}, model));
  expect_refusal(program_.run(raw("x", {"--load-state", "shipped.state", "--arithmetic", "f32"}, model)), 2,
                 "shipped.state: arithmetic: expected \"exact, f32 accumulation\", got \"exact, a16, f32 "
                 "accumulation\"");
  program_.json(raw("the end", {"--save-state", "float.state", "--arithmetic", "f32"}, model));
  expect_refusal(program_.run(raw("x", {"--load-state", "float.state"}, model)), 2,
                 "float.state: arithmetic: expected \"exact, a16, f32 accumulation\"");
  // Float weights are multiplied in float in every arithmetic: there is nothing to differ in.
  program_.json(raw("the end", {"--save-state", "plain.state", "--arithmetic", "a8"}));
  program_.json(raw("x", {"--load-state", "plain.state", "--arithmetic", "f32"}));
}

TEST_F(StateFile, EmptyNamesAreRefused) {
  for (const std::string flag : {"--save-state", "--load-state", "--chat-template", "--tools"}) {
    expect_refusal(program_.run({"run", kModel, "x", flag, ""}), 2, "the value is empty");
  }
}

TEST_F(StateFile, WhatCannotBeWrittenLeavesNothingBehind) {
  const size_t before = files();
  expect_refusal(program_.run(raw("x", {"--save-state", "no/such/folder"})), 1,
                 "no/such/folder: cannot create: No such file");
  expect_refusal(program_.run(raw("x", {"--save-state", "/proc/s.state"})), 1,
                 "/proc/s.state: cannot create");
  fs::create_directory(program_.folder().path() / "dir");
  expect_refusal(program_.run(raw("x", {"--save-state", "dir"})), 1,
                 "dir: expected a file or nothing there, got a folder");
  expect_refusal(program_.run(raw("x", {"--save-state", "new/"})), 2, "got one that ends in a slash");
  fs::remove(program_.folder().path() / "dir");
  program_.json(raw("the end", {"--save-state", "s"}));
  const std::string old = read_text_file(program_.folder().path() / "s");
  Outcome full, json_full;
  {
    const SmallFiles full_disk(20'000);
    full = program_.run({"run", "--raw", kModel, kLong, "-n", "4", "--save-state", "s"});
    json_full = program_.run(raw(kLong, {"--save-state", "s"}));
  }
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_EQ(json_full.exit_code, 1);
  EXPECT_NE(json_full.err.find("s: cannot write: File too large"), std::string::npos) << json_full.err;
  EXPECT_EQ(json::parse(json_full.out).as_object().at("completion_tokens"), 12) << "the answer is told";
  EXPECT_NE(full.err.find("s: cannot write: File too large"), std::string::npos) << full.err;
  EXPECT_EQ(read_text_file(program_.folder().path() / "s"), old) << "the file of before is whole";
  EXPECT_EQ(files(), before + 1) << "no temporary stays";
}

// ---- the conversation at the terminal ----

class StateRepl : public StateFile {
 protected:
  Invocation invocation(std::vector<std::string> more = {}) const {
    Invocation invocation;
    invocation.arguments = {"run", kModel, "--chat-template", "t.jinja", "--ignore-eos",
                            "-n",  "8",    "--stats"};
    invocation.arguments.insert(invocation.arguments.end(), more.begin(), more.end());
    return invocation;
  }
  // What is printed up to the next prompt.
  static std::string after(TerminalSession& session, const std::string& line,
                           const std::string& end = "; greedy") {
    session.wait_for("> ");
    session.type(line + "\r");
    return session.wait_for(end);
  }
  static void leave(TerminalSession& session) {
    session.wait_for("> ");
    session.type("\x04");
    EXPECT_EQ(session.wait_for_exit(), 0);
  }
};

// The text of an answer, between the echo of the line and the statistics.
std::string answer_in(const std::string& printed, const std::string& line) {
  const size_t begin = printed.find(line + "\r\n") + line.size() + 2;
  return printed.substr(begin, printed.find("[cut", begin) - begin);
}

TEST_F(StateRepl, RedoAnswersAgainFromTheCache) {
  TerminalSession session(program_, invocation());
  after(session, "/redo", "nothing to redo");
  const std::string first = after(session, "the end of the line");
  const std::string again = after(session, "/redo");
  EXPECT_NE(again.find("the same answer again"), std::string::npos) << again;
  EXPECT_NE(again.find(answer_in(first, "the end of the line")), std::string::npos) << "greedy\n" << again;
  EXPECT_NE(again.find("prompt parts from them"), std::string::npos) << again;
  EXPECT_NE(again.find("  1 tokens"), std::string::npos) << "all but the last token came from the cache\n"
                                                         << again;
  leave(session);
}

TEST_F(StateRepl, RedoTakesTheNextSeed) {
  TerminalSession session(program_, invocation({"--temp", "1.5", "--seed", "7"}));
  const std::string first = after(session, "the end", "seed 7");
  const std::string again = after(session, "/redo", "seed 8");
  EXPECT_NE(answer_in(again, "/redo"), answer_in(first, "the end"));
  leave(session);
  const json::object alone =
      program_.json({"run", kModel, "the end", "--chat-template", "t.jinja", "--ignore-eos", "-n", "8",
                     "--temp", "1.5", "--seed", "8", "--json"});
  std::string text(alone.at("text").as_string());
  EXPECT_NE(again.find(text.substr(0, text.find_first_of("\n\t"))), std::string::npos) << text << again;
}

TEST_F(StateRepl, UndoForgetsTheTurnAndKeepsTheCacheOfTheRest) {
  TerminalSession session(program_, invocation());
  after(session, "/undo", "nothing to undo");
  after(session, "the end");
  const std::string second = after(session, "of it");
  after(session, "/undo", "forgotten: the last message");
  const std::string again = after(session, "of it");
  EXPECT_EQ(answer_in(again, "of it"), answer_in(second, "of it"));
  EXPECT_NE(again.find("more were in the cache"), std::string::npos) << again;
  after(session, "/undo", "forgotten: the last message");
  after(session, "/undo", "forgotten: the last message");
  after(session, "/undo", "nothing to undo");
  leave(session);
}

TEST_F(StateRepl, SaveAndLoad) {
  std::string expected;
  {
    TerminalSession session(program_, invocation());
    after(session, "the end");
    after(session, "/save talk.state", "saved to talk.state");
    expected = answer_in(after(session, "of it"), "of it");
    leave(session);
  }
  TerminalSession session(program_, invocation());
  after(session, "/load", "needs the name of a file");
  after(session, "/save", "needs the name of a file");
  after(session, "/load missing", "missing: cannot open");
  after(session, "the line");
  program_.folder().write("bad.state", std::string_view("LAPIDKV, not really"));
  after(session, "/load bad.state", "bad.state: damaged: cut short in the header");
  const std::string kept = after(session, "the line");
  EXPECT_NE(kept.find("more were in the cache"), std::string::npos) << "a failed load changes nothing\n"
                                                                    << kept;
  after(session, "/load talk.state", "going on from");
  const std::string loaded = after(session, "of it");
  EXPECT_EQ(answer_in(loaded, "of it"), expected);
  EXPECT_NE(loaded.find("more were in the cache"), std::string::npos) << loaded;
  EXPECT_NE(loaded.find("read the saved state"), std::string::npos) << loaded;
  after(session, "/save no/such/folder", "no/such/folder: cannot create");
  leave(session);
}

TEST_F(StateRepl, FlagsLoadAtTheBeginningAndSaveAtTheEnd) {
  {
    TerminalSession session(program_, invocation({"--save-state", "s"}));
    after(session, "the end");
    leave(session);
  }
  TerminalSession session(program_, invocation({"--load-state", "s"}));
  EXPECT_NE(after(session, "of it").find("more were in the cache"), std::string::npos);
  after(session, "/undo", "forgotten: the last message");
  after(session, "/undo", "forgotten: the last message");
  leave(session);
}

}  // namespace
}  // namespace lapidary::test
