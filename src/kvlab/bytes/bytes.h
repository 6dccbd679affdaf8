// `lapidary kv bytes`: what a cache needs, what lies in memory, and what a step reads of it, on a running
// engine; each held to its formula to the byte.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "engine/engine.h"
#include "kvlab/plan/kv.h"
#include "kvlab/report_frame.h"

namespace lapidary::kvlab {

struct BytesOptions {
  std::vector<int64_t> lengths;  // where to look, rising, each 1 to the engine's context
  std::vector<int32_t> tokens;   // what is fed, as many as the longest length at the least
  KvTypes types = DType::f16;    // of the engine
  int64_t keep_behind = 0;       // of the engine
};

// One layer with attention at one length.
struct BytesLayer {
  PlanLayer plan;
  // Formulas.
  int64_t needed_bytes = 0;          // owners: min(length, window) positions
  int64_t stored_formula_bytes = 0;  // and those that stay because their page has not gone yet
  int64_t pages_formula = 0;
  int64_t touched_formula_bytes = 0;  // by one decode step: min(length, window) positions, all passes
  // Of the engine: sums over its pages, and its counters over one decode step.
  int64_t first_stored = 0, stored_positions = 0, pages = 0;
  int64_t stored_bytes = 0;     // positions in pages, without padding
  int64_t allocated_bytes = 0;  // pages as they lie: padding and unused room included
  int64_t pool_bytes = 0;       // what they take of their pool
  int64_t touched_bytes = 0, written_bytes = 0;
};

struct BytesTotals {
  int64_t needed_bytes = 0, stored_bytes = 0, allocated_bytes = 0, pool_bytes = 0, pages = 0;
  int64_t touched_bytes = 0, touched_once_bytes = 0, written_bytes = 0;
};

struct BytesAtLength {
  int64_t length = 0;
  std::vector<BytesLayer> layers;
  BytesTotals total;
  int64_t saved_bytes = 0;   // K and V that Engine::save() writes of the sequence
  int64_t in_use_bytes = 0;  // EngineStats::kv_bytes_in_use
  int64_t weights_read_bytes = 0, table_rows_read_bytes = 0;  // by that decode step
};

// Between two lengths a whole number of pages apart, where page rounding is the same.
struct BytesSlope {
  int64_t from = 0, to = 0;
  int64_t stored_bytes = 0, touched_bytes = 0;  // differences, of all layers
};

struct BytesCheck {
  std::string name;
  int64_t comparisons = 0;
  std::string failure;  // the first: layer, length, expected, got; empty when all held
  bool passed() const { return failure.empty(); }
};

struct BytesReport {
  BytesOptions options;
  std::vector<BytesAtLength> lengths;
  std::vector<BytesSlope> slopes;
  std::vector<BytesCheck> checks;
  bool ok() const;
};

// Feeds a new sequence to each length, the last token of each by a decode step of its own, and looks.
// REQUIRES: no other sequence of the engine is open. Error(usage) on lengths that are none.
using OnBytesWork = FunctionRef<void(int64_t done, int64_t total)>;
BytesReport measure_bytes(Engine& engine, const BytesOptions& options, OnBytesWork on_work);

// Compares formulas and engine anew: for a report that was changed on purpose.
std::vector<BytesCheck> check_bytes(const BytesReport& report);

// Lengths below, at and past every window of a model, and some pages further; none beyond `most`.
std::vector<int64_t> default_bytes_lengths(const ModelSpec& spec, int64_t most);

// "below the window", "at the window", "past the window", "between the windows", "no window".
std::string_view where_of(const std::vector<PlanLayer>& layers, int64_t length);

boost::json::object bytes_json(const BytesReport& report, const ModelSpec& spec, const Repro& repro);
std::string bytes_csv(const BytesReport& report);  // one line a length and layer

}  // namespace lapidary::kvlab
