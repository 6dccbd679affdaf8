#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/quote.h"
#include "cli/run_flags.h"
#include "cli/terminal.h"
#include "text/utf8.h"

namespace lapidary {
namespace {

// The model's own stop tokens and the vocabulary's ends of turns. A stop text that is a special token's
// spelling never becomes visible text, so it is looked for among the ids.
void set_stops(Runner& runner, const RunFlags& flags) {
  const Tokenizer& tokenizer = runner.model.tokenizer;
  std::vector<TokenId>& ids = runner.generation.stop_ids;
  if (!flags.ignore_eos) {
    for (const int64_t id : runner.model.checkpoint.text.stop_ids) ids.push_back(static_cast<TokenId>(id));
    for (const TokenId id : tokenizer.turn_end_ids()) ids.push_back(id);
  }
  for (const std::string& stop : flags.stops) {
    ensure(!stop.empty(), ErrorCode::usage, "--stop: the text is empty");
    ensure(utf8_valid_prefix(stop) == stop.size(), ErrorCode::usage, "--stop: {} is not UTF-8",
           lapidary::quoted(stop));
    const std::optional<TokenId> id = tokenizer.find(stop);
    if (id && tokenizer.is_special(*id)) {
      ids.push_back(*id);
    } else {
      runner.generation.stop_texts.push_back(stop);
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

Runner open_runner(const RunFlags& flags) {
  Runner runner{open_text_model(flags.model), {}, {}, {}, {}, {}, {}};
  const Checkpoint& checkpoint = runner.model.checkpoint;
  runner.generation.max_tokens = flags.max_tokens;
  runner.generation.show_special = flags.show_special;
  runner.generation.sampling = sampling_params(flags.sampling, checkpoint);
  runner.sampling = sampling_text(runner.generation.sampling);
  set_stops(runner, flags);
  context_of(checkpoint, flags.engine);
  return runner;
}

void load(Runner& runner, const RunFlags& flags) {
  runner.engine = load_engine(runner.model.checkpoint, flags.engine, runner.model.times);
  runner.session = std::make_unique<Session>(*runner.engine, runner.model.tokenizer, runner.generation,
                                             flags.engine.chunk);
}

Answer answer_with(Runner& runner, const std::vector<TokenId>& prompt, bool streaming) {
  const bool terminal = is_terminal(STDOUT_FILENO);
  Progress progress("reading the prompt");
  auto on_text = [&](std::string_view text) {
    progress.clear();
    if (streaming) write_out(terminal ? terminal_safe(text) : std::string(text));
  };
  auto on_prefill = [&](int64_t done, int64_t total) { progress.show(done, total, false); };
  auto interrupted = [] { return InterruptScope::requested(); };
  const Watcher watcher{on_text, on_prefill, interrupted};
  Answer answer = runner.session->answer(prompt, watcher);
  progress.clear();
  if (streaming && !answer.text.ends_with('\n')) write_out("\n");
  return answer;
}

}  // namespace lapidary
