#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>

#include "base/error.h"
#include "cli/flags.h"
#include "cli/kv/commands.h"
#include "cli/kv/prompt.h"
#include "cli/kv/trace_text.h"
#include "cli/load.h"
#include "kvlab/trace/trace.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

constexpr const char* kTraceFooter =
    R"(A greedy generation by hand: the prompt in one forward call (or one for each --chunk tokens), then one call for each token.
Shapes are what the probe saw go through, [batch, tokens, width]; the cache is [batch, heads, positions, head_dim], its positions
counted in the pages. KV 5 -> 6 (+23,040 B): positions before and after the call, and the bytes that it stored. KV and weights
read: what the kernels were given to read. keys: what the last query attends to, itself included. gap: the logit picked less the
next one. Times are of a second run that nobody watched; its logits must have the same bits. The prompt is fed as it stands, with
a BOS where the model wants one. Exit status 1 when a check fails.

Examples:
  lapidary kv trace smollm2-135m-instruct "The capital of France is" -n 10
  lapidary kv trace smollm2-135m-instruct "Why is the sky blue?" --chat -n 40
  lapidary kv trace gemma3-270m "Once upon a time" -n 3 --layers all --every-call
  lapidary kv trace gemma-tiny --ids 2,10,11,12 -n 20 --ignore-eos --chunk 2 --json)";

struct TraceFlags {
  std::string model, layers;
  KvPromptFlags prompt;
  int64_t decode_calls = 10;
  bool every_call = false, ignore_eos = false, json = false;
  EngineFlags engine;
};

int trace(const TraceFlags& flags) {
  const KvModel model = open_kv_model(flags.model, flags.engine);
  kvlab::TraceOptions options;
  options.prompt = prompt_tokens(model, flags.prompt);
  options.decode_calls = flags.decode_calls;
  options.chunk = flags.engine.chunk;
  options.words = words_of(model);
  if (!flags.ignore_eos) options.stop_ids = stop_ids_of(model);
  TraceView view;
  if (!flags.layers.empty()) view.layers = parse_layers(flags.layers, model.checkpoint.spec.n_layers());
  const int64_t context = context_of(model.checkpoint, flags.engine);
  ensure(static_cast<int64_t>(options.prompt.size()) <= context, ErrorCode::limit,
         "the prompt has {} tokens, the context holds {}; shorten it or raise --context",
         options.prompt.size(), context);

  LoadTimes times;
  const std::unique_ptr<Engine> engine = load_engine(model.checkpoint, flags.engine, times);
  Progress progress("tracing");
  const kvlab::Trace result = kvlab::run_trace(
      *engine, kv_types_from_name(flags.engine.kv_dtype, "--kv-dtype"), options,
      [&](int32_t id) { return piece_text(model, id); },
      [&](int64_t done, int64_t total) { progress.show(done, total, false); });
  progress.clear();

  std::vector<int32_t> ids = options.prompt;
  for (const kvlab::Token& token : result.picked()) ids.push_back(token.id);
  view.text = text_of(model, ids);
  view.mode = flags.prompt.mode();
  view.model = utf8_lossy(model.checkpoint.path.filename().string());
  view.every_call = flags.every_call;
  if (flags.json) {
    const kvlab::Repro repro = make_repro(model.checkpoint, engine.get());
    write_out(boost::json::serialize(kvlab::trace_json(result, repro, view.mode, view.text)) + "\n");
  } else {
    write_out(trace_text(result, view, Style::for_fd(STDOUT_FILENO)));
  }
  return result.passed() ? kExitOk : kExitFailure;
}

}  // namespace

void add_kv_trace_command(CLI::App& kv, Action& action) {
  CLI::App* command = kv.add_subcommand("trace", "What each forward call does to the cache, layer by layer");
  auto flags = std::make_shared<TraceFlags>();
  command->footer(kTraceFooter);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF or packed file, or name in the cache")
      ->required();
  add_kv_prompt_flags(*command, flags->prompt);
  command
      ->add_option("-n,--decode-calls", flags->decode_calls,
                   "Decode calls after the prefill; they pick one token more than that (default 10). "
                   "Fewer where a stop token or the end of the context comes first, which is said")
      ->check(at_least(0));
  command
      ->add_option(
          "--layers", flags->layers,
          "A line for each of these layers, all or as in 0,3,5-9 (default: one for each kind of layer)")
      ->check(not_empty());
  command->add_flag("--every-call", flags->every_call,
                    "Shapes of every call, not of the first of each kind alone");
  command->add_flag("--ignore-eos", flags->ignore_eos, "Go on past the model's stop tokens");
  command->add_flag("--json", flags->json, "One JSON object with everything, every call and layer");
  add_engine_flags(*command, flags->engine);
  command->callback([flags, &action] { action = [flags] { return trace(*flags); }; });
}

}  // namespace lapidary
