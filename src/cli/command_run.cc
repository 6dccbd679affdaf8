#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "cli/run_flags.h"
#include "cli/state_file.h"
#include "cli/terminal.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

constexpr const char* kRunExamples =
    R"(Without PROMPT on a terminal this is a conversation: /help lists its commands, Ctrl-C stops an answer, Ctrl-D leaves.
Otherwise the prompt is read from standard input ("-" asks for that too); one newline at its end is dropped.

Examples:
  lapidary run smollm2-135m-instruct
  lapidary run smollm2-135m-instruct "Name three colours." --system "Be brief." --temp 0.7 --seed 1
  lapidary run --raw smollm2-135m-instruct "The capital of France is" -n 8 --stats
  lapidary run --raw model.gguf - --stop "\n\n" --json < prompt.txt
  lapidary run smollm2-135m-instruct "Name a colour." --save-state talk.state
  lapidary run smollm2-135m-instruct "Another one." --load-state talk.state --stats
  lapidary run smollm2-135m-instruct "Describe a cat." --json-schema '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'

A grammar binds the answer, not the thinking before it; with --tools the model may also call a tool in place of an answer.
Thinking is shown dimmed on a terminal and left out where standard output is a file or a pipe; --json reports it by itself.)";

std::string prompt_text(const RunFlags& flags) {
  if (flags.prompt && *flags.prompt != "-") return *flags.prompt;
  std::string text = read_stdin();
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

std::vector<TokenId> prompt_ids(Runner& runner, const std::string& text) {
  if (!runner.conversation) return runner.model.tokenizer.prompt_ids(text);
  runner.conversation->add("user", text);
  return runner.conversation->prompt_ids();
}

boost::json::array calls_json(const std::vector<ToolCall>& calls) {
  boost::json::array array;
  for (const ToolCall& call : calls) array.push_back({{"name", call.name}, {"arguments", call.arguments}});
  return array;
}

boost::json::object answer_json(const Runner& runner, const Answer& answer) {
  const RunStats stats = collect_stats(*runner.engine, runner.model.times, runner.sampling, answer);
  const SamplingParams& sampling = runner.generation.sampling;
  return {{"model", utf8_lossy(runner.model.checkpoint.path.string())},
          {"mode", runner.conversation ? "chat" : "raw"},
          {"text", answer.text},
          {"content", answer.content},
          {"reasoning_content", answer.reasoning},
          {"tool_calls", calls_json(answer.calls)},
          {"ids", boost::json::value_from(answer.ids)},
          {"finish_reason", finish_name(answer.finish)},
          {"finish_detail", answer.reason},
          {"prompt_tokens", answer.prompt_tokens},
          {"completion_tokens", answer.ids.size()},
          {"sampling",
           {{"temperature", sampling.temperature},
            {"top_k", sampling.top_k},
            {"top_p", sampling.top_p},
            {"min_p", sampling.min_p},
            {"repeat_penalty", sampling.repetition_penalty},
            {"frequency_penalty", sampling.frequency_penalty},
            {"presence_penalty", sampling.presence_penalty},
            {"seed", sampling.seed}}},
          {"cache",
           {{"cached_tokens", answer.cache.cached},
            {"common_tokens", answer.cache.common},
            {"used_tokens", answer.cache.kept},
            {"earliest_restart", answer.cache.earliest},
            {"note", cache_use_text(answer.cache)}}},
          {"timings", timings_json(stats)},
          {"memory", memory_json(stats)},
          {"threads", stats.threads},
          {"numeric_mode", stats.numeric_mode}};
}

void save_answer(Runner& runner, const Answer& answer, AtomicFile& file) {
  if (runner.conversation) {
    if (answer.ids.empty() && answer.finish == Finish::interrupted) runner.conversation->drop_last();
    else runner.conversation->add_answer(answer.content, answer.reasoning, answer.calls);
  }
  save_state(runner, file);
}

// Files are opened before the weights are loaded: a mistake in their names shows up at once. The state is
// saved last: a full disk does not cost the answer.
int run_once(Runner& runner, const RunFlags& flags) {
  const std::string text = prompt_text(flags);
  ensure(!text.empty(), ErrorCode::usage, "the prompt is empty");
  std::optional<MappedFile> loaded;
  std::optional<AtomicFile> saved;
  if (!flags.load_state.empty()) loaded.emplace(flags.load_state);
  if (!flags.save_state.empty()) saved.emplace(flags.save_state);
  if (loaded) {  // what a chat's prompt begins with is in there
    load(runner, flags);
    load_state(runner, *loaded);
  }
  const std::vector<TokenId> prompt = prompt_ids(runner, text);
  check_prompt(prompt, context_of(runner.model.checkpoint, flags.engine));
  if (!loaded) load(runner, flags);
  const InterruptScope interrupts(true);
  const Answer answer = answer_with(runner, prompt, !flags.json);
  if (flags.json) write_out(boost::json::serialize(answer_json(runner, answer)) + "\n");
  const Style style = Style::for_fd(STDERR_FILENO);
  if (loaded && !answer.cache.whole())
    write_err(fmt::format("note: {}: {}\n", loaded->name(), cache_use_text(answer.cache)));
  if (flags.stats) {
    write_err(stats_table(collect_stats(*runner.engine, runner.model.times, runner.sampling, answer), style));
  } else if (answer.finish == Finish::length && is_terminal(STDERR_FILENO)) {
    write_err(
        style.dim(answer.reason == "-n" ? "[cut: -n allows more tokens]" : "[cut: the context is full]") +
        "\n");
  }
  if (saved) save_answer(runner, answer, *saved);
  return answer.finish == Finish::interrupted ? kExitInterrupted : kExitOk;
}

void check_flags(const RunFlags& flags) {
  ensure(flags.load_state.empty() || flags.chat.system.empty(), ErrorCode::usage,
         "--system and --load-state: the state brings its own messages");
  if (!flags.raw) return;
  ensure(flags.chat.system.empty(), ErrorCode::usage, "--system belongs to a chat; --raw has none");
  ensure(!flags.chat.think, ErrorCode::usage, "--think and --no-think belong to a chat; --raw has none");
  ensure(flags.chat.template_file.empty(), ErrorCode::usage,
         "--chat-template belongs to a chat; --raw has none");
  ensure(flags.chat.tools_file.empty(), ErrorCode::usage, "--tools belongs to a chat; --raw has none");
}

int run(const RunFlags& flags) {
  check_flags(flags);
  const bool interactive = !flags.prompt && is_terminal(STDIN_FILENO);
  ensure(!interactive || !flags.json, ErrorCode::usage,
         "--json needs a PROMPT, or a prompt on standard input");
  Runner runner = open_runner(flags);
  return interactive ? run_repl(runner, flags) : run_once(runner, flags);
}

void add_text_flags(CLI::App& command, RunFlags& flags) {
  command.add_option("MODEL", flags.model, "Model: folder, GGUF or packed file, or name in the cache")
      ->required();
  command.add_option("PROMPT", flags.prompt, "Text for the model; - reads standard input");
  command.add_flag("--raw", flags.raw, "Complete the text as it stands, without the chat template");
  command.add_option("--system", flags.chat.system, "System message of the chat");
  // A function: CLI11 2.1 gives an optional behind a negatable flag a value that nobody asked for.
  CLI::Option* think = command.add_flag_callback(
      "--think", [&flags] { flags.chat.think = true; }, "Switch the template's enable_thinking on");
  command
      .add_flag_callback(
          "--no-think", [&flags] { flags.chat.think = false; },
          "Switch it off (default: as the template does by itself)")
      ->excludes(think);
  command
      .add_option("--chat-template", flags.chat.template_file,
                  "Jinja file to use in place of the model's own template")
      ->check(not_empty());
  command
      .add_option("--tools", flags.chat.tools_file,
                  "JSON file with the tools that the model may call; its calls are reported, not run")
      ->check(not_empty());
  command
      .add_option("-n,--max-tokens", flags.max_tokens,
                  "At most this many new tokens; 0: until the model stops (default 1024)")
      ->check(at_least(0));
  command.add_option("--stop", flags.stops, "End the answer before this text; repeatable")
      ->allow_extra_args(false);
  command.add_flag("--ignore-eos", flags.ignore_eos, "Go on past the model's stop tokens");
  command.add_flag("--show-special", flags.show_special, "Print special tokens too");
  command
      .add_option("--save-state", flags.save_state,
                  "Write the KV cache (and the messages of a chat) to this file at the end")
      ->check(not_empty());
  command
      .add_option("--load-state", flags.load_state,
                  "Go on from such a file: what the prompt shares with it is not computed again")
      ->check(not_empty());
  command
      .add_option("--keep-behind", flags.engine.keep_behind,
                  "Positions kept behind each window, to go back to without computing again (default 1024)")
      ->check(at_least(0));
  command.add_flag("--stats", flags.stats, "Say on stderr where the time and the bytes went");
  command.add_flag("--json", flags.json, "One JSON object in place of the text");
}

void add_grammar_flags(CLI::App& command, RunFlags& flags) {
  const auto group = "Grammar (one of them: the answer is sure to fit, unless -n or --stop cuts it)";
  CLI::Option* schema =
      command.add_option("--json-schema", flags.json_schema, "JSON schema: a file, or the schema itself");
  CLI::Option* regex =
      command.add_option("--regex", flags.regex, "Regular expression that the whole answer matches");
  CLI::Option* grammar =
      command.add_option("--grammar", flags.grammar, "File with a grammar in Lark's syntax");
  schema->excludes(regex)->excludes(grammar);
  regex->excludes(grammar);
  for (CLI::Option* option : {schema, regex, grammar}) option->group(group);
}

}  // namespace

void add_run_command(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("run", "Chat with a model, or complete a text");
  auto flags = std::make_shared<RunFlags>();
  flags->engine.keep_behind = kRunKeepBehind;
  command->footer(kRunExamples);
  add_text_flags(*command, *flags);
  add_grammar_flags(*command, *flags);
  add_sampling_flags(*command, flags->sampling);
  add_engine_flags(*command, flags->engine);
  command->callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace lapidary
