#include <unistd.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/line_reader.h"
#include "cli/model_path.h"
#include "cli/run_flags.h"
#include "cli/state_file.h"
#include "base/suggest.h"
#include "cli/terminal.h"

namespace lapidary {
namespace {

constexpr const char* kHelp =
    "  /help           this list\n"
    "  /reset          forget the conversation\n"
    "  /redo           answer the last message again, with the next seed\n"
    "  /undo           forget the last message and its answer\n"
    "  /save FILE      write the conversation and its KV cache to a file\n"
    "  /load FILE      go on from such a file\n"
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
    const std::string rest = word.size() == line.size() ? "" : line.substr(word.size() + 1);
    if (word == "/bye" || word == "/exit" || word == "/quit") return false;
    if (word == "/help") {
      write_out(kHelp);
    } else if (word == "/reset") {
      forget();
    } else if (word == "/system") {
      set_system(rest);
    } else if (word == "/stats") {
      show_stats();
    } else if (word == "/redo") {
      redo();
    } else if (word == "/undo") {
      undo();
    } else if (word == "/save") {
      save(rest);
    } else if (word == "/load") {
      load_from(rest);
    } else {
      const auto guess =
          nearest(word, {"/help", "/reset", "/redo", "/undo", "/save", "/load", "/system", "/stats", "/bye"});
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
    // The template and the tools stay those that were read at the beginning: their files may be gone.
    runner_.conversation->restart(text);
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

  // An error ends what was asked for, not the conversation.
  bool attempt(FunctionRef<void()> action) const {
    try {
      action();
      return true;
    } catch (const Error& error) {
      write_err(fmt::format("{} {}\n", Style::for_fd(STDERR_FILENO).red("error:"), error.what()));
      return false;
    }
  }

  void save(const std::string& file) {
    if (file.empty()) return write_out("/save needs the name of a file\n");
    if (!attempt([&] { save_state(runner_, file); })) return;
    const int32_t sequence = runner_.session->sequence();
    say(fmt::format("saved to {}: {} tokens; whoever loads it may go back to token {}, or to none", file,
                    runner_.engine->length(sequence), runner_.engine->earliest_restart(sequence)));
  }

  void load_from(const std::string& file) {
    if (file.empty()) return write_out("/load needs the name of a file\n");
    if (!attempt([&] { load_state(runner_, MappedFile(file)); })) return;
    last_text_.clear();
    say(fmt::format("going on from {} tokens", runner_.engine->length(runner_.session->sequence())));
  }

  void say(const std::string& text) const { write_out(style_.dim(terminal_safe(text)) + "\n"); }

  // The cache keeps what the next prompt will have in common with it; what was forgotten leaves it now.
  void undo() {
    if (!runner_.conversation || !runner_.conversation->drop_turn()) return write_out("nothing to undo\n");
    try {
      runner_.session->keep_common(runner_.conversation->prompt_ids());
    } catch (const Error&) {  // nothing left to ask, or no template for what is left
      runner_.session->reset();
    }
    say("forgotten: the last message and its answer");
  }

  void redo() {
    std::optional<Message> old;
    if (runner_.conversation) old = runner_.conversation->take_answer();
    if (runner_.conversation ? !old.has_value() : last_text_.empty()) return write_out("nothing to redo\n");
    SamplingParams& sampling = runner_.generation.sampling;
    runner_.session->set_seed(++sampling.seed);
    runner_.sampling = sampling_text(sampling);
    if (sampling.temperature == 0) say("[greedy: the same answer again; --temp draws others]");
    bool answered = false;
    attempt([&] { answered = answer(last_text_); });
    if (!answered && old) runner_.conversation->put_back(*old);
  }

  void reply(const std::string& text) {
    last_text_ = text;
    if (runner_.conversation) runner_.conversation->add("user", text);
    bool answered = false;
    attempt([&] { answered = answer(text); });
    if (!answered && runner_.conversation) runner_.conversation->drop_last();
  }

  // False: interrupted before the first word. `text` is what raw completion goes on from.
  bool answer(const std::string& text) {
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
    const bool answered = !answer.ids.empty() || answer.finish != Finish::interrupted;
    if (runner_.conversation && answered) {
      runner_.conversation->add_answer(answer.content, answer.reasoning, answer.calls);
    }
    last_ = std::move(answer);
    return answered;
  }

  Runner& runner_;
  const RunFlags& flags_;
  LineReader reader_;
  Style style_;
  std::optional<Answer> last_;
  std::string last_text_;
};

}  // namespace

// Files are opened before the weights are loaded: a mistake in their names shows up at once.
int run_repl(Runner& runner, const RunFlags& flags) {
  std::optional<MappedFile> loaded;
  std::optional<AtomicFile> saved;
  if (!flags.load_state.empty()) loaded.emplace(flags.load_state);
  if (!flags.save_state.empty()) saved.emplace(flags.save_state);
  load(runner, flags);
  if (loaded) load_state(runner, *loaded);
  const int code = Repl(runner, flags).run();
  if (saved) save_state(runner, *saved);
  return code;
}

}  // namespace lapidary
