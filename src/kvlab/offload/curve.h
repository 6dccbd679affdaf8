// Computing a cache again against loading it, over its length.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "kvlab/offload/tiers.h"

namespace lapidary::kvlab {

struct OffloadEngine;

using OnLabWork = FunctionRef<void(std::string_view what, int64_t done, int64_t total)>;

struct CurvePlan {
  std::vector<int64_t> lengths;  // rising
  int64_t suffix = 16;           // tokens that the prompt has after the cached ones
  int64_t repeats = 3;
  uint64_t seed = 1;  // of the random token ids
};

struct CurvePoint {
  int64_t length = 0, state_bytes = 0;
  double recompute = 0;  // seconds; prefill of all `length` tokens
  double suffix = 0;     // prefill of the suffix behind them
  double fork = 0;       // a second sequence on pages that are still in the engine
  // What a load must reach, checks and all, to be as quick as computing.
  double break_even_bytes_per_second() const { return static_cast<double>(state_bytes) / recompute; }
  struct Reload {
    std::string way;
    double seconds = 0;        // load, check, copy into pages
    bool same_logits = false;  // of the suffix, as behind the computed cache
    bool cold = false;
    std::optional<double> cached_share;  // as TierTimes says
  };
  std::vector<Reload> reload;
};
// Medians of the repeats. Chunks of the prefill end at the lengths of the plan.
std::vector<CurvePoint> measure_curve(const OffloadEngine& engine, const CurvePlan& plan,
                                      std::span<Tier* const> tiers, OnLabWork on_work);

struct BreakEven {
  std::string way;
  enum class Verdict { always, crosses, never } verdict{};
  std::optional<double> length;  // always: the shortest one measured; crosses: between two measured ones
};
std::vector<BreakEven> break_even(std::span<const CurvePoint> curve);

// Random token ids, a function of seed and position alone.
std::vector<int32_t> random_tokens(uint64_t seed, int64_t count, int64_t vocab_size);

// Of several loads, the share that speaks most against what they are called: the least in memory of the warm
// ones, the most of the cold ones.
void note_cached_share(std::optional<double>& worst, const Tier& tier, bool cold);

double median_of(std::vector<double> seconds);  // REQUIRES: not empty
double lab_seconds();                           // wall clock since some moment

}  // namespace lapidary::kvlab
