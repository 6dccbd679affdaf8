// One forward step: some rows of some sequences through the model. The verbs of a layer are in attention.cc,
// ffn.cc and experts.cc. Symbols as in spec/model_spec.h; R = rows of the step (the engine's chunk at most).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/function_ref.h"
#include "base/team.h"
#include "engine/arithmetic.h"
#include "engine/kv_cache.h"
#include "engine/probe.h"
#include "engine/traffic.h"
#include "engine/weights.h"
#include "kernels/kernels.h"
#include "spec/model_spec.h"

namespace lapidary {

struct StepRow {
  RowId id;
  int32_t token = 0;
  bool kept = false;    // goes through all layers: someone sees what comes out
  bool logits = false;  // of a kept row: wanted too
  size_t feed = 0;      // which feed and token of it, for reporting
  int64_t token_index = 0;
};

// Activation buffers, planned once from the widest layer. Every row of a buffer is `width` floats.
struct Workspace {
  struct Rows {
    Buffer memory;
    int64_t width = 0;
    float* row(int64_t r) const { return memory.floats() + r * width; }
  };
  Rows hidden;          // [R, D] the residual stream
  Rows normed;          // [R, D] input of a sublayer
  Rows branch;          // [R, D] output of a sublayer
  Rows queries;         // [R, H*Hd]
  Rows keys, values;    // [R, K*Hd]
  Rows attended;        // [R, H*Hd]
  Rows gate, up;        // [R, F]
  Rows ple;             // [R, L*P] per-layer embeddings of the rows
  Rows ple_table;       // [1, L*P] one row of the table
  Rows router;          // [R, E] probabilities
  Rows expert_in;       // [R, D] normed rows, then the rows of one expert
  Rows expert_rows;     // [R, D]
  Rows expert_gate_up;  // [R, 2*Fe]
  Rows expert_sum;      // [R, D]
  Rows logits;          // [head rows, V]
  Rows scratch;         // [threads, ...] queries of one attention tile, states of it and of one part
  Rows halves;          // [threads, R * 16] what one half of the inputs adds (fast mode)
  Buffer part_states;   // what queries have got from single parts, where threads share out the parts
  int64_t n_part_states = 0;
  // The rows that are about to be multiplied, as integers (modes a16 and a8): the widest input of a product.
  struct Integers {
    Buffer hi, lo, scales, sums;
    int64_t width = 0;
    bool two_terms = false;
    kernels::QuantisedRows view(int64_t rows, bool both_terms) const;
    int64_t bytes() const;
  };
  Integers integers;
  std::vector<Rows> cosines, sines;  // one of each a rope: [R, Hd/2]
  std::vector<int64_t> expert_row;   // [R] rows that chose the expert at hand
  std::vector<float> expert_share;   // [R]
  std::vector<float> choice;         // [R, E] share of each expert, 0 where not chosen
  int64_t bytes() const;
};

class Forward {
 public:
  using OnLogits = FunctionRef<void(size_t feed, int64_t token_index, std::span<const float> logits)>;

  struct Numerics {
    Arithmetic arithmetic;
    NumericMode mode;
  };
  Forward(const ModelSpec& spec, const Weights& weights, const kernels::Kernels& kernels, Team& team,
          KvCache& cache, Numerics numerics, int64_t max_rows);

  // Rows of one sequence are neighbours in ascending positions, and their pages exist (KvCache::grow).
  // Allocates nothing.
  void run(std::span<const StepRow> rows, OnLogits on_logits, Probe* probe);
  int64_t workspace_bytes() const { return ws_.bytes(); }
  const Traffic& traffic() const { return traffic_; }

  // Most logit rows held at once; more are reported in several rounds.
  static constexpr int64_t kHeadRows = 16;
  // Queries of one attention tile: it takes a part of the context while that lies in the cache.
  static constexpr int64_t kTileQueries = 48;

 private:
  struct Rope {
    RopeSpec spec;
    int64_t head_dim = 0;
    std::vector<double> frequencies;  // [Hd/2]
  };
  struct Tile {  // neighbouring rows of one sequence and some query heads of one kv head
    int64_t first_row, n_rows, kv_head, first_head, n_heads;
    int64_t first_part = 0, n_parts = 0;      // of the context: what any of the rows sees
    int64_t first_work = 0, first_state = 0;  // where its parts begin among those of all tiles
    int64_t n_queries() const { return n_rows * n_heads; }
  };

