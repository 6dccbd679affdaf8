#include <CLI/CLI.hpp>
#include <fstream>

#include "cli/kv_commands.h"

namespace lapidary {
namespace {

constexpr const char* kKvDescription =
    "The KV lab: what a KV cache is, how large, what reading it costs, whether another one is the same";

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
  add_kv_plan_command(*kv, action);
  add_kv_bytes_command(*kv, action);
  add_kv_prefix_command(*kv, action);
  add_kv_trace_command(*kv, action);
  add_kv_recompute_command(*kv, action);
  add_kv_offload_command(*kv, action);
  add_kv_roofline_command(*kv, action);
  add_kv_offload_command(*kv, action);
  add_kv_roofline_command(*kv, action);
  add_kv_report_command(*kv, action);
  add_kv_recompute_command(*kv, action);
  add_kv_prefix_command(*kv, action);
  add_kv_trace_command(*kv, action);
}

}  // namespace lapidary
