#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "base/quote.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "cli/model_path.h"
#include "cli/numbers.h"
#include "cli/score_executors.h"
#include "cli/stats.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/text_assets.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

constexpr const char* kScoreExamples =
    R"(Log-probabilities are natural, each token given the tokens before it; the first has none. A text longer than a window is read
in windows that overlap: every token is scored once, with at least window - stride tokens before it (but for the first window).
Where the text begins with a BOS, every window does.

Examples:
  lapidary score smollm2-135m-instruct book.txt
  lapidary score smollm2-135m-instruct book.txt --window 2048 --stride 1024 --json
  lapidary score smollm2-135m-instruct --ids 504,3575,282,4649,314,7042 --tokens
  lapidary score gemma-tiny --ids prompt.json --dump out.safetensors
  lapidary score gemma-tiny --ids prompt.json --executor reference --dtype f64)";

constexpr int64_t kMaxDumpBytes = int64_t{4} << 30;

struct ScoreFlags {
  std::string model;
  std::optional<std::string> file, ids;
  int64_t window = 0, stride = 0;
  std::string dump;
  bool tokens = false, json = false;
  std::string executor = "engine", dtype;
  EngineFlags engine;
};

struct ScoreInput {
  std::vector<int32_t> ids;
  int64_t text_bytes = 0;  // 0 when ids were given
  bool begins_with_bos = false;
};

ScoreInput read_input(const ScoreFlags& flags, const Checkpoint& checkpoint,
                      const std::optional<Tokenizer>& tokenizer) {
  ScoreInput input;
  if (flags.ids) {
    input.ids = ids_argument(*flags.ids);
  } else {
    const std::string text = read_text(flags.file.value_or("-"));
    input.text_bytes = static_cast<int64_t>(text.size());
    input.ids = tokenizer->prompt_ids(text);
  }
  ensure(!input.ids.empty(), ErrorCode::usage, "there is nothing to score: the text is empty");
  ensure(input.ids.size() >= 2, ErrorCode::usage,
         "there is nothing to score: a single token has none before it");
  for (size_t i = 0; i < input.ids.size(); ++i) {
    ensure(input.ids[i] < checkpoint.spec.vocab_size, ErrorCode::usage,
           "token {} is {}, outside the vocabulary of {}", i, input.ids[i], checkpoint.spec.vocab_size);
  }
  const std::optional<int64_t> bos = checkpoint.text.bos_id;
  input.begins_with_bos = bos && input.ids.front() == *bos;
  return input;
}

std::vector<ScoreWindow> windows_of(const ScoreFlags& flags, const Checkpoint& checkpoint,
                                    const ScoreInput& input) {
  const int64_t context = context_of(checkpoint, flags.engine), reserved = input.begins_with_bos ? 1 : 0;
  const auto tokens = static_cast<int64_t>(input.ids.size());
  ensure(flags.window <= context, ErrorCode::usage, "--window {}: the context holds {} positions",
         flags.window, context);
  const int64_t window = flags.window == 0 ? context : flags.window;
  ensure(window >= reserved + 2, ErrorCode::usage, "--window {}: at least {} are needed", window,
         reserved + 2);
  const int64_t stride = flags.stride == 0 ? std::max<int64_t>(1, window / 2) : flags.stride;
  return plan_windows(tokens, window, stride, reserved);
}

int64_t longest(const std::vector<ScoreWindow>& windows, bool repeat_bos) {
  int64_t most = 0;
  for (const ScoreWindow& window : windows) {
    most = std::max(most, window.end - window.begin + (repeat_bos && window.begin > 0 ? 1 : 0));
  }
  return most;
}

struct Summary {
  double total = 0, mean = 0, perplexity = 0;
  explicit Summary(const std::vector<double>& logprobs)
      : total(std::accumulate(logprobs.begin(), logprobs.end(), 0.0)),
        mean(total / static_cast<double>(logprobs.size())),
        perplexity(std::exp(-mean)) {}
};

boost::json::object score_json(const std::string& path, const ScoreInput& input, const ScoreResult& result,
                               const ScoreExecutor& executor) {
  const Summary summary(result.logprobs);
  boost::json::object out{{"model", utf8_lossy(path)},        {"tokens", input.ids.size()},
                          {"scored", result.logprobs.size()}, {"windows", result.windows},
                          {"logprob_sum", summary.total},     {"logprob_mean", summary.mean},
                          {"perplexity", summary.perplexity}};
  if (input.text_bytes > 0) {
    out["bits_per_byte"] = -summary.total / std::log(2.0) / static_cast<double>(input.text_bytes);
  }
  out["seconds"] = result.seconds;
  out["threads"] = executor.threads();
  out["numeric_mode"] = executor.numeric_mode();
  out["input_ids"] = boost::json::value_from(input.ids);
  out["logprobs"] = boost::json::value_from(result.logprobs);
  return out;
}

std::string tokens_text(const ScoreInput& input, const ScoreResult& result,
                        const std::optional<Tokenizer>& tokenizer) {
  TextTable table(
      {{"", Align::right}, {"id", Align::right}, {"logprob", Align::right}, {"text", Align::left}});
  for (size_t i = 0; i < input.ids.size(); ++i) {
    const std::string logprob = i == 0 ? "-" : fmt::format("{:.4f}", result.logprobs[i - 1]);
    const std::string text = tokenizer ? lapidary::quoted(tokenizer->token_bytes(input.ids[i])) : "";
    table.add({std::to_string(i), std::to_string(input.ids[i]), logprob, text});
  }
  return table.text(Style::for_fd(STDOUT_FILENO), "");
}

