#include "cli/serve/memory_plan.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "cli/byte_sizes.h"
#include "cli/numbers.h"
#include "cli/table.h"
#include "kvlab/plan/kv.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

std::optional<int64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// A line "NAME VALUE" of a memory.stat, or "NAME: VALUE kB" of meminfo, in bytes.
int64_t read_field(const fs::path& path, const std::string& name, int64_t unit) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    int64_t value = 0;
    if (words >> key >> value && key == name) return value * unit;
  }
  return 0;
}

struct GroupFiles {
  const char *limit, *used, *cached;  // cached: field of memory.stat
};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "file"};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"};

// The group's limit counts, and every limit of those above it. In a container the path may be that of the
// host, and the container's own group lies at the mount.
void look_at_groups(const fs::path& mount, const std::string& group, const GroupFiles& files,
                    MachineMemory& memory) {
  fs::path path = fs::path(group).relative_path();
  for (;;) {
    const fs::path folder = mount / path;
    const std::optional<int64_t> limit = read_number(folder / files.limit);  // "max" is no number
    if (limit && *limit < memory.total) {
      memory.total = *limit;
      memory.limited = true;
    }
    if (limit && *limit < kAll / 2) {
      const int64_t used =
          read_number(folder / files.used).value_or(0) - read_field(folder / "memory.stat", files.cached, 1);
      memory.available =
          std::min(memory.available, std::max<int64_t>(0, *limit - std::max<int64_t>(0, used)));
    }
    if (path.empty()) return;
    path = path.parent_path();
  }
}

int64_t sum_of(const std::map<std::string, int64_t>& bytes) {
  int64_t sum = 0;
  for (const auto& [name, n] : bytes) sum += n;
  return sum;
}

// Rows of one step, float each: the residual stream, its norm and branch and the largest of what a layer
// makes of it, twice for what is kept as integers too; the logits of some rows.
int64_t workspace_of(const ModelSpec& spec, int64_t rows) {
  int64_t queries = 0, kv = 0, ff = 0, expert = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.attention) {
      queries = std::max(queries, layer.attention->n_heads * layer.attention->head_dim);
      kv = std::max(kv, layer.attention->n_kv_heads * layer.attention->head_dim);
    }
    if (layer.ffn) {
      ff = std::max(ff, layer.ffn->d_ff);
      if (layer.ffn->moe)
        expert =
            std::max(expert, 3 * spec.d_model + 2 * layer.ffn->moe->d_ff + 2 * layer.ffn->moe->n_experts);
    }
  }
  const int64_t row =
      4 * spec.d_model + 3 * queries + 2 * kv + 3 * ff + expert + spec.n_layers() * spec.ple_dim;
  constexpr int64_t kLogitRows = 16, kFloat = 4;
  return kFloat * (rows * row + std::min(rows, kLogitRows) * spec.vocab_size);
}

class KvSizes {
 public:
  KvSizes(const ModelSpec& spec, const PlanRequest& request)
      : layers_(kvlab::plan_layers(spec, request.types)), rule_{request.keep_behind + request.step_rows} {}
  int64_t at(int64_t length) const {
    return kvlab::view_bytes_most(kvlab::View::this_engine, layers_, rule_, length);
  }
  // The greatest length up to `most` that takes at most so many bytes; 0: none.
  int64_t longest(int64_t bytes, int64_t most) const {
    int64_t low = 0, high = most;
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (at(middle) <= bytes) low = middle;
      else high = middle - 1;
    }
    return low;
  }

 private:
  std::vector<kvlab::PlanLayer> layers_;
  kvlab::PageRule rule_;
};

constexpr int64_t kContextStep = 256, kLeastContext = 256;

int64_t planned_kv(const KvSizes& sizes, const PlanRequest& request, int64_t left, MemoryPlan& plan) {
  if (sizes.at(plan.context) > left && !request.context_asked) {
    const int64_t fits = sizes.longest(left, plan.context) / kContextStep * kContextStep;
    if (fits >= kLeastContext) plan.context = fits;
  }
  const int64_t one = sizes.at(plan.context);
  ensure(
      one <= left, ErrorCode::limit,
      "the memory does not hold the KV cache of one text of {} tokens: it takes {}, {} are left beside {} of "
      "weights and {} for all else, {} are missing; lower --context, or store less of each position with "
      "--kv-dtype q8",
      grouped(plan.context), binary_text(one), binary_text(left), binary_text(plan.weight_bytes),
      binary_text(plan.workspace_bytes + plan.program_bytes), binary_text(one - left));
  const int64_t texts = request.running + request.cached;
  const int64_t most = one > kAll / texts ? kAll : one * texts;
  return std::max(one, std::min(left / 2, most));
}

