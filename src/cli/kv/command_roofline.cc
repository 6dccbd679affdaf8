#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/team.h"
#include "cli/flags.h"
#include "cli/kv/commands.h"
#include "cli/kv/roofline_text.h"
#include "cli/load.h"
#include "cli/terminal.h"
#include "kvlab/roofline/roofline.h"

namespace lapidary {
namespace {

constexpr const char* kRooflineExamples =
    R"(A decode step reads all weights and the cache once. Here the bytes are counted in the kernels, the seconds measured, and
  t(length) = fixed + weights / BW + passes * KV bytes / BW
fitted. Length: positions in the cache after the last timed step. passes: how often the cache seems to be read, judging by how
the time grows; 1 is the least. predicted: bytes by the read bandwidth that was measured for as many bytes as a step reads,
which is a cache's where they fit one; if from memory: by that of memory far beyond the caches. ratio: predicted to measured.
overhead: measured, but not predicted. p10: the quickest tenth of the steps. drift: the first length measured once more at the
end; more than 5 % says that other work disturbed the machine. --expand-gqa and --concat-append waste bandwidth on purpose, as other stacks do: each
query head gets keys and values of its own (1 + 2 H/K passes), appending copies the cache (3 passes); the logits must not
change. Tokens are random. Exit code 1 when the counters differ from the formula, or logits between runs of the same tokens.

Examples:
  lapidary kv roofline smollm2-135m-instruct
  lapidary kv roofline smollm2-135m-instruct --lengths 512,2048,8192 --threads 1,2 --expand-gqa --concat-append
  lapidary kv roofline gemma3-270m --kv-dtype q8 --csv
  lapidary kv roofline smollm2-135m-instruct --json)";

const std::vector<int64_t> kDefaultLengths{512, 1024, 2048, 4096, 8192, 16384, 32768};

struct RooflineFlags {
  std::string model;
  kvlab::RooflinePlan plan;
  EngineFlags engine;
  bool json = false, csv = false;
};

// As many turns of the lengths as give each some steps in a row, five at most.
int64_t rounds_of(int64_t steps) {
  constexpr int64_t kMostRounds = 5, kStepsInARow = 5;
  for (int64_t rounds = kMostRounds; rounds > 1; --rounds)
    if (steps % rounds == 0 && steps / rounds >= kStepsInARow) return rounds;
  return 1;
}

// A length that was asked for by name must be possible; of the usual ones, those that are.
void settle_lengths(kvlab::RooflinePlan& plan, const ModelSpec& spec, std::vector<kvlab::LeftOut>& left_out) {
  const bool given = !plan.lengths.empty();
  const int64_t steps = plan.steps_of_round() + plan.warm_up;
  plan.lengths =
      kvlab::possible_lengths(given ? plan.lengths : kDefaultLengths, steps, spec.max_position, left_out);
  if (given && !left_out.empty())
    fail(ErrorCode::usage, "--lengths {}: {}", left_out.front().length, left_out.front().why);
  ensure(!plan.lengths.empty(), ErrorCode::usage,
         "none of the usual lengths is possible ({}): give --lengths, or fewer --steps",
         left_out.empty() ? "" : left_out.front().why);
}

int roofline(const RooflineFlags& flags) {
  const Checkpoint checkpoint = open_model(flags.model, flags.engine);
  ensure(checkpoint.tensors != nullptr, ErrorCode::usage, "{} holds no weights", checkpoint.path.string());
  if (flags.plan.expand_gqa) refuse_packed(checkpoint, "--expand-gqa");
  kvlab::RooflinePlan plan = flags.plan;
  plan.rounds = rounds_of(plan.steps);
  plan.part_steps = std::min(plan.part_steps, plan.steps_of_round());
  std::vector<kvlab::LeftOut> left_out;
  settle_lengths(plan, checkpoint.spec, left_out);
  if (plan.threads.empty()) plan.threads = {usable_cores()};
  WorkLine line;
  kvlab::RooflineReport report = kvlab::measure_roofline(
      checkpoint.spec, *checkpoint.tensors, engine_options(checkpoint, flags.engine), plan, line);
  line.clear();
  report.left_out = std::move(left_out);
  kvlab::Repro repro = make_repro(checkpoint, nullptr);
  repro.model_hash = hash_text(hash_of_model(checkpoint));
  repro.numeric_mode = report.numeric_mode;
  repro.threads = plan.threads.back();
  if (flags.json) {
    write_out(boost::json::serialize(kvlab::roofline_json(report, repro)) + "\n");
  } else if (flags.csv) {
    write_out(roofline_csv(report));
  } else {
    write_out(roofline_text(report, repro, Style::for_fd(STDOUT_FILENO)));
  }
  return report.passed() ? kExitOk : kExitFailure;
}

}  // namespace

void add_kv_roofline_command(CLI::App& kv, Action& action) {
  constexpr int64_t kMostTokens = int64_t{1} << 24;
  CLI::App* command = kv.add_subcommand(
      "roofline", "What reading the cache costs: time over length against bytes and bandwidth");
  auto flags = std::make_shared<RooflineFlags>();
  kvlab::RooflinePlan& plan = flags->plan;
  command->footer(kRooflineExamples);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF or packed file, or name in the cache")
      ->required();
  command
      ->add_option("--lengths", plan.lengths,
                   "Context lengths, separated by commas (default 512 to 32768, doubled each time)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(between(1, kMostTokens));
  command
      ->add_option(
          "--steps", plan.steps,
          "Timed decode steps of each length, in up to 5 rounds: the lengths take turns (default 50)")
      ->check(between(1, 100000));
  command
      ->add_option("--warmup", plan.warm_up,
                   "Steps before them, in each round, that are not timed (default 5)")
      ->check(between(0, 100000));
  command
      ->add_option("--threads", plan.threads,
                   "Threads, a run for each (default: physical cores that this process may use)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(between(1, 1024));
  command
      ->add_option("--probe-mb", plan.probe_megabytes,
                   "MiB for measuring the memory (default: four times the last cache)")
      ->check(between(1, int64_t{1} << 20));
  command->add_option("--seed", plan.seed, "Of the random tokens (default 1)")->check(unsigned_number());
  command->add_flag("--expand-gqa", plan.expand_gqa, "Also with keys and values copied for each query head");
  command->add_flag("--concat-append", plan.concat_append, "Also with the cache copied by each append");
  auto* json = command->add_flag("--json", flags->json, "One JSON object");
  command->add_flag("--csv", flags->csv, "One line for each length, with all digits")->excludes(json);
  add_mode_flags(*command, flags->engine);
  command->callback([flags, &action] { action = [flags] { return roofline(*flags); }; });
}

}  // namespace lapidary
