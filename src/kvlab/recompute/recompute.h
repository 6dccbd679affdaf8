// Is a recomputed cache the same? A sequence is decoded greedily with its cache, then the same positions are
// computed again by one prefill, by decode of single tokens, and by every other cut asked for, with every
// number of threads; keys, values, hidden states, logits and choices are held against the cached run's.
#pragma once

#include <array>
#include <boost/json/object.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "kvlab/recompute/record.h"
#include "kvlab/report_frame.h"

namespace lapidary::kvlab {

struct RecomputePlan {
  std::vector<int32_t> prompt;
  int64_t decode_calls = 10;                 // N calls pick N + 1 tokens and leave prompt + N in the cache
  std::vector<int64_t> chunks{1, 7, 64, 0};  // tokens of a call; 0: all in one
  std::vector<int> threads{1, 2};            // the cached run has the first
  std::vector<int64_t> batches{1};           // sequences of a call; the cached run is alone
};

// The executor at hand, and how its numbers are stored.
struct RunFacts {
  std::string name;      // "exact", "fast", "reference"
  std::string executor;  // "engine", "reference"
  std::string numeric_mode;
  DType keys = DType::f32,
        values = DType::f32;  // i8: "q8", where an ulp is 1/127 of a head's greatest number
  DType logits = DType::f32;
  bool promised_exact = false;
};

struct KvDifference {  // of keys and values together
  int64_t elements = 0, equal = 0;
  double max_abs_k = 0, max_abs_v = 0;
  uint64_t max_ulps = 0;
  std::array<int64_t, 4> histogram{};  // elements that are 0, 1, 2 and more ulps apart
  bool same() const { return equal == elements; }
  void join(const KvDifference& other);
};

struct Difference {
  int64_t elements = 0, equal = 0;
  double max_abs = 0;
  void join(const Difference& other);
};

struct LayerDifference {
  int64_t layer = 0;  // an owner
  KvDifference prompt, decode;
  KvDifference all() const;
};

struct Divergence {
  int64_t layer = -1;  // -1: behind the last layer
  std::string op;
  int64_t position = 0;  // the first that differs there
};

struct Choice {  // the two best logits of a row
  int32_t id = 0, second_id = 0;
  double logit = 0, second_logit = 0;
  uint64_t gap_ulps = 0;
  double gap() const { return logit - second_logit; }
};

struct Flip {
  int64_t index = 0;  // of the generated token, from 1
  int64_t position = 0;
  Choice cached, recomputed;
};

// How far a run is from the reference: the greatest error and the root of the mean square.
struct TruthError {
  double max_k = 0, max_v = 0, rms_kv = 0, max_hidden = 0, max_logits = 0, rms_logits = 0;
};

struct Recomputation {
  int64_t chunk = 0, batch = 1, calls = 0;
  int threads = 0;
  std::vector<LayerDifference> layers;  // owners
  std::vector<Difference> hidden;       // [L]
  int64_t equal_logit_rows = 0;         // of all positions
  double max_logit_difference = 0;      // of rows from the last of the prompt on
  std::optional<Divergence> first;      // in the order of the layers and their operations
  std::vector<Flip> flips;
  std::vector<std::vector<double>> equal_map;   // [owners][R] per cent
  std::vector<std::vector<uint64_t>> ulps_map;  // [owners][R] greatest
  std::optional<TruthError> error;
  KvDifference kv() const, prompt() const, decode() const;
  Difference all_hidden() const;
  bool same(int64_t positions) const;  // every bit of K, V, hidden states and logits
  std::string name() const;            // "one prefill", "calls of 7 tokens, batch of 4"
};

struct RunResult {
  RunFacts facts;
  std::vector<int32_t> tokens;    // as fed, [R]
  std::vector<Choice> generated;  // decode_calls + 1
  std::optional<TruthError> cached_error;
  std::vector<Recomputation> recomputations;
  bool same() const;
  bool passed() const { return same() || !facts.promised_exact; }
  std::string verdict() const;
  // How far both are from the reference, in words; empty without one, or where nothing differs.
  std::string distance() const;
};

struct RecomputeReport {
  int64_t prompt_tokens = 0, decode_calls = 0;
  std::vector<int64_t> owner_layers;
  std::string reference_type;     // "f64"; empty: none was asked for, or it is missing
  std::string reference_missing;  // why
  std::vector<RunResult> runs;
  int64_t positions() const { return prompt_tokens + decode_calls; }
  int64_t kv_elements() const;  // of one run
  bool passed() const;
};

// The truth for the tokens at hand, or nullptr. It stays valid until it is asked for other tokens.
using TruthOf = FunctionRef<const Record*(std::span<const int32_t> tokens, int64_t first_logits)>;
using OpenSubject = FunctionRef<std::unique_ptr<Subject>(int threads)>;
using OnWork = FunctionRef<void(std::string_view what, int64_t done, int64_t total)>;

// Error(usage) on an empty prompt, a plan without cuts or threads, or tokens out of range; Error(limit) when
// the positions are more than the model was made for, or than kMostRecordBytes can hold.
void check_plan(const ModelSpec& spec, const RecomputePlan& plan);
inline constexpr int64_t kMostRecordBytes = int64_t{2} << 30;  // of one run; up to three are held

// The plan's cuts without those that come to the same for so many positions: single tokens first, one call
// last.
std::vector<int64_t> distinct_chunks(const RecomputePlan& plan);

RunResult recompute(const ModelSpec& spec, const RecomputePlan& plan, const RunFacts& facts, OpenSubject open,
                    TruthOf truth, OnWork on_work);

std::string grouped_number(int64_t value);  // "345,600"
// Equal of all in per cent, cut to one decimal: 100.0 only where all are.
double percent_equal(int64_t equal, int64_t elements);

// `piece`: text of a token; empty answers where there is no tokenizer.
boost::json::object recompute_json(const RecomputeReport& report, const Repro& repro,
                                   FunctionRef<std::string(int32_t)> piece);

}  // namespace lapidary::kvlab
