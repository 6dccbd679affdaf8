#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <memory>
#include <optional>

#include "base/error.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "cli/kv/commands.h"
#include "cli/kv/disk_tier.h"
#include "cli/kv/offload_text.h"
#include "cli/load.h"
#include "cli/terminal.h"
#include "cli/text_assets.h"
#include "cli/verify_prompts.h"
#include "formats/mapped_file.h"
#include "kvlab/offload/offload.h"

namespace lapidary {
namespace {

constexpr const char* kOffloadExamples =
    R"(A prompt is run and its cache saved; then, for each tier, a cache of the same shape that holds only NaN is put in its place (and
the next step shown to fail or to give other logits), the saved one loaded and restored, and the run continued. Every page must
have the hashes that it had, the bytes moved must be what the formula says, logits and tokens must equal the run that was never
interrupted. Then the state is damaged in all ways that we know; each must be refused, by the name of what was damaged.

pack, unpack: the engine turns pages into bytes with checksums, and back, checking each; store, load: the tier. GB/s are of the
whole state's bytes, not of the compressed ones, 1 GB = 1e9 B. "cold": the system was asked to forget the file; how much of it
was in memory as the load began is counted, warm or cold; a virtual disk may have caches of its own below that nothing here can empty.
computed: prefill of that many random tokens; pays from: the GB/s that a load must reach to be as quick; in engine: a second
sequence on pages that never left. In brackets: computed over loaded, for the cache alone and to the first token behind the suffix.
--dir keeps the last state of the prompt (kv-offload.state, .zst): `run --raw --load-state` goes on from it.
Exit code 1 when a check fails or damage goes unseen.

Examples:
  lapidary kv offload smollm2-135m-instruct "The capital of France is"
  lapidary kv offload gemma3-270m --length 600 --kv-dtype k=q8,v=f16 --tier ram,zstd --no-curve
  lapidary kv offload smollm2-135m-instruct --curve 128,512,2048 --claim
  lapidary kv offload smollm2-135m-instruct --curve 128,512,2048 --csv > curve.csv
  lapidary kv offload smollm2-135m-instruct --state chat.state)";

constexpr const char* kStateName = "kv-offload.state";
constexpr int64_t kDefaultLength = 96;
constexpr size_t kMostAttachment = size_t{64} << 20;
const std::vector<int64_t> kDefaultCurve = {1, 8, 32, 128, 512, 2048};

struct OffloadFlags {
  std::string model, ids, dir, state;
  std::optional<std::string> prompt;
  std::optional<int64_t> length;
  std::vector<std::string> tiers = {"ram", "disk", "zstd"};
  std::vector<int64_t> curve;  // empty: kDefaultCurve as far as it fits
  int level = 3;
  int64_t suffix = 16, repeats = 3;
  uint64_t seed = 1;
  bool no_curve = false, no_mutations = false, claim = false, layers = false, json = false, csv = false;
  EngineFlags engine;
};

struct Interrupted {};

// Where Ctrl-C is looked for.
class InterruptibleLine {
 public:
  void operator()(std::string_view what, int64_t done, int64_t total) {
    if (InterruptScope::requested()) throw Interrupted{};
    line_(what, done, total);
  }
  void clear() { line_.clear(); }

 private:
  WorkLine line_;
};

std::vector<int32_t> prompt_of(const OffloadFlags& flags, const Checkpoint& checkpoint) {
  if (flags.prompt) return make_tokenizer(checkpoint.text).prompt_ids(*flags.prompt);
  if (!flags.ids.empty()) return ids_argument(flags.ids);
  int64_t length = flags.length.value_or(0);
  if (length == 0) {  // past the window, if that is not far
    const int64_t window = largest_window(checkpoint.spec);
    length = window < kLongestPrompt ? window + kDefaultLength : kDefaultLength;
    length = std::max<int64_t>(1, std::min(length, context_of(checkpoint, flags.engine) - flags.suffix));
  }
  return kvlab::random_tokens(flags.seed, length, checkpoint.spec.vocab_size);
}

std::vector<int64_t> curve_of(const OffloadFlags& flags, const Checkpoint& checkpoint) {
  if (flags.no_curve) return {};
  std::vector<int64_t> lengths = flags.curve.empty() ? kDefaultCurve : flags.curve;
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  const int64_t most = context_of(checkpoint, flags.engine) - flags.suffix;
  if (flags.curve.empty()) std::erase_if(lengths, [&](int64_t length) { return length > most; });
  ensure(flags.curve.empty() || lengths.back() <= most, ErrorCode::usage,
         "--curve {}: with {} tokens behind it, expected at most {} of the model's {} positions",
         lengths.back(), flags.suffix, most, context_of(checkpoint, flags.engine));
  return lengths;
}

