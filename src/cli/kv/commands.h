// The commands of the KV lab, one function each (cli/commands.h), and what they share.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "cli/commands.h"
#include "engine/engine.h"
#include "formats/checkpoint.h"
#include "kvlab/report_frame.h"

namespace lapidary {

void add_kv_plan_command(CLI::App& kv, Action& action);
void add_kv_bytes_command(CLI::App& kv, Action& action);
void add_kv_trace_command(CLI::App& kv, Action& action);
void add_kv_recompute_command(CLI::App& kv, Action& action);
void add_kv_offload_command(CLI::App& kv, Action& action);
void add_kv_prefix_command(CLI::App& kv, Action& action);
void add_kv_roofline_command(CLI::App& kv, Action& action);
void add_kv_report_command(CLI::App& kv, Action& action);

// What a result says of itself. `engine`: null where nothing was computed.
kvlab::Repro make_repro(const Checkpoint& checkpoint, const Engine* engine);

std::string cpu_name();  // as the system says it

}  // namespace lapidary
