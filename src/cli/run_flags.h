// What `lapidary run` was asked to do, and the pieces that its one-answer and its interactive form share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "cli/conversation.h"
#include "cli/generate.h"
#include "cli/load.h"
#include "cli/sampling.h"
#include "cli/stats.h"

namespace lapidary {

struct RunFlags {
  std::string model;
  std::optional<std::string> prompt;
  bool raw = false;
  ChatFlags chat;
  int64_t max_tokens = 1024;
  std::vector<std::string> stops;
  std::optional<std::string> json_schema, regex, grammar;  // at most one: what binds the content
  bool ignore_eos = false, show_special = false, stats = false, json = false;
  std::string load_state, save_state;  // files; empty: none
  SamplingFlags sampling;
  EngineFlags engine;
};

// A model with everything needed to answer.
struct Runner {
  TextModel model;
  std::optional<Conversation> conversation;  // absent: raw completion
  GenerationOptions generation;
  std::string sampling;            // in words
  std::unique_ptr<Engine> engine;  // null until load()
  std::unique_ptr<Session> session;
  std::optional<Hash128> model_hash;  // known once a state was saved or loaded
};

// Opens the model without its weights; every mistake in the flags shows up here.
Runner open_runner(const RunFlags& flags);
void load(Runner& runner, const RunFlags& flags);

// Streams to stdout when `streaming`; shows the progress of a long prefill.
Answer answer_with(Runner& runner, const std::vector<TokenId>& prompt, bool streaming);

// A conversation at the terminal, until Ctrl-D.
int run_repl(Runner& runner, const RunFlags& flags);

}  // namespace lapidary