  // forward.cc
  void embed();
  void layer(int64_t index);
  void check_finite(int64_t index) const;  // Error(data) naming layer, sequence and position
  void per_layer_embedding(int64_t index);
  void residual(const LayerSpec& layer, const std::vector<float>& post_norm);
  void head(OnLogits on_logits);
  // attention.cc
  void plan_attention(int64_t padded_head, int64_t max_rows);
  void turn_angles();
  void attention(int64_t index);
  void write_kv(int64_t index);
  void drop_unread_rows();
  void prepare_queries(int64_t index);
  void plan_tiles(int64_t index);
  bool parts_pay() const;
  void attend_tile(const AttentionSpec& a, const Tile& tile, int thread);
  void attend_parts(const AttentionSpec& a);
  void gather_queries(const AttentionSpec& a, const Tile& tile, float* queries) const;
  void attend_part(const AttentionSpec& a, const Tile& tile, int64_t part, const float* queries,
                   const kernels::AttentionState& state) const;
  void put_attended(const AttentionSpec& a, const Tile& tile, const kernels::AttentionState& state);
  struct Scratch {  // one thread's, while it works on a tile
    float* queries;
    kernels::AttentionState tile, part;
  };
  Scratch scratch(int thread, int64_t padded_dim) const;
  kernels::AttentionState part_state(int64_t index, int64_t padded_dim) const;
  void report_scores(int64_t index);
  void report(int64_t index, Op op, const Workspace::Rows& values, int64_t width) const;
  // ffn.cc, experts.cc
  void ffn(int64_t index);
  void per_layer_inputs();
  void experts(int64_t index);
  void choose_experts(const FfnSpec& f, const LayerWeights& w);
  void run_expert(const FfnSpec& f, const LayerWeights& w, int64_t expert);

  // Shared steps over rows.
  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  void for_rows(FunctionRef<void(int64_t row)> f);
  void norm(const Workspace::Rows& from, const std::vector<float>& weight, const Workspace::Rows& to);
  struct Job {
    const Panels* weight;  // null: nothing to do
    const Workspace::Rows* to;
  };
  // Rows [first, first + n) of `from` stand ready for multiply(): as integers too, where a product will want
  // them.
  struct Operand {
    const float* x;
    int64_t ldx, n;
  };
  Operand operand(const Workspace::Rows& from, int64_t first, int64_t n, const Panels& weight);
  // y[r] = weight · operand row r, for the outputs of some panels, in the arithmetic of the engine.
  void multiply(const Panels& weight, int64_t begin, int64_t end, const Operand& rows,
                const Workspace::Rows& y, int thread) const;
  void multiply_halves(const Panels& weight, int64_t begin, int64_t end, const Operand& rows,
                       const Workspace::Rows& y, int thread) const;
  bool as_integers(const Panels& weight) const {
    return arithmetic_ != Arithmetic::f32 && weight.format.quantised();
  }
  // The integers of n rows: in the fast mode many rows have one term only.
  kernels::QuantisedRows integers(int64_t n) const { return ws_.integers.view(n, !fast(n)); }
  bool fast(int64_t n) const { return mode_ == NumericMode::fast && n >= kFastRows; }
  // to[r] = weight · from[r] for every job: one pass of the team over the panels of all.
  void project(const Workspace::Rows& from, std::initializer_list<Job> jobs);
  // gate = act(gate·x) * up·x, both projections and the gating in one pass.
  void project_gated(const Workspace::Rows& from, const LayerWeights& w, Activation activation);
  void gate_rows(Activation activation, const float* gate, const float* up, int64_t n, float* out) const;

  const ModelSpec& spec_;
  const Weights& weights_;
  const kernels::Kernels& k_;
  Team& team_;
  KvCache& cache_;
  Arithmetic arithmetic_;
  NumericMode mode_;
  Workspace ws_;
  float eps_;
  int64_t last_owner_ = -1;  // after it, nobody reads the rows that nobody wants
  std::vector<Rope> ropes_;
  std::vector<size_t> rope_of_layer_;
  std::vector<StepRow> rows_;
  std::vector<RowId> ids_;  // of rows_, for the probe
  std::vector<Tile> tiles_;
  Probe* probe_ = nullptr;
  Traffic traffic_;
};

}  // namespace lapidary