class Tiers {
 public:
  // `kept`: the files stay. They lie in --dir, or in a folder that goes with this.
  Tiers(const OffloadFlags& flags, const kvlab::OffloadEngine& engine, const std::string& file, bool kept) {
    const bool files = flags.tiers != std::vector<std::string>{"ram"};
    if (flags.dir.empty() && files) folder_.emplace();
    const std::filesystem::path folder = folder_ ? folder_->path() : std::filesystem::path(flags.dir);
    const auto keep = kept && !folder_ ? DiskTier::Keep::yes : DiskTier::Keep::no;
    const size_t most = kvlab::most_state_bytes(engine, kvlab::kRawAttachment.size());
    for (const std::string& name : flags.tiers) {
      if (name == "ram") tiers_.push_back(std::make_unique<kvlab::RamTier>());
      if (name == "disk") tiers_.push_back(std::make_unique<DiskTier>(folder / file, keep));
      if (name == "zstd")
        tiers_.push_back(std::make_unique<kvlab::ZstdTier>(
            std::make_unique<DiskTier>(folder / (file + ".zst"), keep), flags.level, most));
      all_.push_back(tiers_.back().get());
    }
  }
  std::span<kvlab::Tier* const> all() const { return all_; }

 private:
  std::optional<TemporaryFolder> folder_;  // goes after the tiers
  std::vector<std::unique_ptr<kvlab::Tier>> tiers_;
  std::vector<kvlab::Tier*> all_;
};

struct Loaded {
  std::unique_ptr<Engine> engine;
  kvlab::OffloadEngine setting;
};

Loaded load_for(const Checkpoint& checkpoint, EngineFlags flags) {
  flags.sequences = 3;
  LoadTimes times;
  std::unique_ptr<Engine> engine = load_engine(checkpoint, flags, times);
  Engine& running = *engine;
  const KvTypes types = engine_options(checkpoint, flags).kv_dtype;
  return {std::move(engine), {running, hash_of_model(checkpoint), types, flags.keep_behind}};
}

kvlab::Repro repro_of(const Checkpoint& checkpoint, const Loaded& loaded) {
  kvlab::Repro repro = make_repro(checkpoint, loaded.engine.get());
  repro.model_hash = hash_text(loaded.setting.model);
  return repro;
}

OffloadView view_of(const OffloadFlags& flags, const Checkpoint& checkpoint, const Engine& engine) {
  return {checkpoint.path.filename().string(), engine.numeric_mode(), engine.threads(), flags.layers};
}

// The bytes of a saved state, out of a zstd frame if they lie in one.
kvlab::Bytes state_bytes(const MappedFile& file, const kvlab::OffloadEngine& engine) {
  constexpr unsigned char kZstdMagic[] = {0x28, 0xb5, 0x2f, 0xfd};
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() < sizeof kZstdMagic || std::memcmp(bytes.data(), kZstdMagic, sizeof kZstdMagic) != 0)
    return {bytes.begin(), bytes.end()};
  return kvlab::zstd_decompressed(bytes, kvlab::most_state_bytes(engine, kMostAttachment), file.name());
}

int check_state(const OffloadFlags& flags) {
  const MappedFile file{std::filesystem::path(flags.state)};
  const Checkpoint checkpoint = open_model(flags.model, flags.engine);
  Loaded loaded = load_for(checkpoint, flags.engine);
  kvlab::StateFileReport report;
  InterruptibleLine line;
  try {
    report = kvlab::verify_state(loaded.setting, state_bytes(file, loaded.setting), file.name(), line);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data && error.code() != ErrorCode::limit) throw;
    report.error = error.what();  // no sound zstd frame
  }
  line.clear();
  if (flags.json) {
    const boost::json::object out = kvlab::state_file_json(report, repro_of(checkpoint, loaded));
    write_out(boost::json::serialize(out) + "\n");
  } else {
    const OffloadView view = view_of(flags, checkpoint, *loaded.engine);
    write_out(state_file_text(report, view, Style::for_fd(STDOUT_FILENO)));
  }
  return report.passed() ? kExitOk : kExitFailure;
}

