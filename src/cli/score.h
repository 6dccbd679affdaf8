// Log-probabilities of a given text: windows over it, one pass each, and what a pass may record on the side.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/tensor.h"
#include "engine/engine.h"
#include "engine/probe.h"

namespace lapidary {

struct ScoreWindow {
  int64_t begin = 0, end = 0;  // tokens of the text that the pass sees
  int64_t first_scored = 0;    // tokens before it are context, scored by an earlier window
};

// Windows of at most `window` tokens, each `stride` further on, until every token but the first is scored
// exactly once. `reserved`: places of a window that later ones give to a repeated BOS. REQUIRES: 1 <= stride,
// reserved + 2 <= window. Error(usage) when the stride would leave tokens out.
std::vector<ScoreWindow> plan_windows(int64_t tokens, int64_t window, int64_t stride, int64_t reserved);

// Natural log of the probability of `id`: sums in double.
double log_probability(std::span<const float> logits, int32_t id);

// Sees one pass over a sequence and keeps everything, in the layout of the goldens.
class ScoreDump : public Probe {
 public:
  ScoreDump(const ModelSpec& spec, int64_t tokens);
  void on_logits(int64_t row, std::span<const float> logits);
  void on_hidden(int64_t layer, std::span<const RowId> rows, std::span<const float> hidden) override;
  void on_final_norm(std::span<const RowId> rows, std::span<const float> values) override;
  void on_kv(int64_t layer, RowId row, std::span<const float> k, std::span<const float> v) override;
  void on_scores(int64_t, RowId, int64_t, int64_t, std::span<const float>) override {}
  bool wants_scores() const override { return false; }
  // input_ids [T] i64, logits [T, V], hidden [L, T, D], final_norm [T, D], kv.I.k and kv.I.v [K, T, Hd],
  // logprobs [T-1]; f32.
  void write(const std::string& path, std::span<const int32_t> ids, std::span<const double> logprobs) const;
  static int64_t bytes_needed(const ModelSpec& spec, int64_t tokens);

 private:
  struct Entry {
    Shape shape;
    std::vector<float> values;
  };
  Entry& entry(const std::string& name) { return entries_.at(name); }

  ModelSpec spec_;
  int64_t tokens_;
  std::map<std::string, Entry> entries_;
};

struct ScoreResult {
  std::vector<double> logprobs;  // [T-1]; entry t-1 is token t given those before it (that its window holds)
  int64_t windows = 0;
  double seconds = 0;
};

// REQUIRES: ids.size() >= 2. `repeat_bos`: later windows begin with ids[0]. `dump`: only with a single
// window.
ScoreResult score_ids(Engine& engine, std::span<const int32_t> ids, const std::vector<ScoreWindow>& windows,
                      bool repeat_bos, ScoreDump* dump,
                      FunctionRef<void(int64_t done, int64_t total)> on_progress);

}  // namespace lapidary
