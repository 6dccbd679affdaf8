#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/line_reader.h"
#include "cli/model_path.h"
#include "cli/run_flags.h"
#include "cli/suggest.h"
#include "cli/terminal.h"

namespace lapidary {
namespace {

constexpr const char* kHelp =
    "  /help           this list\n"
    "  /reset          forget the conversation\n"
    "  /system TEXT    start over with this system message (no TEXT: with none)\n"
    "  /stats          where the time and the bytes of the last answer went\n"
    "  /bye            leave (Ctrl-D too)\n"
    "  A \\ at the end of a line goes on to the next. Ctrl-C stops an answer or gives up a line.\n";

class Repl {
 public:
  Repl(Runner& runner, const RunFlags& flags)
      : runner_(runner),
        flags_(flags),
        reader_(kPrompt, state_folder() / "history"),
        style_(Style::for_fd(STDOUT_FILENO)) {}

  int run() {
    const InterruptScope interrupts(false);  // from here on Ctrl-C never ends the program
    write_out(style_.dim(banner()) + "\n");
    std::string text;
    for (;;) {
      const LineReader::Key key = read_message(text);
      if (key == LineReader::Key::ctrl_d) break;
      if (key == LineReader::Key::ctrl_c || text.find_first_not_of(" \t\n") == std::string::npos) continue;
      if (text.front() == '/') {
        if (!obey(text)) break;
      } else {
        reply(text);
      }
    }
    write_out("\n");
    return kExitOk;
  }

 private:
  static constexpr const char* kPrompt = "> ";
  static constexpr const char* kMorePrompt = ". ";

  std::string banner() const {
    return fmt::format("{}: {}, {}; /help lists the commands, Ctrl-D leaves",
                       runner_.model.checkpoint.path.filename().string(),
                       runner_.conversation ? "chat" : "raw completion, each line by itself",
                       runner_.sampling);
  }

  LineReader::Key read_message(std::string& text) {
    text.clear();
    reader_.set_prompt(kPrompt);
    InterruptScope::forget();  // not later: a Ctrl-C right after the line is meant for its answer
    for (;;) {
      std::string line;
      const LineReader::Key key = reader_.read(line);
      if (key != LineReader::Key::enter) return key;
      if (!line.empty()) reader_.remember(line);
      const bool more = line.ends_with('\\');
      if (more) line.back() = '\n';
      text += line;
      if (!more) return key;
      reader_.set_prompt(kMorePrompt);
    }
  }

  // False: leave.
  bool obey(const std::string& line) {
    const std::string word = line.substr(0, line.find(' '));
    if (word == "/bye" || word == "/exit" || word == "/quit") return false;
    if (word == "/help") {
      write_out(kHelp);
    } else if (word == "/reset") {
      forget();
    } else if (word == "/system") {
      set_system(word.size() == line.size() ? "" : line.substr(word.size() + 1));
    } else if (word == "/stats") {
      show_stats();
    } else {
      const auto guess = nearest(word, {"/help", "/reset", "/system", "/stats", "/bye"});
      write_out(fmt::format("unknown command {}{}; /help lists them\n", terminal_safe(word),
                            guess ? fmt::format(", did you mean {}?", *guess) : ""));
    }
    return true;
  }

  void forget() {
    if (runner_.conversation) runner_.conversation->reset();
    runner_.session->reset();
    write_out(style_.dim("forgotten") + "\n");
  }

  void set_system(const std::string& text) {
    if (!runner_.conversation) {
      write_out("/system belongs to a chat; --raw has none\n");
      return;
    }
    ChatFlags chat = flags_.chat;
    chat.system = text;
    runner_.conversation.emplace(runner_.model.checkpoint, runner_.model.tokenizer, chat);
    forget();
  }

  void show_stats() const {
    if (!last_) {
      write_out("no answer yet\n");
      return;
    }
    write_out(
        stats_table(collect_stats(*runner_.engine, runner_.model.times, runner_.sampling, *last_), style_));
  }

  void reply(const std::string& text) {
    try {
      if (runner_.conversation) runner_.conversation->add("user", text);
      answer(text);
    } catch (const Error& error) {  // ends the turn, not the conversation
      if (runner_.conversation) runner_.conversation->drop_last();
      write_err(fmt::format("{} {}\n", Style::for_fd(STDERR_FILENO).red("error:"), error.what()));
    }
  }

  void answer(const std::string& text) {
    const std::vector<TokenId> prompt =
        runner_.conversation ? runner_.conversation->prompt_ids() : runner_.model.tokenizer.prompt_ids(text);
    Answer answer = answer_with(runner_, prompt, true);
    if (answer.finish == Finish::interrupted) write_out(style_.dim("[stopped]") + "\n");
    if (answer.finish == Finish::length) {
      write_out(style_.dim(answer.reason == "-n" ? "[cut: -n allows more tokens]"
                                                 : "[cut: the context is full; /reset]") +
                "\n");
    }
    if (flags_.stats)
      write_out(
          stats_table(collect_stats(*runner_.engine, runner_.model.times, runner_.sampling, answer), style_));
    if (runner_.conversation) {
      if (answer.ids.empty() && answer.finish == Finish::interrupted) {
        runner_.conversation->drop_last();
      } else {
        runner_.conversation->add_answer(answer.content, answer.reasoning, answer.calls);
      }
    }
    last_ = std::move(answer);
  }

  Runner& runner_;
  const RunFlags& flags_;
  LineReader reader_;
  Style style_;
  std::optional<Answer> last_;
};

}  // namespace

int run_repl(Runner& runner, const RunFlags& flags) {
  load(runner, flags);
  return Repl(runner, flags).run();
}

}  // namespace lapidary