int offload(const OffloadFlags& flags) {
  ensure(!flags.claim || !flags.no_curve, ErrorCode::usage, "--claim needs the curve: leave out --no-curve");
  ensure(!flags.csv || !flags.no_curve, ErrorCode::usage, "--csv is the curve: leave out --no-curve");
  const Checkpoint checkpoint = open_model(flags.model, flags.engine);
  const kvlab::OffloadPlan plan{prompt_of(flags, checkpoint), flags.suffix, flags.repeats};
  const kvlab::CurvePlan curve{curve_of(flags, checkpoint), flags.suffix, flags.repeats, flags.seed};
  ensure(!flags.claim || !curve.lengths.empty(), ErrorCode::usage,
         "--claim needs a curve: no length of it fits into {} positions with {} tokens behind it",
         context_of(checkpoint, flags.engine), flags.suffix);
  Loaded loaded = load_for(checkpoint, flags.engine);
  const InterruptScope interrupts(true);
  InterruptibleLine line;
  kvlab::OffloadReport report =
      kvlab::prove_offload(loaded.setting, plan, Tiers(flags, loaded.setting, kStateName, true).all(), line);
  if (!flags.no_mutations) report.mutations = kvlab::run_mutations(loaded.setting, plan, flags.level, line);
  if (!curve.lengths.empty()) {
    const Tiers tiers(flags, loaded.setting, std::string(kStateName) + ".curve", false);
    report.curve = kvlab::measure_curve(loaded.setting, curve, tiers.all(), line);
    report.break_even = kvlab::break_even(report.curve);
  }
  if (flags.claim) report.claim = kvlab::claim_facts(report);
  line.clear();
  if (flags.json) {
    write_out(boost::json::serialize(kvlab::offload_json(report, repro_of(checkpoint, loaded))) + "\n");
  } else if (flags.csv) {
    write_out(kvlab::offload_csv(report));
  } else {
    write_out(offload_text(report, view_of(flags, checkpoint, *loaded.engine), Style::for_fd(STDOUT_FILENO)));
  }
  return report.passed() ? kExitOk : kExitFailure;
}

}  // namespace

void add_kv_offload_command(CLI::App& kv, Action& action) {
  constexpr int64_t kMostTokens = int64_t{1} << 24;
  CLI::App* command = kv.add_subcommand(
      "offload", "A cache saved, poisoned, restored and continued: is it the same, and when does it pay?");
  auto flags = std::make_shared<OffloadFlags>();
  command->footer(kOffloadExamples);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF or packed file, or name in the cache")
      ->required();
  CLI::Option* prompt = command->add_option("PROMPT", flags->prompt, "Text whose cache is saved");
  CLI::Option* ids = command->add_option("--ids", flags->ids, "Token ids instead: 1,2,3 or a .json file")
                         ->check(not_empty());
  CLI::Option* length =
      command
          ->add_option("--length", flags->length,
                       "So many random tokens instead (default: 96, or 96 past the largest window)")
          ->check(between(1, kMostTokens));
  CLI::Option* state = command->add_option(
      "--state", flags->state, "Check this saved state instead (run --save-state, or one of --dir)");
  for (CLI::Option* a : {prompt, ids, length, state})
    for (CLI::Option* b : {prompt, ids, length, state})
      if (a != b) a->excludes(b);
  command->add_option("--tier", flags->tiers, "Where to: ram, disk, zstd, separated by commas (default all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"ram", "disk", "zstd"}));
  command
      ->add_option("--dir", flags->dir,
                   "Folder for the files, which stay (default: a temporary one, which goes)")
      ->check(not_empty());
  command
      ->add_option("--level", flags->level,
                   fmt::format("Of zstd, 1 to {} (default {})", kvlab::zstd_most_level(), flags->level))
      ->check(between(1, kvlab::zstd_most_level()));
  command
      ->add_option("--curve", flags->curve,
                   "Lengths at which computing and loading are timed (default 1,8,32,128,512,2048, as far as "
                   "they fit)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(between(1, kMostTokens));
  command->add_flag("--no-curve", flags->no_curve, "Leave the curve out");
  command->add_flag("--no-mutations", flags->no_mutations, "Leave the damage out");
  command
      ->add_option("--suffix", flags->suffix,
                   "Tokens decoded behind the prompt, and fed behind each length of the curve (default 16)")
      ->check(between(1, kMostTokens));
  command->add_option("--repeats", flags->repeats, "Of everything timed; medians are shown (default 3)")
      ->check(between(1, 1000));
  command->add_option("--seed", flags->seed, "Of random tokens (default 1)")->check(unsigned_number());
  command
      ->add_option("--keep-behind", flags->engine.keep_behind,
                   "Positions kept behind each window, to go back to (default 0)")
      ->check(between(0, kMostTokens));
  command->add_flag("--claim", flags->claim,
                    "What the speed-up of such a cache leaves out, in this run's numbers");
  command->add_flag("--layers", flags->layers, "A line for every layer, with its hashes");
  CLI::Option* json = command->add_flag("--json", flags->json, "One JSON object");
  command->add_flag("--csv", flags->csv, "The curve as CSV")->excludes(json)->excludes(state);
  for (const char* other : {"--tier", "--dir", "--level", "--curve", "--no-curve", "--no-mutations",
                            "--suffix", "--repeats", "--seed", "--claim", "--layers"})
    state->excludes(command->get_option(other));
  add_exact_engine_flags(*command, flags->engine);
  command->callback([flags, &action] {
    action = [flags] {
      try {
        return flags->state.empty() ? offload(*flags) : check_state(*flags);
      } catch (const Interrupted&) {
        write_err("lapidary: interrupted; no file was left half-written\n");
        return kExitInterrupted;
      }
    };
  });
}

}  // namespace lapidary