std::string summary_text(const ScoreInput& input, const ScoreResult& result) {
  const Summary summary(result.logprobs);
  TextTable table({{"", Align::left}, {"", Align::left}});
  table.add(
      {"tokens", fmt::format("{}, {} scored, {} window{}", grouped(static_cast<int64_t>(input.ids.size())),
                             grouped(static_cast<int64_t>(result.logprobs.size())), result.windows,
                             result.windows == 1 ? "" : "s")});
  table.add({"log-probability", fmt::format("{:.4f} in all, {:.6f} per token", summary.total, summary.mean)});
  table.add({"perplexity", fmt::format("{:.4f}", summary.perplexity)});
  if (input.text_bytes > 0) {
    table.add({"bits per byte", fmt::format("{:.4f}", -summary.total / std::log(2.0) /
                                                          static_cast<double>(input.text_bytes))});
  }
  table.add(
      {"time", fmt::format("{}, {} tok/s", seconds_text(result.seconds),
                           rate_text(per_second(static_cast<int64_t>(input.ids.size()), result.seconds)))});
  return table.text(Style::for_fd(STDOUT_FILENO), "");
}

void check_dump(const ScoreFlags& flags, const ModelSpec& spec, const ScoreInput& input, size_t windows) {
  if (flags.dump.empty()) return;
  ensure(windows == 1, ErrorCode::usage, "--dump needs the whole text in one window; this takes {}", windows);
  const int64_t bytes = ScoreDump::bytes_needed(spec, static_cast<int64_t>(input.ids.size()));
  ensure(bytes <= kMaxDumpBytes, ErrorCode::limit,
         "--dump would write {}; the limit is {}: score fewer tokens", bytes_text(bytes),
         bytes_text(kMaxDumpBytes));
}

// Models without a tokenizer can still be scored by ids.
std::optional<Tokenizer> tokenizer_of(const ScoreFlags& flags, const Checkpoint& checkpoint) {
  if (flags.ids && (!has_tokenizer(checkpoint.text) || !flags.tokens)) return {};
  return make_tokenizer(checkpoint.text);
}

// No more pages than the windows need.
std::unique_ptr<ScoreExecutor> make_executor(const ScoreFlags& flags, const Checkpoint& checkpoint,
                                             int64_t context) {
  if (flags.executor == "reference") {
    return reference_executor(checkpoint, reference_type(flags.dtype.empty() ? "f64" : flags.dtype),
                              flags.engine.threads);
  }
  ensure(flags.dtype.empty(), ErrorCode::usage,
         "--dtype is the reference's: give --executor reference with it");
  EngineFlags engine_flags = flags.engine;
  engine_flags.context = context;
  return engine_executor(checkpoint, engine_flags);
}

int score(const ScoreFlags& flags) {
  ensure(!flags.file || !flags.ids, ErrorCode::usage, "FILE and --ids cannot be given together");
  const Checkpoint checkpoint = open_model(flags.model);
  const std::optional<Tokenizer> tokenizer = tokenizer_of(flags, checkpoint);
  const ScoreInput input = read_input(flags, checkpoint, tokenizer);
  const std::vector<ScoreWindow> windows = windows_of(flags, checkpoint, input);
  check_dump(flags, checkpoint.spec, input, windows.size());
  const std::unique_ptr<ScoreExecutor> executor =
      make_executor(flags, checkpoint, longest(windows, input.begins_with_bos));
  std::optional<ScoreDump> dump;
  if (!flags.dump.empty()) dump.emplace(checkpoint.spec, static_cast<int64_t>(input.ids.size()));
  Progress progress("scoring");
  const ScoreResult result =
      score_ids(*executor, input.ids, windows, input.begins_with_bos, dump ? &*dump : nullptr,
                [&](int64_t done, int64_t total) { progress.show(done, total, false); });
  progress.clear();
  if (dump) dump->write(flags.dump, input.ids, result.logprobs);
  if (flags.json) {
    write_out(boost::json::serialize(score_json(checkpoint.path.string(), input, result, *executor)) + "\n");
  } else {
    if (flags.tokens) write_out(tokens_text(input, result, tokenizer) + "\n");
    write_out(summary_text(input, result));
  }
  return kExitOk;
}

}  // namespace

void add_score_command(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("score", "Log-probabilities and perplexity of a text");
  auto flags = std::make_shared<ScoreFlags>();
  command->footer(kScoreExamples);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF or packed file, or name in the cache")
      ->required();
  command->add_option("FILE", flags->file, "Text file; - or nothing reads standard input");
  command->add_option("--ids", flags->ids, "Token ids 1,2,3 or a .json file with them, in place of text");
  command->add_option("--window", flags->window, "Positions of one pass (default: the context)")
      ->check(at_least(2));
  command
      ->add_option("--stride", flags->stride, "Tokens from one window to the next (default: half a window)")
      ->check(at_least(1));
  command->add_option("--dump", flags->dump, "Write logits, hidden states and KV to this .safetensors file");
  command->add_option("--executor", flags->executor, "engine, or the float reference (default engine)")
      ->check(CLI::IsMember({"engine", "reference"}));
  command->add_option("--dtype", flags->dtype, "Arithmetic of the reference: f64, f32 or bf16 (default f64)")
      ->check(CLI::IsMember({"f64", "f32", "bf16"}));
  command->add_flag("--tokens", flags->tokens, "One line for every token");
  command->add_flag("--json", flags->json, "One JSON object, per-token values included");
  add_engine_flags(*command, flags->engine);
  command->callback([flags, command, &action] {
    // What only the engine has must not look as if it were obeyed.
    for (const char* flag : {"--chunk", "--kv-dtype", "--arithmetic", "--mode"}) {
      if (flags->executor == "reference" && command->count(flag) > 0) {
        throw CLI::ValidationError(flag, "belongs to the engine, not to --executor reference");
      }
    }
    action = [flags] { return score(*flags); };
  });
}

}  // namespace lapidary
