// `kv trace`: a greedy generation by hand, one forward call after the other, and what each call did to the
// cache as the probe, the counters and the pages show it. Nothing here is computed from the model's
// description where it can be seen; the description is what the checks hold it against.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
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

struct TraceOptions {
  std::vector<int32_t> prompt;
  int64_t decode_calls = 8;
  int64_t chunk = 256;            // tokens of one prefill call
  std::vector<int32_t> stop_ids;  // picked, these end the trace
  int64_t words = 0;              // logits that have a token; 0: all. Models pad their vocabularies
};

// [1, rows, width] of one operation in one call; no rows: not seen.
struct SeenShape {
  int64_t rows = 0, width = 0;
  bool operator==(const SeenShape&) const = default;
};

// Positions [first, end) of an owner that have pages, which take `bytes`.
struct CacheSpan {
  int64_t first = 0, end = 0, pages = 0, bytes = 0;
  int64_t held() const { return end - first; }
};

struct TraceCallLayer {
  int64_t layer = 0;
  SeenShape x, q, k, v;                           // the input of attention and its projections
  SeenShape stored_k, stored_v;                   // as they went into the cache
  CacheSpan before, after;                        // the owner's
  int64_t query_position = -1;                    // of the last query that was run; -1: none
  int64_t first_in_sight = 0, keys_attended = 0;  // of that query
  std::optional<int64_t> passes;  // over the keys in sight, by the counter; of calls with one query
  int64_t kv_written_bytes = 0, kv_read_bytes = 0;
};

struct Picked {
  Token token;
  float logit = 0;
  std::optional<Token> runner_up;  // nothing in a vocabulary of one
  float runner_up_logit = 0;
  float gap = 0;
  int64_t gap_ulps = 0;  // floats from the one logit to the other
};

struct TraceCall {
  int64_t index = 0;
  bool prefill = false;
  std::vector<Token> fed;
  int64_t before = 0, after = 0;  // length of the sequence; the tokens fed have positions [before, after)
  std::optional<Picked> picked;   // nothing in a piece of the prompt that is not the last
  std::optional<Hash128> logits;
  double seconds = 0;          // of a run that nobody watched
  double watched_seconds = 0;  // of the run that all else is from
  int64_t kv_written_bytes = 0, kv_read_bytes = 0, weights_read_bytes = 0, table_rows_read_bytes = 0;
  int64_t kv_page_bytes = 0;  // of all pages, after the call
  bool stored_in_order = false, same_bits_unwatched = true;
  std::vector<TraceCallLayer> layers;  // those with attention
};

struct TracePage {
  int64_t layer = 0, first = 0, positions = 0, room = 0;
  int64_t bytes = 0, live_bytes = 0;  // of the page; of it, K and V of live positions
  bool sliding = false;
  int64_t pool_offset = 0, pool_bytes = 0;
  Hash128 hash;
};

// What an owner holds at the end.
struct TraceSight {
  int64_t layer = 0, window = 0, length = 0;
  int64_t in_sight = 0;             // of the last query
  int64_t behind = 0, evicted = 0;  // length - in_sight; of them, those whose pages went back
};

enum class TraceEnd { calls, stop_token, context };
std::string_view trace_end_name(TraceEnd end);

struct Trace {
  ModelSpec spec;
  KvTypes kv_dtype;
  int64_t chunk = 0, context = 0;
  std::vector<Token> prompt;
  std::vector<int64_t> position_bytes;  // [L] of one position, from the formula; 0 where nothing is stored
  std::vector<TraceCall> calls;
  std::vector<TracePage> pages;
  std::vector<TraceSight> sight;
  TraceEnd end = TraceEnd::calls;
  std::vector<Check> checks;

  int64_t prefill_calls() const;
  int64_t decode_calls() const { return static_cast<int64_t>(calls.size()) - prefill_calls(); }
  std::vector<Token> picked() const;  // a stop token included
  int64_t length() const { return calls.empty() ? 0 : calls.back().after; }
  int64_t bytes_per_position() const;
  int64_t kv_written_bytes() const;
  bool passed() const;
};

// Runs the prompt and the decode calls twice in sequences of its own: watched, and for the times not.
// Error(usage) on an empty prompt or a token out of range, Error(limit) on a prompt longer than the context.
// `kv`: the types that the engine was made with.
Trace run_trace(Engine& engine, const KvTypes& kv, const TraceOptions& options, const PieceOf& piece_of,
                FunctionRef<void(int64_t done, int64_t total)> on_progress);

// Holds a trace against the model and its own sums, and fills `checks`. run_trace() has done it.
void check_trace(Trace& trace);

// `mode`: "raw", "chat" or "ids"; `text`: prompt and answer decoded, empty without a tokenizer.
boost::json::object trace_json(const Trace& trace, const Repro& repro, std::string_view mode,
                               std::string_view text);

}  // namespace lapidary::kvlab
