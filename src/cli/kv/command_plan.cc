#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <memory>

#include "base/error.h"
#include "cli/byte_sizes.h"
#include "cli/flags.h"
#include "cli/inspect.h"
#include "cli/kv/commands.h"
#include "cli/kv/plan_text.h"
#include "cli/load.h"
#include "cli/stored_tensors.h"
#include "kvlab/plan/types.h"

namespace lapidary {
namespace {

constexpr const char* kPlanHelp =
    R"(Reads headers and metadata only: a config.json alone will do, and any size takes less than a second.

resident is what the weights take, touched what one token reads of them: one row of tables, a tied head once, the chosen experts.
needed is min(length, window) positions of each layer that owns K and V. "pages here" is what this engine's pages take, which hold
whole blocks of positions. A step reads more than is stored where layers borrow: they read their owner's K and V again. The table
of engines and formulas has the same cache as others hold or estimate it, and the factor beside what is needed.
With --tp, KV heads are split where the ranks divide them; else each rank has a head of its own where there are more ranks than
heads, or all of them. --budget (of one rank) answers how long a context and how many sequences fit beside the weights; --reserve
is for all else: activations, the program, rows of a prefill step. 1 GiB is 1024^3 bytes, 1 GB 1000^3.
q8 is this engine's (int8, one f32 scale for each head and position); q8_0, q5_1, q5_0, q4_1, q4_0 are blocks of 32 as others keep
them: priced, not run here.

Examples:
  lapidary kv plan smollm2-135m-instruct
  lapidary kv plan gemma-4-E2B/config.json --kv-dtype bf16 --length 512,513,131072
  lapidary kv plan llama-3-70b/config.json --max-position 131072 --length 112000 --kv-dtype k=q8_0,v=q4_0
  lapidary kv plan gemma-4-12b/config.json --tp 2 --budget 24GiB --reserve 1GiB --sequences 4
  lapidary kv plan model.gguf --csv > plan.csv)";

struct PlanFlags {
  std::string model, kv_dtype = "f16", weight_dtype, budget, reserve;
  kvlab::PlanOptions options;
  bool json = false, csv = false, every_layer = false;
};

kvlab::PlanWeights weights_of(const Checkpoint& checkpoint, const PlanFlags& flags) {
  const kvlab::PlanOptions& o = flags.options;
  if (!checkpoint.tensors || !flags.weight_dtype.empty()) {
    const std::string dtype = flags.weight_dtype.empty() ? "bf16" : flags.weight_dtype;
    return kvlab::assumed_weights(checkpoint.spec, kvlab::weight_dtype_from_name(dtype, "--weight-dtype"),
                                  o.sequences, o.ranks);
  }
  const auto stored = [&](const Slot& slot) { return stored_tensor(checkpoint, slot); };
  return kvlab::file_weights(checkpoint.spec, stored, o.sequences, o.ranks);
}

// Powers of four and the greatest, of the model or of --max-position.
std::vector<int64_t> default_lengths(int64_t max_position) {
  ModelSpec spec;
  spec.max_position = max_position;
  return kv_lengths(spec);
}

int plan(const PlanFlags& flags) {
  kvlab::PlanOptions options = flags.options;
  options.types = kvlab::plan_kv_types_from_name(flags.kv_dtype, "--kv-dtype");
  if (!flags.budget.empty()) options.budget_bytes = parse_byte_size(flags.budget, "--budget");
  if (!flags.reserve.empty()) options.reserved_bytes = parse_byte_size(flags.reserve, "--reserve");
  ensure(flags.reserve.empty() || !flags.budget.empty(), ErrorCode::usage,
         "--reserve is a part of --budget: expected both");
  const Checkpoint checkpoint = open_model(flags.model, true);
  if (options.lengths.empty())
    options.lengths =
        default_lengths(options.max_position > 0 ? options.max_position : checkpoint.spec.max_position);
  std::sort(options.lengths.begin(), options.lengths.end());
  options.lengths.erase(std::unique(options.lengths.begin(), options.lengths.end()), options.lengths.end());
  const kvlab::Plan made = kvlab::make_plan(checkpoint.spec, weights_of(checkpoint, flags), options);
  const kvlab::PlanLabels labels{checkpoint.family, checkpoint.format};
  if (flags.json) {
    write_out(boost::json::serialize(
                  kvlab::plan_json(made, checkpoint.spec, labels, make_repro(checkpoint, nullptr))) +
              "\n");
  } else if (flags.csv) {
    write_out(kvlab::plan_csv(made));
  } else {
    write_out(plan_text(made, checkpoint.spec, labels, {checkpoint.path.string(), flags.every_layer},
                        Style::for_fd(STDOUT_FILENO)));
  }
  return kExitOk;
}

}  // namespace

void add_kv_plan_command(CLI::App& kv, Action& action) {
  CLI::App* command =
      kv.add_subcommand("plan", "What weights and KV cache take, at any length, from headers alone");
  auto flags = std::make_shared<PlanFlags>();
  kvlab::PlanOptions& options = flags->options;
  command->footer(kPlanHelp);
  command
      ->add_option("MODEL", flags->model,
                   "Model: folder, GGUF or packed file, config.json or name in the cache")
      ->required();
  command
      ->add_option("--length,--lengths", options.lengths,
                   "Positions of a sequence, separated by commas (default: powers of four from 1,024 on, and "
                   "the model's greatest)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(at_least(1));
  command
      ->add_option("--max-position", options.max_position,
                   "Plan as if the model were made for so many positions")
      ->check(between(1, int64_t{1} << 40));
  command->add_option("--kv-dtype", flags->kv_dtype,
                      "Number format of K and V, or of each as in k=q8_0,v=q4_0 (default f16)");
  command->add_option("--weight-dtype", flags->weight_dtype,
                      "Number format of the weights (default: as in the file; bf16 for a config.json)");
  command->add_option("-s,--sequences,--batch", options.sequences, "Sequences of that length (default 1)")
      ->check(between(1, int64_t{1} << 32));
  command->add_option("--tp", options.ranks, "Ranks of tensor parallelism (default 1)")
      ->check(between(1, 65536));
  command->add_option("--budget", flags->budget,
                      "Memory of one rank, as in 16GiB or 16GB: what fits into it");
  command->add_option("--reserve", flags->reserve, "Part of the budget that is for other things");
  command
      ->add_option("--keep-behind", options.keep_behind,
                   "Positions that this engine keeps behind each window, as run does (default 0)")
      ->check(between(0, int64_t{1} << 40));
  command->add_flag("--layers", flags->every_layer, "One line for every layer");
  CLI::Option* json = command->add_flag("--json", flags->json, "One JSON object");
  command->add_flag("--csv", flags->csv, "One line of CSV for each length")->excludes(json);
  command->callback([flags, &action] { action = [flags] { return plan(*flags); }; });
}

}  // namespace lapidary
