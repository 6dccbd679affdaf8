// What a server takes of the machine's memory, known before the weights are read.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/kv_types.h"
#include "cli/terminal.h"
#include "formats/checkpoint.h"

namespace lapidary {

struct MachineMemory {
  int64_t total = 0;      // of the machine, or the limit of the control group
  int64_t available = 0;  // now; pages of files count as available
  bool limited = false;   // by a control group (container, systemd's MemoryMax)
};
// From /proc/meminfo and the control groups (v2, v1) that this process is in, below `root`. Error(io) when
// meminfo does not tell.
MachineMemory read_machine_memory(const std::filesystem::path& root = "/");

struct PlanRequest {
  int64_t context = 0;              // positions of one text
  bool context_asked = false;       // by a flag: refused when it cannot be, and not lowered
  int64_t kv_bytes = 0;             // asked for; 0: planned
  int64_t running = 1, cached = 0;  // texts at once, and held by the prefix cache
  int64_t step_rows = 256;
  int64_t keep_behind = 0;
  KvTypes types;
};

// The rule: what is available is shared out to weights, workspace and kProgramBytes first. Half of what is
// left is the room of the KV cache, but never less than one text of the whole context takes, nor more than
// all texts at their greatest can use. Where not even one text fits, the context is lowered to what does,
// unless it was asked for.
struct MemoryPlan {
  MachineMemory machine;
  int64_t weight_bytes = 0;     // of the tensors as they are stored
  int64_t workspace_bytes = 0;  // rows of one step; an estimate from above
  int64_t program_bytes = 0;    // vocabulary, grammars, connections
  int64_t kv_bytes = 0;
  bool kv_asked = false;
  int64_t context = 0, made_for = 0;  // positions: of one text here, and what was wanted
  int64_t text_bytes = 0;             // KV of one text of `context` positions
  int64_t kv_tokens = 0;              // positions of one endless text that the room holds
  int64_t total() const { return weight_bytes + workspace_bytes + program_bytes + kv_bytes; }
};
inline constexpr int64_t kProgramBytes = int64_t{192} << 20;

// Error(limit) naming what does not fit, and by how much.
MemoryPlan plan_memory(const Checkpoint& checkpoint, const MachineMemory& machine,
                       const PlanRequest& request);
std::string plan_text(const MemoryPlan& plan, const Style& style);
boost::json::object plan_json(const MemoryPlan& plan);

}  // namespace lapidary
