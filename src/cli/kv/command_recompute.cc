#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/quote.h"
#include "cli/flags.h"
#include "cli/kv/commands.h"
#include "cli/kv/prompt.h"
#include "cli/kv/recompute_text.h"
#include "cli/load.h"
#include "cli/score_executors.h"
#include "cli/terminal.h"
#include "kvlab/recompute/recompute.h"
#include "reference/reference.h"

namespace lapidary {
namespace {

constexpr const char* kRecomputeExamples =
    R"(The prompt is prefilled and N tokens are decoded greedily, one call each: the cached run, with N + 1 tokens picked and prompt + N
positions cached. Then the same positions are computed again by one prefill (all), by decode of single tokens (1) and by calls of
other sizes, with each number of threads, and every stored key and value is held against the cached run's, bit by bit.

same bits: 100.0 % only where every element is equal. ulps: how many numbers of the stored type lie between the two, many where both
are near zero (of a q8 cache: steps of 1/127 of the head's greatest number). first to differ: the first operation in the order of the
layers, and the first position at it. flips: generated tokens that the recomputation would pick otherwise, given the same tokens
before; a gap of 1 ulp between the two best logits is a coin toss. max error: distance to the reference, of the cached run and of
the others: neither is the truth.

--mode exact promises the same bits, and exits with 1 when one differs. --mode fast rounds otherwise in calls of 9 tokens and more, as
other programs do; with --arithmetic f32 it changes the order of sums alone. --executor reference runs libtorch in --dtype.

Examples:
  lapidary kv recompute smollm2-135m-instruct "The capital of France is" -n 10
  lapidary kv recompute smollm2-135m-instruct "The capital of France is" --mode fast --arithmetic f32
  lapidary kv recompute smollm2-135m-instruct "The capital of France is" --executor reference --dtype bf16
  lapidary kv recompute smollm2-135m-instruct "The capital of France is" --chunks 1 --batch 1,4,16
  lapidary kv recompute gemma3-270m --ids 2,818,5279 -n 32 --chunks 1,all --threads 1,2,4 --json)";

struct RecomputeFlags {
  std::string model;
  std::optional<std::string> prompt, ids;
  std::vector<std::string> chunks{"1", "7", "64", "all"};
  std::vector<int> threads{1, 2};
  std::vector<int64_t> batches{1};
  int64_t decode_calls = 10;
  std::string mode = "both", executor = "engine", dtype;
  bool no_reference = false, layers = false, json = false, csv = false;
  EngineFlags engine;
};

std::vector<int64_t> chunk_sizes(const std::vector<std::string>& names) {
  std::vector<int64_t> sizes;
  for (const std::string& name : names) {
    int64_t size = 0;
    const char* end = name.data() + name.size();
    if (name != "all") {
      const auto [stop, problem] = std::from_chars(name.data(), end, size);
      ensure(problem == std::errc{} && stop == end && size >= 1, ErrorCode::usage,
             "--chunks: expected numbers from 1 on, or all, got {}", lapidary::quoted(name));
    }
    sizes.push_back(size);
  }
  return sizes;
}

class RecomputeCommand {
 public:
  explicit RecomputeCommand(const RecomputeFlags& flags)
      : flags_(flags), model_(open_kv_model(flags.model, flags.engine)), checkpoint_(model_.checkpoint) {
    plan_ = {prompt_tokens(model_, {flags.prompt, flags.ids}), flags.decode_calls, chunk_sizes(flags.chunks),
             flags.threads, flags.batches};
    kvlab::check_plan(checkpoint_.spec, plan_);
    report_.prompt_tokens = static_cast<int64_t>(plan_.prompt.size());
    report_.decode_calls = plan_.decode_calls;
    for (int64_t i = 0; i < checkpoint_.spec.n_layers(); ++i)
      if (checkpoint_.spec.layers[static_cast<size_t>(i)].owns_kv(i)) report_.owner_layers.push_back(i);
  }

  int run() {
    prepare_truth();
    if (flags_.executor == "reference") {
      run_reference();
    } else {
      for (const char* mode : {"exact", "fast"})
        if (flags_.mode == mode || flags_.mode == "both") run_engine(mode);
    }
    repro_.model_hash = hash_text(hash_of_model(checkpoint_));
    write_out(flags_.json ? json() : flags_.csv ? recompute_csv(report_) : text());
    return report_.passed() ? kExitOk : kExitFailure;
  }

