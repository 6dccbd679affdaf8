#include <unistd.h>

#include <CLI/CLI.hpp>
#include <new>

#include "base/error.h"
#include "base/quote.h"
#include "cli/commands.h"
#include "base/suggest.h"
#include "cli/terminal.h"

namespace lapidary {
namespace {

constexpr const char* kDescription =
    "Lapidary runs and examines open language models: Gemma 4, Gemma 3 and Llama-style, on CPUs.";

constexpr const char* kExamples =
    R"(MODEL is a Hugging Face folder, a GGUF file (the first part of a split set), a file that pack wrote, or a name in the model cache,
${LAPIDARY_CACHE:-${XDG_CACHE_HOME:-~/.cache}/lapidary}/models.

Examples:
  lapidary run smollm2-135m-instruct                        chat on the terminal
  lapidary run smollm2-135m-instruct "Why is the sky blue?" one answer
  lapidary run --raw model.gguf "The capital of France is" -n 8
  lapidary inspect ~/models/gemma-4-12b                     layers, parameters, KV bytes; reads headers only
  lapidary tokenize smollm2-135m-instruct "Hello" --pieces
  lapidary score smollm2-135m-instruct book.txt --json
  lapidary verify smollm2-135m-instruct                     the engine against a float reference
  lapidary convert ~/models/gemma-4-12b out.gguf --type Q4_K_M
  lapidary bench smollm2-135m-instruct -p 512 -n 64         tokens per second, beside what the machine can do
  lapidary serve smollm2-135m-instruct                      an OpenAI-compatible server on port 8080
  lapidary kv plan smollm2-135m-instruct                    what a KV cache takes; kv --help has the whole lab
  lapidary pack smollm2-135m-instruct smollm2.lapidary      one file that starts at once

Exit codes: 0 fine, 1 failure, 2 wrong usage, 130 interrupted.)";

std::string& typed_command() {
  static std::string command;
  return command;
}

void report(const std::string& message) {
  write_err(fmt::format("{} {}\n", Style::for_fd(STDERR_FILENO).red("lapidary: error:"), message));
}

// The innermost command that was named: of `kv trace`, trace.
const CLI::App& chosen_command(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  return chosen.empty() ? program : chosen_command(*chosen.front());
}

// "", "run " or "kv trace ".
std::string command_path(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  return chosen.empty() ? "" : chosen.front()->get_name() + " " + command_path(*chosen.front());
}

std::vector<std::string> command_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

std::vector<std::string> flag_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_fnames()) names.push_back("--" + name);
  }
  return names;
}

// What CLI11 could not place: an unknown flag, an unknown command, or a word too many.
std::string describe_extra(const CLI::App& program) {
  const CLI::App& command = chosen_command(program);
  const std::vector<std::string> extras = program.remaining(true);
  std::string word = extras.empty() ? "" : extras.front();
  for (const std::string& extra : extras) {  // a flag says more than the value that came after it
    if (extra.starts_with("-") && extra != "-") {
      word = extra;
      break;
    }
  }
  const bool flag = word.starts_with("-");
  const std::vector<std::string> commands = command_names(command),
                                 known = flag ? flag_names(command) : commands;
  const std::string what = flag               ? "unknown flag"
                           : commands.empty() ? "unexpected argument"
                                              : "unknown command";
  std::string message = fmt::format("{} {}", what, lapidary::quoted(word));
  if (const auto guess = nearest(word.substr(0, word.find('=')), known))
    message += fmt::format("; did you mean {}?", *guess);
  return message;
}

std::string describe(const CLI::ParseError& error, const CLI::App& program) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) return describe_extra(program);
  const CLI::App& command = chosen_command(program);
  if (command_names(command).empty() || dynamic_cast<const CLI::RequiredError*>(&error) == nullptr)
    return error.what();
  if (!program.remaining(true).empty()) return describe_extra(program);
  return fmt::format("a command is required: {}", fmt::join(command_names(command), ", "));
}

int parse_and_run(CLI::App& program, Action& action, int argc, const char* const* argv) {
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    program.exit(asked);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    report(describe(error, program));
    write_err(fmt::format("  lapidary {}--help says what there is\n", command_path(program)));
    return kExitUsage;
  }
  return action();
}

}  // namespace

const std::string& command_line() {
  return typed_command();
}

int run_program(int argc, const char* const* argv) {
  typed_command() = fmt::format("lapidary {}", fmt::join(argv + std::min(argc, 1), argv + argc, " "));
  try {
    CLI::App program(kDescription, "lapidary");
    program.set_version_flag("--version,-V", "lapidary " LAPIDARY_VERSION);
    program.footer(kExamples);
    program.require_subcommand(1);
    program.get_formatter()->column_width(30);
    Action action;
    add_run_command(program, action);
    add_inspect_command(program, action);
    add_tokenize_command(program, action);
    add_score_command(program, action);
    add_verify_command(program, action);
    add_convert_command(program, action);
    add_bench_command(program, action);
    add_pack_command(program, action);
    add_serve_command(program, action);
    add_kv_command(program, action);
    return parse_and_run(program, action, argc, argv);
  } catch (const Error& error) {
    report(error.what());
    return error.code() == ErrorCode::usage ? kExitUsage : kExitFailure;
  } catch (const std::bad_alloc&) {
    report("out of memory");
  } catch (const std::exception& error) {
    report(error.what());
  }
  return kExitFailure;
}

}  // namespace lapidary
