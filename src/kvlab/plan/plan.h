// `lapidary kv plan`: memory and traffic of weights and KV cache, from a model's spec alone.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvlab/plan/kv.h"
#include "kvlab/plan/weights.h"
#include "kvlab/report_frame.h"

namespace lapidary::kvlab {

struct PlanOptions {
  KvTypes types = DType::f16;
  int64_t sequences = 1;                // of equal length, sharing nothing
  int64_t ranks = 1;                    // of tensor parallelism
  std::vector<int64_t> lengths;         // positions, each 1 to max_position
  int64_t max_position = 0;             // 0: what the model was made for
  int64_t keep_behind = 0;              // positions that this engine keeps behind a window
  std::optional<int64_t> budget_bytes;  // of one rank
  int64_t reserved_bytes = 0;           // of the budget, for all that is neither weights nor K and V
};

// Bytes that one position adds to one sequence.
struct PlanRates {
  int64_t stored_global = 0, stored_sliding = 0;
  int64_t read_global = 0, read_sliding = 0;                // by each step: borrowers read an owner's again
  int64_t engine_read_global = 0, engine_read_sliding = 0;  // in the passes of this engine
};

struct PlanLine {  // at one length, all sequences
  int64_t length = 0;
  int64_t needed_bytes = 0, read_bytes = 0, engine_read_bytes = 0;
  std::vector<int64_t> views;     // bytes, in the order of kViews; -1: this engine does not keep the types
  std::vector<int64_t> formulas;  // bytes, in the order of kFormulas
  int64_t pages = 0;              // of this engine
  // Times what is needed; 1 for a model without K and V.
  double factor(int64_t bytes) const {
    return needed_bytes == 0 ? 1.0 : static_cast<double>(bytes) / static_cast<double>(needed_bytes);
  }
};

// The least lengths at which K and V outgrow the weights; nothing where they never do.
struct PlanCrossover {
  std::optional<int64_t> stored;  // bytes needed against weights held
  std::optional<int64_t> read;    // bytes read by a step against weights touched by it
};

struct RankLine {
  int64_t length = 0, needed_bytes = 0, engine_bytes = -1;
};

struct PlanRanks {  // one rank, the fullest
  int64_t ranks = 1, weight_bytes = 0;
  std::vector<PlanLayer> layers;
  std::vector<int64_t> replicated;  // layers whose KV heads the ranks do not divide
  std::vector<RankLine> lines;
};

struct BudgetView {
  View view{};
  int64_t longest = 0;               // positions of each sequence, at most max_position
  std::optional<int64_t> by_memory;  // positions that memory alone would allow; nothing: without end
  std::vector<std::optional<int64_t>> most_sequences;  // at each length; nothing: no K and V at all
};

struct PlanBudget {
  int64_t budget_bytes = 0, reserved_bytes = 0, weight_bytes = 0, left_bytes = 0;
  std::vector<BudgetView> views;
};

struct Plan {
  PlanOptions options;
  int64_t max_position = 0;
  PlanWeights weights;
  std::vector<PlanLayer> layers;
  PlanRates rates;
  std::vector<int64_t> windows;  // distinct, rising; without 0
  std::vector<PlanLine> lines;   // one a length
  PlanCrossover crossover;
  std::optional<PlanRanks> ranks;    // with more than one
  std::optional<PlanBudget> budget;  // where one was given
};

// Error(usage): a length of 0 or beyond max_position, ranks that do not divide the query heads. Error(limit):
// numbers beyond 64 bits, a budget that does not hold the weights, or not the first page of every sequence:
// says how much is missing.
Plan make_plan(const ModelSpec& spec, const PlanWeights& weights, const PlanOptions& options);

// Text ready for people and machines. `family` and `format` as the checkpoint says them.
struct PlanLabels {
  std::string family, format;
};
boost::json::object plan_json(const Plan& plan, const ModelSpec& spec, const PlanLabels& labels,
                              const Repro& repro);
std::string plan_csv(const Plan& plan);  // one line a length

// The views that a plan can price: this engine's only where it keeps the types.
std::vector<View> priced_views(const KvTypes& types);

// Layers of a plan that are alike but for their place.
struct PlanLayerGroup {
  std::vector<int64_t> layers;
  PlanLayer first;
};
std::vector<PlanLayerGroup> group_plan_layers(const std::vector<PlanLayer>& layers);

}  // namespace lapidary::kvlab
