// One function per command: it adds its flags to the program and hands over what to do once they are read.
#pragma once

#include <CLI/App.hpp>
#include <functional>

namespace lapidary {

using Action = std::function<int()>;  // returns the exit code

void add_run_command(CLI::App& program, Action& action);
void add_inspect_command(CLI::App& program, Action& action);
void add_tokenize_command(CLI::App& program, Action& action);
void add_score_command(CLI::App& program, Action& action);
void add_verify_command(CLI::App& program, Action& action);
void add_convert_command(CLI::App& program, Action& action);
void add_bench_command(CLI::App& program, Action& action);
void add_pack_command(CLI::App& program, Action& action);
void add_kv_command(CLI::App& program, Action& action);
void add_serve_command(CLI::App& program, Action& action);

const std::string& command_line();  // as it was typed, "lapidary kv trace ..."

// Exit codes of the program.
inline constexpr int kExitOk = 0, kExitFailure = 1, kExitUsage = 2, kExitInterrupted = 130;

// The whole program but for main(): reads the arguments, runs the command, reports errors on stderr.
int run_program(int argc, const char* const* argv);

}  // namespace lapidary
