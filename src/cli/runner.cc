#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/quote.h"
#include "cli/run_flags.h"
#include "cli/terminal.h"
#include "formats/mapped_file.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

// The model's own stop tokens and the vocabulary's ends of turns. A stop text that is a special token's
// spelling never becomes visible text, so it is looked for among the ids.
void set_stops(Runner& runner, const RunFlags& flags) {
  const Tokenizer& tokenizer = runner.model.tokenizer;
  std::vector<TokenId>& ids = runner.generation.stop_ids;
  if (!flags.ignore_eos) {
    for (const int64_t id : runner.model.checkpoint.text.stop_ids) ids.push_back(static_cast<TokenId>(id));
    for (const TokenId id : tokenizer.turn_end_ids()) ids.push_back(id);
  }
  for (const std::string& stop : flags.stops) {
    ensure(!stop.empty(), ErrorCode::usage, "--stop: the text is empty");
    ensure(utf8_valid_prefix(stop) == stop.size(), ErrorCode::usage, "--stop: {} is not UTF-8",
           lapidary::quoted(stop));
    const std::optional<TokenId> id = tokenizer.find(stop);
    if (id && tokenizer.is_special(*id)) {
      ids.push_back(*id);
    } else {
      runner.generation.stop_texts.push_back(stop);
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

constexpr size_t kMaxGrammarFile = size_t{64} << 20;  // the limits of grammars themselves are lower

// --json-schema takes a file or the schema itself. What JSON can begin with is JSON: a file of such a name
// is to be had as ./NAME.
std::string schema_text(const std::string& argument) {
  constexpr const char* kBlanks = " \t\r\n";
  const size_t first = argument.find_first_not_of(kBlanks);
  ensure(first != std::string::npos, ErrorCode::usage,
         "--json-schema: expected a schema or a file that holds one, got {}",
         argument.empty() ? "nothing" : "blanks alone");
  const std::string word = argument.substr(first, argument.find_last_not_of(kBlanks) + 1 - first);
  if (word.front() == '{' || word.front() == '[' || word == "true" || word == "false") return argument;
  try {
    return read_text_file(argument, kMaxGrammarFile);
  } catch (const Error& error) {
    fail(error.code(), "--json-schema: neither JSON nor a file that can be read: {}", error.what());
  }
}

void set_grammar(Runner& runner, const RunFlags& flags) {
  if (!flags.json_schema && !flags.regex && !flags.grammar) return;
  const Tokenizer& tokenizer = runner.model.tokenizer;
  std::string source;  // read first: a missing file is told at once
  if (flags.json_schema) source = schema_text(*flags.json_schema);
  if (flags.grammar) source = read_text_file(*flags.grammar, kMaxGrammarFile);
  const GrammarEnv env(tokenizer, runner.generation.stop_ids);
  Grammar content = flags.json_schema ? env.json_schema(source)
                    : flags.regex     ? env.regex(*flags.regex)
                                      : env.lark(source);
  AnswerGrammar grammar{env, std::move(content), {}, flags.chat.think.value_or(false)};
  const TurnSyntax syntax = TurnSyntax::of(tokenizer, env.stop_ids());
  if (runner.generation.tools && syntax.call_open && syntax.string_mark) {
    grammar.calls = env.call_body(runner.conversation->tools().names);
  }
  runner.generation.grammar = std::move(grammar);
}

// What an answer looks like as it arrives. Thoughts are for whoever watches: they are shown, dimmed, on a
// terminal, and stay out of what a pipe gets.
class AnswerView {
 public:
  AnswerView(bool streaming, Progress& progress)
      : streaming_(streaming),
        terminal_(is_terminal(STDOUT_FILENO)),
        style_(Style::for_fd(STDOUT_FILENO)),
        progress_(progress) {}

  void thought(std::string_view text) {
    progress_.clear();
    if (!streaming_ || !terminal_) return;
    if (!thinking_) write_out(style_.dim("[thinking]\n"));
    thinking_ = true;
    write_out(style_.dim(terminal_safe(text)));
  }
  void text(std::string_view text) {
    progress_.clear();
    if (!streaming_) return;
    end_thought();
    write_out(terminal_ ? terminal_safe(text) : std::string(text));
    anything_ = true;
    open_line_ = !text.ends_with('\n');
  }
  void call(const ToolCall& call) {
    progress_.clear();
    if (!streaming_) return;
    end_thought();
    end_line();
    const std::string line = fmt::format("[call] {} {}", call.name, call.arguments);
    write_out((terminal_ ? terminal_safe(line) : line) + "\n");
    anything_ = true;
  }
  void finish() {
    progress_.clear();
    if (!streaming_) return;
    end_thought();
    if (!anything_ || open_line_) write_out("\n");
  }

 private:
  void end_thought() {
    if (thinking_) write_out(style_.dim("\n[answer]") + "\n");
    thinking_ = false;
  }
  void end_line() {
    if (open_line_) write_out("\n");
    open_line_ = false;
  }

  bool streaming_, terminal_;
  Style style_;
  Progress& progress_;
  bool thinking_ = false, anything_ = false, open_line_ = false;
};

}  // namespace

Runner open_runner(const RunFlags& flags) {
  Runner runner{open_text_model(flags.model, flags.engine), {}, {}, {}, {}, {}, {}};
  const Checkpoint& checkpoint = runner.model.checkpoint;
  runner.generation.max_tokens = flags.max_tokens;
  runner.generation.show_special = flags.show_special;
  runner.generation.sampling = sampling_params(flags.sampling, checkpoint);
  runner.sampling = sampling_text(runner.generation.sampling);
  set_stops(runner, flags);
  context_of(checkpoint, flags.engine);
  if (!flags.raw) {
    runner.conversation.emplace(checkpoint, runner.model.tokenizer, flags.chat);
    runner.generation.tools = !runner.conversation->tools().names.empty();
  }
  set_grammar(runner, flags);
  return runner;
}

void load(Runner& runner, const RunFlags& flags) {
  runner.engine = load_engine(runner.model.checkpoint, flags.engine, runner.model.times);
  runner.session = std::make_unique<Session>(*runner.engine, runner.model.tokenizer, runner.generation,
                                             flags.engine.chunk);
}

Answer answer_with(Runner& runner, const std::vector<TokenId>& prompt, bool streaming) {
  Progress progress("reading the prompt");
  AnswerView view(streaming, progress);
  auto on_text = [&](std::string_view text) { view.text(text); };
  auto on_thought = [&](std::string_view text) { view.thought(text); };
  auto on_call = [&](const ToolCall& call) { view.call(call); };
  auto on_prefill = [&](int64_t done, int64_t total) { progress.show(done, total, false); };
  auto interrupted = [] { return InterruptScope::requested(); };
  const Watcher watcher{on_text, on_thought, on_call, on_prefill, interrupted};
  Answer answer = runner.session->answer(prompt, watcher);
  view.finish();
  return answer;
}

}  // namespace lapidary