 private:
  // The thermometer, unless it is not wanted or not there.
  void prepare_truth() {
    ensure(checkpoint_.tensors != nullptr, ErrorCode::usage, "{} holds no weights",
           checkpoint_.path.string());
    if (flags_.executor == "reference")
      ensure(why_no_reference().empty(), ErrorCode::unsupported, "{}", why_no_reference());
    if (flags_.no_reference) return;
    report_.reference_missing = why_no_reference();
    if (!report_.reference_missing.empty()) return;
    const bool of_runs = flags_.executor == "reference" || flags_.dtype.empty();
    truth_type_ = of_runs ? ReferenceType::f64 : reference_type(flags_.dtype);
    report_.reference_type = reference_type_name(truth_type_);
  }

  std::unique_ptr<kvlab::Subject> open_reference_subject(ReferenceType type, int threads) {
    Progress progress(fmt::format("reference in {}", reference_type_name(type)));
    progress.show(0, 1, false);
    return kvlab::reference_subject(open_reference(
        checkpoint_.spec, *checkpoint_.tensors,
        {.type = type, .hold_weights = reference_weights_fit(checkpoint_.spec, type), .threads = threads}));
  }

  // Both modes often decode the same tokens: what is true of them is computed once.
  const kvlab::Record* truth(std::span<const int32_t> tokens, int64_t first_logits) {
    if (report_.reference_type.empty()) return nullptr;
    if (!truth_ || !std::equal(tokens.begin(), tokens.end(), truth_tokens_.begin(), truth_tokens_.end())) {
      truth_.reset();
      const auto subject = open_reference_subject(truth_type_, flags_.threads.back());
      truth_ = kvlab::record_run(*subject, checkpoint_.spec, tokens, {}, first_logits);
      truth_tokens_.assign(tokens.begin(), tokens.end());
    }
    return &*truth_;
  }

  void add_run(const kvlab::RunFacts& facts, kvlab::OpenSubject open) {
    WorkLine line;
    report_.runs.push_back(kvlab::recompute(
        checkpoint_.spec, plan_, facts, open,
        [&](std::span<const int32_t> tokens, int64_t first) {
          line.clear();
          return truth(tokens, first);
        },
        line));
  }

  void run_engine(const std::string& mode) {
    EngineFlags flags = flags_.engine;
    flags.mode = mode;
    flags.context = report_.positions();
    flags.sequences = *std::max_element(flags_.batches.begin(), flags_.batches.end());
    flags.chunk = std::min<int64_t>(report_.positions() * flags.sequences, 65536);  // a call is one step
    const auto open = [&](int threads) {
      flags.threads = threads;
      LoadTimes times;
      return load_engine(checkpoint_, flags, times);
    };
    std::unique_ptr<Engine> first = open(flags_.threads.front());
    const KvTypes kv = kv_types_from_name(flags.kv_dtype, "--kv-dtype");
    if (report_.runs.empty()) repro_ = make_repro(checkpoint_, first.get());
    const kvlab::RunFacts facts{mode,      "engine",   first->numeric_mode(), kv.keys,
                                kv.values, DType::f32, mode == "exact"};
    add_run(facts,
            [&](int threads) { return kvlab::engine_subject(first ? std::move(first) : open(threads)); });
  }

  void run_reference() {
    const ReferenceType type = reference_type(flags_.dtype.empty() ? "bf16" : flags_.dtype);
    const DType stored = *dtype_from_name(reference_type_name(type));
    const kvlab::RunFacts facts{
        "reference", "reference", fmt::format("reference (libtorch), {}", reference_type_name(type)),
        stored,      stored,      stored,
        false};
    repro_ = make_repro(checkpoint_, nullptr);
    repro_.numeric_mode = facts.numeric_mode;
    repro_.threads = flags_.threads.front();
    add_run(facts, [&](int threads) { return open_reference_subject(type, threads); });
  }

