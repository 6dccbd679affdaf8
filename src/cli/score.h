// Log-probabilities of a given text: windows over it, one pass each, and what a pass may record on the side.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/tensor.h"
#include "spec/model_spec.h"

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
double log_probability(std::span<const double> logits, int32_t id);

// Keeps everything that one pass over a sequence shows, in the layout of the goldens. Rows are positions;
// values are float or double.
class ScoreDump {
 public:
  ScoreDump(const ModelSpec& spec, int64_t tokens);
  void put_logits(int64_t row, std::span<const double> logits);
  template <typename T>
  void put_hidden(int64_t layer, int64_t row, std::span<const T> hidden) {
    copy(hidden, entry("hidden").values, (layer * tokens_ + row) * spec_.d_model);
  }
  template <typename T>
  void put_final_norm(int64_t row, std::span<const T> values) {
    copy(values, entry("final_norm").values, row * spec_.d_model);
  }
  // k, v: [K * Hd]
  template <typename T>
  void put_kv(int64_t layer, int64_t row, std::span<const T> k, std::span<const T> v) {
    const AttentionSpec& a = *spec_.layers[static_cast<size_t>(layer)].attention;
    for (int64_t head = 0; head < a.n_kv_heads; ++head) {
      const auto from = static_cast<size_t>(head * a.head_dim), n = static_cast<size_t>(a.head_dim);
      const int64_t to = (head * tokens_ + row) * a.head_dim;
      copy(k.subspan(from, n), entry(fmt::format("kv.{}.k", layer)).values, to);
      copy(v.subspan(from, n), entry(fmt::format("kv.{}.v", layer)).values, to);
    }
  }
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
  template <typename T>
  static void copy(std::span<const T> from, std::vector<float>& to, int64_t at) {
    std::transform(from.begin(), from.end(), to.begin() + at, [](T x) { return static_cast<float>(x); });
  }

  ModelSpec spec_;
  int64_t tokens_;
  std::map<std::string, Entry> entries_;
};

struct ScoreResult {
  std::vector<double> logprobs;  // [T-1]; entry t-1 is token t given those before it (that its window holds)
  int64_t windows = 0;
  double seconds = 0;
};

// One sequence at a time through an executor.
class ScoreExecutor {
 public:
  using OnLogits = FunctionRef<void(int64_t index, std::span<const double> logits)>;
  virtual ~ScoreExecutor() = default;
  virtual void begin() = 0;  // an empty sequence
  // Appends the tokens; `wanted`: reports the logits after each, in order. `dump` may be null.
  virtual void feed(std::span<const int32_t> tokens, bool wanted, ScoreDump* dump, OnLogits on_logits) = 0;
  virtual int threads() const = 0;
  virtual std::string numeric_mode() const = 0;
};

// REQUIRES: ids.size() >= 2. `repeat_bos`: later windows begin with ids[0]. `dump`: only with a single
// window.
ScoreResult score_ids(ScoreExecutor& executor, std::span<const int32_t> ids,
                      const std::vector<ScoreWindow>& windows, bool repeat_bos, ScoreDump* dump,
                      FunctionRef<void(int64_t done, int64_t total)> on_progress);

}  // namespace lapidary
