#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/team.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/kv/commands.h"
#include "cli/load.h"
#include "cli/model_path.h"
#include "cli/stats.h"
#include "cli/terminal.h"

namespace lapidary {
namespace {

constexpr const char* kBenchExamples =
    R"(pp512 is the prefill of 512 tokens, tg64 b8 d4096 the decode of 64 tokens for each of 8 sequences that hold 4096 before.
tok/s is the median of the repetitions, of all sequences together; the spread is half of what lies between the slowest and the
fastest. GB/s: weights and cached keys and values that decoding reads, beside what this machine can read; Gop/s: operations
that the model needs, and the share of the time that they would take at this machine's peak. logits: the beginning of a hash of
the last logits; the same for any number of threads, chunk or instruction set. Lists are separated by commas.

Examples:
  lapidary bench smollm2-135m-instruct
  lapidary bench model.gguf -p 512,2048 -n 64 -d 0,4096 -b 1,8 -t 1,2 -r 5 --arithmetic a8
  lapidary bench model.gguf -p 0 -n 128 --output csv
  lapidary bench model.gguf --output json --probe-mb 0)";

struct BenchFlags {
  std::string model, output = "table";
  BenchPlan plan{.prompts = {512}, .generated = {64}, .depths = {0}, .batches = {1}};
  std::vector<int> threads;
  bool no_warm_up = false;
  int64_t probe_mb = 1024;
  EngineFlags engine;
};

EngineFlags flags_of_engine(const BenchFlags& flags, const Checkpoint& checkpoint, int threads) {
  const int64_t longest = flags.plan.longest(), made_for = checkpoint.spec.max_position;
  ensure(longest > 0, ErrorCode::usage, "-p 0 and -n 0 leave nothing to measure");
  ensure(longest <= made_for, ErrorCode::usage,
         "the tests need {} positions (-d and the longer of -p and -n): the model was made for {}", longest,
         made_for);
  EngineFlags engine = flags.engine;
  engine.threads = threads;
  engine.context = longest;
  return engine;
}

// Products with quantised weights are what the arithmetic is about; float weights are multiplied in float.
bool mostly_quantised(const Checkpoint& checkpoint) {
  int64_t quantised = 0, all = 0;
  for (const auto& [name, bytes] : checkpoint.dtype_bytes) {
    const auto dtype = dtype_from_name(name);
    all += bytes;
    if (dtype && is_quantised(*dtype)) quantised += bytes;
  }
  return 2 * quantised > all;
}

RowsCost cost_of(const BenchTest& test, const ModelSpec& spec, const KvTypes& kv) {
  const RowsCost cost = cost_of_rows(spec, test.depth, test.tokens, test.kind == BenchKind::decode, kv);
  const auto batch = static_cast<double>(test.batch);
  return {cost.matrix_ops * batch, cost.attention_ops * batch, cost.kv_bytes * batch};
}

// Runs all tests with so many threads, and adds what was found.
void bench_threads(BenchReport& report, const BenchFlags& flags, const Checkpoint& checkpoint, int threads) {
  const EngineFlags engine_flags = flags_of_engine(flags, checkpoint, threads);
  LoadTimes times;
  const std::unique_ptr<Engine> engine = load_engine(checkpoint, engine_flags, times);
  WorkLine line;
  std::vector<BenchRow> rows =
      run_bench(*engine, flags.plan,
                [&](std::string_view what, int64_t done, int64_t total) { line(what, done, total); });
  const KvTypes kv = engine_options(checkpoint, engine_flags).kv_dtype;
  for (BenchRow& row : rows) {
    report.costs.push_back(cost_of(row.test, checkpoint.spec, kv));
    report.step_weight_bytes.push_back(
        row.test.kind == BenchKind::decode ? weight_bytes_per_step(*engine, row.test.batch) : 0);
    report.rows.push_back(std::move(row));
  }
  report.numeric_mode = engine->numeric_mode();
  report.weight_bytes = engine->stats().weight_bytes;
  report.load_seconds = times.engine_seconds;
}

// After the tests, when their memory is free again.
void probe_machine(BenchReport& report, int64_t megabytes, const std::vector<int>& thread_counts) {
  constexpr int kRounds = 5;
  const kernels::Isa isa = kernels::kernels().isa;
  WorkLine line;
  for (size_t i = 0; i < thread_counts.size(); ++i) {
    line("probing the machine", static_cast<int64_t>(i), static_cast<int64_t>(thread_counts.size()));
    Team team(thread_counts[i]);
    MachineMeasure measure;
    measure.threads = thread_counts[i];
    measure.read_huge = kernels::read_bandwidth(team, isa, megabytes << 20, kRounds, kernels::PageSize::huge);
    measure.read_small =
        kernels::read_bandwidth(team, isa, megabytes << 20, kRounds, kernels::PageSize::small);
    measure.peak = kernels::arithmetic_peak(team, isa, kRounds);
    report.machine.push_back(measure);
  }
}

std::string formatted(const BenchReport& report, const std::string& output) {
  if (output == "json") return bench_json(report);
  if (output == "csv") return bench_csv(report);
  if (output == "md") return bench_markdown(report);
  return bench_table(report, Style::for_fd(STDOUT_FILENO));
}

int bench(const BenchFlags& flags) {
  Checkpoint checkpoint = open_checkpoint(resolve_model(flags.model, false));
  quantise_as_told(checkpoint, flags.engine);
  const Arithmetic arithmetic = arithmetic_from_name(flags.engine.arithmetic);
  BenchReport report;
  report.model = checkpoint.path.filename().string();
  report.plan = flags.plan;
  report.chunk = flags.engine.chunk;
  report.isa = kernels::kernels().name;
  report.cpu = cpu_name();
  report.integer_products = arithmetic != Arithmetic::f32 && mostly_quantised(checkpoint);
  const bool fewer_terms = numeric_mode_from_name(flags.engine.mode) == NumericMode::fast;
  report.integer_terms = arithmetic == Arithmetic::a16 && !fewer_terms ? 2 : 1;
  const std::vector<int> threads = flags.threads.empty() ? std::vector<int>{usable_cores()} : flags.threads;
  for (const int count : threads) bench_threads(report, flags, checkpoint, count);
  report.peak_rss_bytes = peak_rss_bytes();
  if (flags.probe_mb > 0) probe_machine(report, flags.probe_mb, threads);
  write_out(formatted(report, flags.output));
  return kExitOk;
}

template <typename Number>
void add_list(CLI::App& command, const std::string& names, std::vector<Number>& values, int64_t least,
              int64_t most, const std::string& text) {
  command.add_option(names, values, text)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(between(least, most));
}

}  // namespace

