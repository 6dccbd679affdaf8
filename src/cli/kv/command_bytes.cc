#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <memory>

#include "base/error.h"
#include "cli/bench.h"
#include "cli/flags.h"
#include "cli/kv/bytes_text.h"
#include "cli/kv/commands.h"
#include "cli/load.h"

namespace lapidary {
namespace {

constexpr const char* kBytesHelp =
    R"(Runs the model to each length and looks at its cache. Of each layer, and of all:
needed     the formula: min(length, window) positions of K and V, of layers that own theirs
stored     positions that lie in pages. Whole pages leave a window, so some positions behind it are still there; and one less than
           needed where the step took the window's oldest position, and its page with it
allocated  the pages as they lie in memory, room for positions to come and padding included; "of the pools" is what they take of
           memory that is handed out in pages of one size
touched    K and V that attention was given to read in the decode step that made the sequence so long; layers that borrow read
           their owner's again
Every number is held to its formula to the byte; exit code 1 and the layer when one is off. Tokens are random, or PROMPT and
random ones after it.

Examples:
  lapidary kv bytes smollm2-135m-instruct "The capital of France is"
  lapidary kv bytes gemma3-270m --length 256,512,544,576 --kv-dtype bf16
  lapidary kv bytes model.gguf --length 1024 --kv-dtype k=q8,v=f16 --layers
  lapidary kv bytes model.gguf --json)";

struct BytesFlags {
  std::string model;
  std::optional<std::string> prompt;
  std::vector<int64_t> lengths;
  uint64_t seed = 1;
  EngineFlags engine;
  bool json = false, csv = false, every_layer = false;
};

// PROMPT's ids, then random ones.
std::vector<int32_t> tokens_for(const BytesFlags& flags, std::vector<int32_t> prompt, int64_t length,
                                int64_t vocab_size) {
  for (auto i = static_cast<int64_t>(prompt.size()); i < length; ++i)
    prompt.push_back(bench_token(flags.seed, 0, i, vocab_size));
  return prompt;
}

struct Opened {
  Checkpoint checkpoint;
  std::vector<int32_t> prompt;
};

Opened open(const BytesFlags& flags) {
  if (!flags.prompt) return {open_model(flags.model, flags.engine), {}};
  TextModel model = open_text_model(flags.model, flags.engine);
  std::vector<int32_t> prompt = model.tokenizer.prompt_ids(*flags.prompt);
  ensure(!prompt.empty(), ErrorCode::usage, "PROMPT: expected some text, got none");
  return {std::move(model.checkpoint), std::move(prompt)};
}

std::vector<int64_t> lengths_for(const BytesFlags& flags, const Opened& opened) {
  const int64_t most = opened.checkpoint.spec.max_position;
  std::vector<int64_t> lengths = flags.lengths;
  if (lengths.empty() && !opened.prompt.empty())
    lengths.push_back(static_cast<int64_t>(opened.prompt.size()));
  if (lengths.empty()) lengths = kvlab::default_bytes_lengths(opened.checkpoint.spec, most);
  for (const int64_t length : lengths)
    ensure(length <= most, ErrorCode::usage, "length {}: the model was made for at most {} positions", length,
           most);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

int bytes(const BytesFlags& flags) {
  Opened opened = open(flags);
  const Checkpoint& checkpoint = opened.checkpoint;
  kvlab::BytesOptions options;
  options.lengths = lengths_for(flags, opened);
  options.types = kv_types_from_name(flags.engine.kv_dtype, "--kv-dtype");
  options.tokens =
      tokens_for(flags, std::move(opened.prompt), options.lengths.back(), checkpoint.spec.vocab_size);
  EngineFlags engine_flags = flags.engine;
  engine_flags.context = options.lengths.back();
  // The engine keeps no more behind a window than it has positions.
  options.keep_behind = std::min(engine_flags.keep_behind, engine_flags.context);
  LoadTimes times;
  const std::unique_ptr<Engine> engine = load_engine(checkpoint, engine_flags, times);
  kvlab::BytesReport report;
  {
    Progress progress("filling the cache");
    report = kvlab::measure_bytes(*engine, options,
                                  [&](int64_t done, int64_t total) { progress.show(done, total, false); });
  }
  if (flags.json) {
    write_out(boost::json::serialize(
                  kvlab::bytes_json(report, checkpoint.spec, make_repro(checkpoint, engine.get()))) +
              "\n");
  } else if (flags.csv) {
    write_out(kvlab::bytes_csv(report));
  } else {
    write_out(bytes_text_view(report, checkpoint.spec,
                              {checkpoint.path.string(), engine->numeric_mode(), flags.every_layer},
                              Style::for_fd(STDOUT_FILENO)));
  }
  for (const kvlab::BytesCheck& check : report.checks)
    if (!check.passed() && (flags.json || flags.csv))
      write_err(fmt::format("lapidary: check failed: {}: {}\n", check.name, check.failure));
  return report.ok() ? kExitOk : kExitFailure;
}

}  // namespace

void add_kv_bytes_command(CLI::App& kv, Action& action) {
  CLI::App* command = kv.add_subcommand(
      "bytes", "What a cache needs, allocates and reads, on the running engine, held to the formula");
  auto flags = std::make_shared<BytesFlags>();
  command->footer(kBytesHelp);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF or packed file, or name in the cache")
      ->required();
  command->add_option("PROMPT", flags->prompt, "Text to fill the cache with (default: random tokens)")
      ->check(not_empty());
  command
      ->add_option("--length,--lengths", flags->lengths,
                   "Positions, separated by commas (default: PROMPT's; without it below, at and past every "
                   "window)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(at_least(1));
  command
      ->add_option("--keep-behind", flags->engine.keep_behind,
                   "Positions kept behind each window, as run does (default 0)")
      ->check(between(0, int64_t{1} << 24));
  command->add_option("--seed", flags->seed, "Of the random tokens (default 1)")->check(unsigned_number());
  command->add_flag("--layers", flags->every_layer, "One line for every layer");
  CLI::Option* json = command->add_flag("--json", flags->json, "One JSON object");
  command->add_flag("--csv", flags->csv, "One line of CSV for each length and layer")->excludes(json);
  command->add_option("--threads", flags->engine.threads, "Threads (default: physical cores it may use)")
      ->check(between(1, 1024))
      ->group("Engine");
  command
      ->add_option("--chunk", flags->engine.chunk,
                   "Rows of one prefill step; changes no number (default 256)")
      ->check(between(1, 65536))
      ->group("Engine");
  add_mode_flags(*command, flags->engine);
  command->callback([flags, &action] { action = [flags] { return bytes(*flags); }; });
}

}  // namespace lapidary
