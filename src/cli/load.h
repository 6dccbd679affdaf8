// From MODEL to something that runs: flags of the engine, and the opening of checkpoint, tokenizer and engine
// with progress.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <optional>
#include <string>

#include "base/hash.h"
#include "engine/engine.h"
#include "formats/checkpoint.h"
#include "text/tokenizer.h"

namespace lapidary {

// Positions behind a window that `run` keeps, so that a conversation can go back.
inline constexpr int64_t kRunKeepBehind = 1024;

struct EngineFlags {
  int threads = 0;
  bool pin = false;
  int64_t chunk = 256;
  int64_t context = 0;
  std::string kv_dtype = "f16", arithmetic{arithmetic_name(kDefaultArithmetic)}, mode = "exact";
  std::string weights = "map";  // of a packed model: map or copy
  std::string quantise;         // mix that float weights are quantised to while they are read; empty: none
  int64_t keep_behind = 0;      // a flag of commands that go back in a text
  int64_t sequences = 1;        // no flag: how many the command keeps at once
  int64_t kv_bytes = 0;         // no flag: of the pages of all sequences; 0: room for all at their greatest
};
void add_engine_flags(CLI::App& command, EngineFlags& flags);
// For commands that hold one run to another by its bits: without --mode, which leaves it at exact.
void add_exact_engine_flags(CLI::App& command, EngineFlags& flags);
// What these are made of: threads, chunk and context; what changes the numbers; the same without --mode.
void add_step_flags(CLI::App& command, EngineFlags& flags);
void add_mode_flags(CLI::App& command, EngineFlags& flags);
void add_number_flags(CLI::App& command, EngineFlags& flags);

// Positions of one sequence: --context, or what the model was made for. Error(usage) when the flag asks for
// more than that.
int64_t context_of(const Checkpoint& checkpoint, const EngineFlags& flags);

struct LoadTimes {
  double open_seconds = 0;  // headers, configuration
  double tokenizer_seconds = 0;
  double engine_seconds = 0;  // packing of the weights
  double state_seconds = 0;   // reading saved states, the check of the model included
};

// MODEL as given on the command line, opened. Weights of a packed model can be read as plain numbers too.
Checkpoint open_model(const std::string& model, bool config_alone = false);
// As the flags want its weights: quantised, or as they are.
Checkpoint open_model(const std::string& model, const EngineFlags& flags);
void quantise_as_told(Checkpoint& checkpoint, const EngineFlags& flags);
void add_quantise_flag(CLI::App& command, std::string& mix);
// Error(usage) for a packed model where `command` needs the numbers that the packed ones came from.
void refuse_packed(const Checkpoint& checkpoint, std::string_view command);

struct TextModel {
  Checkpoint checkpoint;
  Tokenizer tokenizer;
  LoadTimes times;
};
TextModel open_text_model(const std::string& model, const EngineFlags& flags = {});

// model_hash(), which a packed model states of what it was packed from. Error(usage) without weights.
Hash128 hash_of_model(const Checkpoint& checkpoint);

EngineOptions engine_options(const Checkpoint& checkpoint, const EngineFlags& flags);

// Packs the weights. One sequence, unless told otherwise. Adds its time to `times`.
std::unique_ptr<Engine> load_engine(const Checkpoint& checkpoint, const EngineFlags& flags, LoadTimes& times);

// Wall clock in seconds since some fixed moment.
double now_seconds();

}  // namespace lapidary