void add_bench_command(CLI::App& program, Action& action) {
  constexpr int64_t kMostTokens = int64_t{1} << 24;
  CLI::App* command = program.add_subcommand("bench", "Tokens per second, beside what this machine can do");
  auto flags = std::make_shared<BenchFlags>();
  BenchPlan& plan = flags->plan;
  command->footer(kBenchExamples);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF file or name in the cache")->required();
  add_list(*command, "-p,--prompt", plan.prompts, 0, kMostTokens, "Tokens to prefill; 0: none (default 512)");
  add_list(*command, "-n,--generate", plan.generated, 0, kMostTokens,
           "Tokens to decode; 0: none (default 64)");
  add_list(*command, "-d,--depth", plan.depths, 0, kMostTokens, "Positions in the cache before (default 0)");
  add_list(*command, "-b,--batch", plan.batches, 1, 1024, "Sequences that decode together (default 1)");
  add_list(*command, "-t,--threads", flags->threads, 1, 1024,
           "Threads (default: physical cores that this process may use)");
  command->add_option("-r,--repetitions", plan.repetitions, "Measured runs of each test (default 3)")
      ->check(between(1, 1000));
  command
      ->add_option("--chunk", flags->engine.chunk,
                   fmt::format("Rows of one prefill step (default {})", EngineFlags{}.chunk))
      ->check(between(1, 65536));
  command->add_option("--seed", plan.seed, "Of the random tokens (default 1)")->check(unsigned_number());
  command->add_flag("--no-warmup", flags->no_warm_up, "Measure from the first run on");
  command
      ->add_option("--probe-mb", flags->probe_mb,
                   "MiB for measuring the memory, far more than the caches hold; 0: no probes (default 1024)")
      ->check(between(0, int64_t{1} << 20));
  command->add_option("--output", flags->output, "table, md, csv or json (default table)")
      ->check(CLI::IsMember({"table", "md", "csv", "json"}));
  add_mode_flags(*command, flags->engine);
  command->callback([flags, &action] {
    flags->plan.warm_up = !flags->no_warm_up;
    flags->engine.sequences = 2 * flags->plan.most_sequences();
    action = [flags] { return bench(*flags); };
  });
}

}  // namespace lapidary