void check_asked_kv(const KvSizes& sizes, const PlanRequest& request, int64_t left, const MemoryPlan& plan) {
  const int64_t one = sizes.at(plan.context);
  ensure(
      request.kv_bytes <= left, ErrorCode::limit,
      "--kv-bytes: {} do not fit: {} are left of {} beside {} of weights and {} for all else; {} are missing",
      binary_text(request.kv_bytes), binary_text(std::max<int64_t>(0, left)),
      binary_text(plan.machine.available), binary_text(plan.weight_bytes),
      binary_text(plan.workspace_bytes + plan.program_bytes), binary_text(request.kv_bytes - left));
  ensure(one <= request.kv_bytes, ErrorCode::limit,
         "--kv-bytes: {} do not hold one text of {} tokens, which takes {}; raise it, or lower --context",
         binary_text(request.kv_bytes), grouped(plan.context), binary_text(one));
}

}  // namespace

MachineMemory read_machine_memory(const fs::path& root) {
  MachineMemory memory;
  const fs::path meminfo = root / "proc/meminfo";
  memory.total = read_field(meminfo, "MemTotal:", 1024);
  memory.available = read_field(meminfo, "MemAvailable:", 1024);
  ensure(memory.total > 0 && memory.available > 0, ErrorCode::io, "{} does not say how much memory there is",
         meminfo.string());
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "0::/system.slice/x" or "4:memory:/x"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      group = line.substr(second + 1);
    if (controllers.empty()) {
      look_at_groups(root / "sys/fs/cgroup", group, kVersion2, memory);
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      look_at_groups(root / "sys/fs/cgroup/memory", group, kVersion1, memory);
    }
  }
  return memory;
}

MemoryPlan plan_memory(const Checkpoint& checkpoint, const MachineMemory& machine,
                       const PlanRequest& request) {
  const KvSizes sizes(checkpoint.spec, request);
  MemoryPlan plan;
  plan.machine = machine;
  plan.weight_bytes = sum_of(checkpoint.dtype_bytes);
  plan.workspace_bytes = workspace_of(checkpoint.spec, request.step_rows);
  plan.program_bytes = kProgramBytes;
  plan.context = plan.made_for = request.context;
  const int64_t others = plan.weight_bytes + plan.workspace_bytes + plan.program_bytes;
  const int64_t left = machine.available - others;
  ensure(left > 0, ErrorCode::limit,
         "the model does not fit: {} of weights and {} for all else, {} are available of {}; {} are missing",
         binary_text(plan.weight_bytes), binary_text(plan.workspace_bytes + plan.program_bytes),
         binary_text(machine.available), binary_text(machine.total), binary_text(-left));
  plan.kv_asked = request.kv_bytes > 0;
  if (plan.kv_asked) {
    if (!request.context_asked && sizes.at(plan.context) > request.kv_bytes) {
      const int64_t fits = sizes.longest(request.kv_bytes, plan.context) / kContextStep * kContextStep;
      if (fits >= kLeastContext) plan.context = fits;
    }
    check_asked_kv(sizes, request, left, plan);
    plan.kv_bytes = request.kv_bytes;
  } else {
    plan.kv_bytes = planned_kv(sizes, request, left, plan);
  }
  plan.text_bytes = sizes.at(plan.context);
  plan.kv_tokens = sizes.longest(plan.kv_bytes, int64_t{1} << 36);
  return plan;
}

std::string plan_text(const MemoryPlan& plan, const Style& style) {
  TextTable table({{"memory", Align::left}, {"", Align::right}, {"", Align::left}});
  table.add({"weights", binary_text(plan.weight_bytes), ""});
  const double texts =
      static_cast<double>(plan.kv_bytes) / static_cast<double>(std::max<int64_t>(1, plan.text_bytes));
  table.add({"KV cache", binary_text(plan.kv_bytes),
             fmt::format("{} tokens of one text, or {:.1f} texts of {} ({} each); {}",
                         grouped(plan.kv_tokens), texts, grouped(plan.context), binary_text(plan.text_bytes),
                         plan.kv_asked ? "as --kv-bytes says" : "taken as it is needed")});
  table.add({"workspace", binary_text(plan.workspace_bytes), "rows of one step"});
  table.add({"program", binary_text(plan.program_bytes), "vocabulary, grammars, connections"});
  table.add({"together", binary_text(plan.total()),
             fmt::format("of {} available, {} {}", binary_text(plan.machine.available),
                         binary_text(plan.machine.total),
                         plan.machine.limited ? "allowed by the control group" : "in the machine")});
  return table.text(style);
}

boost::json::object plan_json(const MemoryPlan& plan) {
  return {{"weight_bytes", plan.weight_bytes},
          {"kv_bytes", plan.kv_bytes},
          {"kv_bytes_per_text", plan.text_bytes},
          {"kv_tokens", plan.kv_tokens},
          {"workspace_bytes", plan.workspace_bytes},
          {"program_bytes", plan.program_bytes},
          {"total_bytes", plan.total()},
          {"available_bytes", plan.machine.available},
          {"machine_bytes", plan.machine.total},
          {"limited_by_cgroup", plan.machine.limited},
          {"context", plan.context}};
}

}  // namespace lapidary
