// `lapidary run` on a terminal.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>

#include "formats/mapped_file.h"
#include "support/golden.h"
#include "support/program.h"

namespace lapidary::test {
namespace {

const std::string kModel = data_path("gguf/models/gemma4-e2b-tiny-F32.gguf").string();
const std::string kSlowModel = data_path("gguf/models/gemma4-e2b-wide-Q8_0.gguf").string();
constexpr const char* kTemplate = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[model]";

class Repl : public testing::Test {
 protected:
  Repl() { program_.folder().write("t.jinja", std::string_view(kTemplate)); }
  Invocation chat(std::vector<std::string> more = {}) const {
    Invocation invocation;
    invocation.arguments = {"run", kModel, "--chat-template", "t.jinja", "--ignore-eos", "-n", "8"};
    invocation.arguments.insert(invocation.arguments.end(), more.begin(), more.end());
    return invocation;
  }
  Program program_;
};

TEST_F(Repl, AnswersAndLeavesOnCtrlD) {
  TerminalSession session(program_, chat());
  EXPECT_NE(session.wait_for("Ctrl-D leaves").find("chat"), std::string::npos);
  session.wait_for("> ");
  session.type("the end\r");
  session.wait_for("[cut: -n allows more tokens]");
  session.wait_for("> ");
  session.type("\x04");
  EXPECT_EQ(session.wait_for_exit(), 0);
}

TEST_F(Repl, RemembersTheConversationAndReusesItsCache) {
  TerminalSession session(program_, chat({"--stats"}));
  session.wait_for("> ");
  session.type("the end\r");
  session.wait_for("peak resident");
  session.wait_for("> ");
  session.type("of it\r");
  EXPECT_NE(session.wait_for("peak resident").find("decode"), std::string::npos);
  session.wait_for("> ");
  session.type("/reset\r");
  session.wait_for("forgotten");
  session.wait_for("> ");
  session.type("/bye\r");
  EXPECT_EQ(session.wait_for_exit(), 0);
}

TEST_F(Repl, CtrlCStopsTheAnswerOnly) {
  Invocation invocation = chat();
  // Plain loops on a wide model: the answer would go on for seconds, so Ctrl-C comes in time on any machine.
  invocation.arguments = {"run", kSlowModel, "--chat-template", "t.jinja", "--ignore-eos", "-n", "0"};
  invocation.environment["LAPIDARY_ISA"] = "scalar";
  TerminalSession session(program_, invocation);
  session.wait_for("> ");
  session.type("the\r");
  session.wait_for("the\r\n");
  // Again and again, as a person would: right after the echo the terminal may still be the line editor's, to
  // which Ctrl-C is a key.
  session.type_until("\x03", "[stopped]");
  session.wait_for("> ");
  session.type("/help\r");
  session.wait_for("/reset");
  session.wait_for("> ");
  session.type("\x04");
  EXPECT_EQ(session.wait_for_exit(), 0);
}

TEST_F(Repl, CtrlCAtThePromptGivesUpTheLine) {
  TerminalSession session(program_, chat());
  session.wait_for("> ");
  session.type("/bye");
  session.wait_for("/bye");
  session.type("\x03");
  session.wait_for("> ");
  session.type("/stats\r");
  session.wait_for("no answer yet");
  session.wait_for("> ");
  session.type("\x04");
  EXPECT_EQ(session.wait_for_exit(), 0);
}

TEST_F(Repl, KeepsAPrivateHistory) {
  for (int run = 0; run < 2; ++run) {
    TerminalSession session(program_, chat());
    session.wait_for("> ");
    if (run == 0) {
      session.type("/help\r");
    } else {
      session.type("\x1b[A\r");  // arrow up: the line of the run before
    }
    session.wait_for("/system TEXT");
    session.wait_for("> ");
    session.type("\x04");
    EXPECT_EQ(session.wait_for_exit(), 0);
  }
  const auto file = program_.folder().path() / ".local/state/lapidary/history";
  EXPECT_NE(read_text_file(file).find("/help"), std::string::npos);
  struct stat status {};
  ASSERT_EQ(stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(Repl, AnErrorEndsTheTurnAndNotTheProgram) {
  TerminalSession session(program_, chat({"--context", "24"}));
  session.wait_for("> ");
  session.type("the end of the line of the end of the line of the end\r");
  session.wait_for("the context holds 24");
  session.wait_for("> ");
  session.type("the\r");
  session.wait_for("[cut:");
  session.wait_for("> ");
  session.type("/zebra\r");
  session.wait_for("unknown command /zebra");
  session.wait_for("> ");
  session.type("\x04");
  EXPECT_EQ(session.wait_for_exit(), 0);
}

TEST_F(Repl, ANewSystemMessageNeedsNoFiles) {
  TerminalSession session(program_, chat());
  session.wait_for("> ");
  std::filesystem::remove(program_.folder().path() / "t.jinja");
  session.type("/system of it\r");
  session.wait_for("forgotten");
  session.wait_for("> ");
  session.type("the\r");
  session.wait_for("[cut:");
  session.wait_for("> ");
  session.type("\x04");
  EXPECT_EQ(session.wait_for_exit(), 0);
}

TEST_F(Repl, TakesLettersBeyondAsciiAndSeveralLines) {
  TerminalSession session(program_, chat());
  session.wait_for("> ");
  session.type("na\xC3\xAFve \\\r");
  session.wait_for("na\xC3\xAFve");
  session.wait_for(". ");
  session.type("end\r");
  session.wait_for("[cut:");
  session.wait_for("> ");
  session.type("\x04");
  EXPECT_EQ(session.wait_for_exit(), 0);
  const std::string history = read_text_file(program_.folder().path() / ".local/state/lapidary/history");
  EXPECT_NE(history.find("end"), std::string::npos) << history;
}

TEST_F(Repl, ColoursFollowTheTerminalAndNoColor) {
  TerminalSession coloured(program_, chat());
  EXPECT_NE(coloured.wait_for("> ").find("\x1b[2m"), std::string::npos);
  Invocation invocation = chat();
  invocation.environment["NO_COLOR"] = "1";
  TerminalSession plain(program_, invocation);
  EXPECT_EQ(plain.wait_for("> ").find("\x1b[2m"), std::string::npos);
}

TEST_F(Repl, JsonNeedsAPrompt) {
  TerminalSession session(program_, chat({"--json"}));
  session.wait_for("--json needs a PROMPT");
  EXPECT_EQ(session.wait_for_exit(), 2);
}

}  // namespace
}  // namespace lapidary::test
