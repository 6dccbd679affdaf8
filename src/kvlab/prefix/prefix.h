// `kv prefix`: prompts one after the other through an engine that keeps a few sequences and reuses of each
// prompt the longest prefix that one of them holds (fork and trim); why it was not more, and whether the
// logits are those of a fresh run.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/hash.h"
#include "engine/engine.h"
#include "kvlab/check.h"
#include "kvlab/report_frame.h"
#include "kvlab/token.h"

namespace lapidary::kvlab {

inline constexpr int64_t kStateOrigin = -1;  // the sequence of a saved state, in place of a prompt's index

struct PrefixState {  // a saved state, which is the first sequence when it goes with the engine
  std::string name;
  std::span<const std::byte> bytes;
  Hash128 model;  // model_hash() of what the engine runs
};

struct PrefixOptions {
  int64_t slots = 4;        // sequences kept; the least recently used one goes first
  int64_t keep_behind = 0;  // as the engine was made; for the record
  bool check = true;        // every prompt once more from nothing
  int64_t words = 0;        // logits that have a token; 0: all
};
// The engine needs this many sequences: the kept ones, the prompt's own, and the fresh one beside it.
inline int64_t prefix_sequences(const PrefixOptions& options) {
  return options.slots + 2;
}

// Why no more of a prompt was reused. The first two are hits.
enum class PrefixReason {
  whole,            // all but the last token, which is always fed, was reused
  extended,         // all of a kept sequence was reused; the rest of the prompt is new
  cold,             // no sequence so far began with the same token
  evicted,          // a sequence that held more had to go
  differs,          // the kept sequence goes on with another token, and no sequence so far held more
  window_lost,      // a kept sequence has more in common, but a window is gone there
  header_mismatch,  // the saved state has more in common, but is of another model or mode
};
inline constexpr PrefixReason kPrefixReasons[] = {
    PrefixReason::whole,   PrefixReason::extended,    PrefixReason::cold,           PrefixReason::evicted,
    PrefixReason::differs, PrefixReason::window_lost, PrefixReason::header_mismatch};
std::string_view prefix_reason_name(PrefixReason reason);
bool is_hit(PrefixReason reason);

// Prompts are counted by their index; ages and idle times are in prompts.
struct PrefixEviction {
  int64_t origin = 0;  // the prompt that computed the sequence, or kStateOrigin
  int64_t tokens = 0, evicted_by = 0;
  int64_t age = 0, idle = 0;  // since it was computed, since it was used last
  int64_t reuses = 0;
};

struct PrefixDifference {
  int64_t at = 0;
  Token kept, prompt;
};

struct PrefixWindow {
  int64_t origin = 0, layer = 0, window = 0;
  int64_t wanted = 0, earliest = 0;  // tokens in common; the least length that can be gone on from
};

struct PrefixPrompt {
  int64_t index = 0, tokens = 0, hit_tokens = 0;
  int64_t reusable_tokens = 0;  // the most that any sequence so far had, kept, evicted or refused
  PrefixReason reason = PrefixReason::cold;
  std::optional<int64_t> source;  // whose sequence was reused
  std::optional<PrefixDifference> differs;
  std::optional<PrefixEviction> eviction;
  std::optional<PrefixWindow> window;
  int64_t pages_shared = 0, pages_copied = 0;  // taken over as they lie; written to and so copied first
  int64_t bytes_not_recomputed = 0;            // K and V of the hit tokens
  double seconds = 0, fresh_seconds = 0;
  Token first_token;  // what a greedy run would pick
  Hash128 logits;
  std::optional<bool> logits_equal;               // to a fresh run's, bit for bit; nothing when not checked
  std::optional<int64_t> bytes_saved_by_counter;  // K and V that the fresh run wrote more
  std::vector<int64_t> evicted;                   // origins of the sequences that made room
  int64_t computed_tokens() const { return tokens - hit_tokens; }
  int64_t lost_tokens() const { return reusable_tokens - hit_tokens; }
};

struct PrefixStateReport {
  std::string name;
  int64_t tokens = 0;
  bool loaded = false;
  std::string field, refusal;  // when it was not: the field that does not go, and the whole message
};

struct PrefixTotals {
  int64_t tokens = 0, hit_tokens = 0, most_hit_tokens = 0, reusable_tokens = 0;
  int64_t lost_evicted = 0, lost_window = 0, lost_mismatch = 0;  // tokens
  int64_t hits = 0, misses = 0;                                  // prompts
  std::map<PrefixReason, int64_t> by_reason;
  int64_t pages_shared = 0, pages_copied = 0, bytes_not_recomputed = 0;
  double seconds = 0, fresh_seconds = 0;
  double hit_rate() const {  // of all prompt tokens
    return tokens == 0 ? 0 : static_cast<double>(hit_tokens) / static_cast<double>(tokens);
  }
};

struct PrefixReport {
  PrefixOptions options;
  KvTypes kv_dtype;
  int64_t bytes_per_position = 0;
  std::optional<PrefixStateReport> state;
  std::vector<PrefixPrompt> prompts;
  std::vector<PrefixEviction> evictions;
  std::vector<Check> checks;  // empty when not checked
  PrefixTotals totals() const;
  bool passed() const;
};

// Counts in ranges that double: 0, 1, 2, 3-4, 5-8 ... up to the greatest value.
struct HistogramBar {
  int64_t from = 0, to = 0, count = 0;
};
std::vector<HistogramBar> doubling_histogram(const std::vector<int64_t>& values);

// REQUIRES: no sequence of the engine is open. Error(usage) on no prompts or an empty one, Error(limit) on an
// engine of fewer than prefix_sequences() and on a prompt longer than the context (named); Error(data) on a
// damaged state. All sequences are closed at the end.
PrefixReport run_prefix(Engine& engine, const KvTypes& kv, const std::vector<std::vector<int32_t>>& prompts,
                        const std::optional<PrefixState>& state, const PrefixOptions& options,
                        const PieceOf& piece_of, FunctionRef<void(int64_t done, int64_t total)> on_progress);

// Counts what agreed with the fresh runs into `checks`. run_prefix() has done it.
void check_prefix(PrefixReport& report);

boost::json::object prefix_json(const PrefixReport& report, const Repro& repro);
// The reason in a sentence: "differs at token 7: " a" was kept, " b" is asked for".
std::string prefix_why(const PrefixReport& report, const PrefixPrompt& prompt);

}  // namespace lapidary::kvlab
