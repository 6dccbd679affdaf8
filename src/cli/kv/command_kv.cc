#include <CLI/CLI.hpp>
#include <fstream>

#include "cli/kv/commands.h"

namespace lapidary {
namespace {

constexpr const char* kKvDescription =
    "The KV lab: what a KV cache is, how large, what reading it costs, whether another one is the same";

constexpr const char* kKvExamples =
    R"(In the order in which one learns it. Each has --help and --json; each exits with 1 when a check of its own fails.

  lapidary kv plan gemma-4-31b/config.json --length 131072   bytes from a config alone: needed, allocated, read
  lapidary kv bytes smollm2-135m-instruct --length 1000      the same of a running cache, to the byte
  lapidary kv trace smollm2-135m-instruct "The capital of France is" -n 10
  lapidary kv recompute smollm2-135m-instruct "The capital of France is" -n 10
  lapidary kv offload smollm2-135m-instruct --length 1000    saved, poisoned, restored: the same bits? how fast?
  lapidary kv prefix smollm2-135m-instruct prompts.txt       what of each prompt was there, and why the rest was not
  lapidary kv roofline smollm2-135m-instruct                 how often a step reads the cache
  lapidary kv report smollm2-135m-instruct "The capital of France is" -n 10 -o report)";

}  // namespace

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

kvlab::Repro make_repro(const Checkpoint& checkpoint, const Engine* engine) {
  kvlab::Repro repro;
  repro.command = command_line();
  repro.version = LAPIDARY_VERSION;
  repro.model = checkpoint.path.filename().string();
  repro.cpu = cpu_name();
  if (engine) {
    repro.numeric_mode = engine->numeric_mode();
    repro.threads = engine->threads();
  }
  return repro;
}

void add_kv_command(CLI::App& program, Action& action) {
  CLI::App* kv = program.add_subcommand("kv", kKvDescription);
  kv->require_subcommand(1);
  kv->footer(kKvExamples);
  add_kv_plan_command(*kv, action);
  add_kv_bytes_command(*kv, action);
  add_kv_trace_command(*kv, action);
  add_kv_recompute_command(*kv, action);
  add_kv_offload_command(*kv, action);
  add_kv_prefix_command(*kv, action);
  add_kv_roofline_command(*kv, action);
  add_kv_report_command(*kv, action);
}

}  // namespace lapidary
