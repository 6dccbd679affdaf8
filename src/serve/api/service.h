// What the endpoints share: the model as text sees it, the bounds of a request, the scheduler.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "serve/record.h"
#include "serve/scheduler/scheduler.h"
#include "spec/model_spec.h"
#include "text/chat.h"
#include "text/grammar.h"
#include "text/tokenizer.h"
#include "text/turn.h"

namespace lapidary::serve {

struct ServedModel {
  std::string name;     // what clients call it; requests for another one are refused
  int64_t created = 0;  // Unix seconds
  const ModelSpec* spec = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat = nullptr;  // absent: the model has no template, and chat is refused
  std::string bos, eos;                // spellings, for the template
  std::vector<TokenId> stop_ids;       // of the model's configuration and the vocabulary's turn ends
  TurnSyntax syntax;
  std::optional<GrammarEnv> grammars;
  SamplingParams sampling;  // the model's own defaults
  int64_t context = 0;
  int64_t words = 0;  // tokens that can be drawn: the lesser of the vocabularies of tokenizer and model
  std::string numeric_mode;
  std::string hash;  // of its weights and configuration, as text: part of system_fingerprint
};

struct ApiLimits {
  int64_t default_max_tokens = 1024;  // where a request names no limit; less where the context is nearly full
  int64_t max_tokens = 0;             // most that a request may ask for; 0: the context
  int64_t max_texts = 16;             // n, best_of, prompts of a batch: texts of one request
  int64_t max_stops = 16;
  size_t max_stop_bytes = 1024;  // of each
  size_t max_schema_bytes = 256 << 10;
  int64_t max_tools = 128;
  int64_t max_messages = 4096;
  int64_t max_logprobs = 20;
  int64_t max_logit_bias = 1024;
  int64_t max_json_depth = 64;
  int64_t max_inputs = 256;      // texts of one embeddings request
  double request_seconds = 600;  // a request that takes longer ends; 0: no limit
  bool loop_guard = false;       // end a chat's text that repeats itself (off for raw completions always)
  bool reserved_guard = false;   // never draw reserved tokens (<unused7>), and say when the model wants to
};

struct Service {
  ServedModel model;
  ApiLimits limits;
  Scheduler* scheduler = nullptr;
  std::vector<Observer*> observers;
  std::function<std::string()> metrics;  // the text of /metrics
  std::function<bool()> ready;           // not while it loads or drains
  std::string version;
};

}  // namespace lapidary::serve
