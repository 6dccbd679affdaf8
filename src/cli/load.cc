#include "cli/load.h"

#include <CLI/CLI.hpp>
#include <chrono>

#include "base/error.h"
#include "base/quote.h"
#include "base/team.h"
#include "cli/flags.h"
#include "cli/model_path.h"
#include "cli/terminal.h"
#include "cli/text_assets.h"
#include "engine/plain_weights.h"
#include "formats/artifact.h"
#include "formats/quantised_tensors.h"
#include "spec/model_hash.h"

namespace lapidary {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
  add_step_flags(command, flags);
  add_mode_flags(command, flags);
}

void add_exact_engine_flags(CLI::App& command, EngineFlags& flags) {
  add_step_flags(command, flags);
  add_number_flags(command, flags);
}

void add_step_flags(CLI::App& command, EngineFlags& flags) {
  const auto group = "Engine";
  command
      .add_option("--threads", flags.threads, "Threads (default: physical cores that this process may use)")
      ->check(between(1, 1024))
      ->group(group);
  command.add_flag("--pin", flags.pin, "Keep each thread on a core of its own")->group(group);
  command
      .add_option("--chunk", flags.chunk,
                  "Rows of one prefill step; changes no result but of --mode fast (default 256)")
      ->check(between(1, 65536))
      ->group(group);
  command
      .add_option("--context", flags.context,
                  "Positions of a sequence (default: what the model was made for)")
      ->check(at_least(1))
      ->group(group);
}

void add_mode_flags(CLI::App& command, EngineFlags& flags) {
  add_number_flags(command, flags);
  command
      .add_option("--mode", flags.mode,
                  fmt::format("exact: the same bits in prefill and decode, for any chunk and batch; fast: "
                              "prefill of {} rows and more rounds otherwise (default exact)",
                              kFastRows))
      ->check(CLI::IsMember({"exact", "fast"}))
      ->group("Engine");
}

void add_number_flags(CLI::App& command, EngineFlags& flags) {
  const auto group = "Engine";
  command
      .add_option(
          "--kv-dtype", flags.kv_dtype,
          "Number format of the KV cache: f32, f16, bf16 or q8, or apart as in k=q8,v=f16 (default f16)")
      ->check(kv_types())
      ->group(group);
  command
      .add_option(
          "--arithmetic", flags.arithmetic,
          fmt::format(
              "Products with quantised weights: integers with activations of 15 bits (a16) or 8 bits (a8), "
              "or f32 (default {})",
              arithmetic_name(kDefaultArithmetic)))
      ->check(CLI::IsMember({"f32", "a16", "a8"}))
      ->group(group);
  command
      .add_option("--weights", flags.weights,
                  "Weights of a packed model: used in the mapped file, which starts at once (map), or copied "
                  "to huge pages, which are read faster (copy) (default map)")
      ->check(CLI::IsMember({"map", "copy"}))
      ->group(group);
  add_quantise_flag(command, flags.quantise);
}

void add_quantise_flag(CLI::App& command, std::string& mix) {
  command
      .add_option("--quantise", mix,
                  "Quantise the weights of a float model while they are read: Q8_0, Q4_0, Q4_K_S, Q4_K_M, "
                  "Q5_K_M or Q6_K")
      ->group("Engine");
}

int64_t context_of(const Checkpoint& checkpoint, const EngineFlags& flags) {
  const int64_t made_for = checkpoint.spec.max_position;
  ensure(flags.context <= made_for, ErrorCode::usage,
         "--context {}: the model was made for at most {} positions", flags.context, made_for);
  return flags.context == 0 ? made_for : flags.context;
}

Checkpoint open_model(const std::string& model, bool config_alone) {
  Checkpoint checkpoint = open_checkpoint(resolve_model(model, config_alone));
  if (checkpoint.artifact != nullptr) checkpoint.tensors = with_plain_weights(checkpoint.tensors);
  return checkpoint;
}

void quantise_as_told(Checkpoint& checkpoint, const EngineFlags& flags) {
  if (flags.quantise.empty()) return;
  ensure(checkpoint.artifact == nullptr, ErrorCode::usage,
         "{}: --quantise {}: a packed model's weights are fixed; pack the float model with --quantise",
         checkpoint.path.string(), flags.quantise);
  quantise_weights(checkpoint, flags.quantise, flags.threads != 0 ? flags.threads : usable_cores());
}

Checkpoint open_model(const std::string& model, const EngineFlags& flags) {
  Checkpoint checkpoint = open_model(model);
  quantise_as_told(checkpoint, flags);
  return checkpoint;
}

void refuse_packed(const Checkpoint& checkpoint, std::string_view command) {
  ensure(checkpoint.artifact == nullptr, ErrorCode::usage,
         "{}: a packed model cannot be the source of {}; take the model that it was packed from, {}",
         checkpoint.path.string(), command,
         checkpoint.artifact ? lapidary::quoted(checkpoint.artifact->facts.source) : std::string());
}

TextModel open_text_model(const std::string& model, const EngineFlags& flags) {
  const double start = now_seconds();
  Checkpoint checkpoint = open_model(model, flags);
  const double opened = now_seconds();
  Tokenizer tokenizer = make_tokenizer(checkpoint.text);
  const LoadTimes times{opened - start, now_seconds() - opened, 0, 0};
  return {std::move(checkpoint), std::move(tokenizer), times};
}

Hash128 hash_of_model(const Checkpoint& checkpoint) {
  if (checkpoint.artifact != nullptr) return checkpoint.artifact->facts.model_hash;
  ensure(checkpoint.tensors != nullptr, ErrorCode::usage, "{} holds no weights", checkpoint.path.string());
  return model_hash(checkpoint.spec, *checkpoint.tensors);
}

EngineOptions engine_options(const Checkpoint& checkpoint, const EngineFlags& flags) {
  EngineOptions options;
  options.threads = flags.threads;
  options.pin = flags.pin;
  options.chunk = flags.chunk;
  options.max_sequences = flags.sequences;
  options.context = context_of(checkpoint, flags);
  options.kv_dtype = kv_types_from_name(flags.kv_dtype, "--kv-dtype");
  options.keep_behind = flags.keep_behind;
  options.kv_bytes = flags.kv_bytes;
  options.arithmetic = arithmetic_from_name(flags.arithmetic);
  options.mode = numeric_mode_from_name(flags.mode);
  options.copy_packed = flags.weights == "copy";
  return options;
}

std::unique_ptr<Engine> load_engine(const Checkpoint& checkpoint, const EngineFlags& flags,
                                    LoadTimes& times) {
  ensure(checkpoint.tensors != nullptr, ErrorCode::usage, "{} holds no weights", checkpoint.path.string());
  const double start = now_seconds();
  Progress progress("loading");
  auto show = [&](int64_t done, int64_t total) { progress.show(done, total, true); };
  FunctionRef<void(int64_t, int64_t)> on_load(show);
  EngineOptions options = engine_options(checkpoint, flags);
  options.on_load = &on_load;
  auto engine = std::make_unique<Engine>(checkpoint.spec, *checkpoint.tensors, options);
  times.engine_seconds += now_seconds() - start;
  return engine;
}

}  // namespace lapidary
