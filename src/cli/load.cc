#include "cli/load.h"

#include <CLI/CLI.hpp>
#include <chrono>

#include "base/error.h"
#include "cli/flags.h"
#include "cli/model_path.h"
#include "cli/terminal.h"
#include "cli/text_assets.h"

namespace lapidary {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
  const auto group = "Engine";
  command
      .add_option("--threads", flags.threads, "Threads (default: physical cores that this process may use)")
      ->check(between(1, 1024))
      ->group(group);
  command
      .add_option("--chunk", flags.chunk, "Rows of one prefill step; never changes the result (default 256)")
      ->check(between(1, 65536))
      ->group(group);
  command
      .add_option("--context", flags.context,
                  "Positions of a sequence (default: what the model was made for)")
      ->check(at_least(1))
      ->group(group);
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
}

int64_t context_of(const Checkpoint& checkpoint, const EngineFlags& flags) {
  const int64_t made_for = checkpoint.spec.max_position;
  ensure(flags.context <= made_for, ErrorCode::usage,
         "--context {}: the model was made for at most {} positions", flags.context, made_for);
  return flags.context == 0 ? made_for : flags.context;
}

TextModel open_text_model(const std::string& model) {
  const double start = now_seconds();
  Checkpoint checkpoint = open_checkpoint(resolve_model(model, false));
  const double opened = now_seconds();
  Tokenizer tokenizer = make_tokenizer(checkpoint.text);
  const LoadTimes times{opened - start, now_seconds() - opened, 0, 0};
  return {std::move(checkpoint), std::move(tokenizer), times};
}

EngineOptions engine_options(const Checkpoint& checkpoint, const EngineFlags& flags) {
  EngineOptions options;
  options.threads = flags.threads;
  options.chunk = flags.chunk;
  options.max_sequences = 1;
  options.context = context_of(checkpoint, flags);
  options.kv_dtype = kv_types_from_name(flags.kv_dtype, "--kv-dtype");
  options.keep_behind = flags.keep_behind;
  options.arithmetic = arithmetic_from_name(flags.arithmetic);
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