  std::string json() {
    const auto piece = [&](int32_t id) { return piece_text(model_, id); };
    return boost::json::serialize(kvlab::recompute_json(report_, repro_, piece)) + "\n";
  }

  std::string text() const {
    const auto piece = [&](int32_t id) {
      const auto& tokenizer = model_.tokenizer;
      return tokenizer && id < tokenizer->vocab_size() ? lapidary::quoted(tokenizer->token_bytes(id))
                                                       : std::to_string(id);
    };
    return recompute_text(report_, {checkpoint_.path.filename().string(), flags_.layers}, piece,
                          Style::for_fd(STDOUT_FILENO));
  }

  const RecomputeFlags& flags_;
  KvModel model_;
  const Checkpoint& checkpoint_;
  kvlab::RecomputePlan plan_;
  kvlab::RecomputeReport report_;
  kvlab::Repro repro_;
  ReferenceType truth_type_ = ReferenceType::f64;
  std::optional<kvlab::Record> truth_;
  std::vector<int32_t> truth_tokens_;
};

// What one executor alone has must not look as if the other obeyed it.
void check_flags(const CLI::App& command, const RecomputeFlags& flags) {
  if (flags.executor == "reference") {
    for (const char* flag : {"--mode", "--batch", "--kv-dtype", "--arithmetic", "--weights"}) {
      if (command.count(flag) > 0)
        throw CLI::ValidationError(flag, "belongs to the engine, not to --executor reference");
    }
    return;
  }
  if (flags.dtype == "bf16")
    throw CLI::ValidationError("--dtype", "bf16 is no truth to measure the engine by: f64 or f32");
  if (!flags.dtype.empty() && flags.no_reference)
    throw CLI::ValidationError("--dtype",
                               "says how the reference computes, and --no-reference that there is none");
}

}  // namespace

void add_kv_recompute_command(CLI::App& kv, Action& action) {
  CLI::App* command = kv.add_subcommand(
      "recompute", "Is a recomputed cache the same? By prefill, decode and any chunking, exact and fast");
  auto flags = std::make_shared<RecomputeFlags>();
  command->footer(kRecomputeExamples);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF or packed file, or name in the cache")
      ->required();
  command->add_option("PROMPT", flags->prompt, "Text, fed as it stands; - reads standard input");
  command->add_option("--ids", flags->ids, "Token ids 1,2,3 or a .json file with them, in place of text");
  command->add_option("-n,--decode", flags->decode_calls, "Decode calls after the prefill (default 10)")
      ->check(between(0, 1 << 20));
  command
      ->add_option(
          "--chunks", flags->chunks,
          "Tokens of a call, or all for one prefill (default 1,7,64,all); what comes to the same for "
          "so many positions is done once")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--threads", flags->threads, "Threads; the cached run has the first (default 1,2)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(between(1, 1024));
  command
      ->add_option("--batch", flags->batches,
                   "Sequences of a call, the others with other tokens; the cached run is alone (default 1)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(between(1, 256));
  command->add_option("--mode", flags->mode, "Of the engine: exact, fast or both (default both)")
      ->check(CLI::IsMember({"exact", "fast", "both"}));
  command->add_option("--executor", flags->executor, "engine, or the float reference (default engine)")
      ->check(CLI::IsMember({"engine", "reference"}));
  command
      ->add_option("--dtype", flags->dtype,
                   "Arithmetic of the reference: f64, f32 or bf16 where it is the executor (default bf16); "
                   "f64 or f32 where the engine is measured by it (default f64)")
      ->check(CLI::IsMember({"f64", "f32", "bf16"}));
  command->add_flag("--no-reference", flags->no_reference, "Without distances to the reference");
  command->add_flag("--layers", flags->layers, "A table of layers for every recomputation that differs");
  CLI::Option* as_json =
      command->add_flag("--json", flags->json, "One JSON object, maps of layer and position included");
  command
      ->add_flag("--csv", flags->csv,
                 "One line of CSV for each recomputation and layer; chunk 0 is one prefill")
      ->excludes(as_json);
  add_number_flags(*command, flags->engine);
  command->callback([flags, command, &action] {
    check_flags(*command, *flags);
    action = [flags] { return RecomputeCommand(*flags).run(); };
  });
}

}  // namespace lapidary
