#include "kvlab/offload/curve.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "base/rng.h"
#include "kvlab/offload/offload.h"
#include "kvlab/sequence.h"

namespace lapidary::kvlab {
namespace {

struct Timed {
  std::vector<float> logits;
  double seconds = 0;
};

Timed timed_feed(Engine& engine, int32_t sequence, std::span<const int32_t> tokens) {
  Timed out;
  const Feed feed{sequence, tokens, Want::last};
  const double start = lab_seconds();
  engine.forward({&feed, 1}, [&](size_t, int64_t, std::span<const float> row) {
    out.logits.assign(row.begin(), row.end());
  });
  out.seconds = lab_seconds() - start;
  return out;
}

class Curve {
 public:
  Curve(const OffloadEngine& setting, const CurvePlan& plan, OnLabWork on_work)
      : s_(setting), engine_(setting.engine), plan_(plan), on_work_(on_work) {}

  std::vector<CurvePoint> run(std::span<Tier* const> tiers) {
    const int64_t longest = plan_.lengths.back();
    ensure(longest + plan_.suffix <= engine_.context(), ErrorCode::limit,
           "the curve: {} positions and {} after them exceed the context of {}", longest, plan_.suffix,
           engine_.context());
    tokens_ = random_tokens(plan_.seed, longest + plan_.suffix, engine_.spec().vocab_size);
    std::vector<CurvePoint> points(plan_.lengths.size());
    std::vector<std::vector<double>> recompute(points.size()), suffix(points.size()), fork(points.size());
    for (int64_t round = 0; round < plan_.repeats; round++) {
      const OpenSequence growing(engine_);
      double spent = 0;
      for (size_t i = 0, at = 0; i < points.size(); at = static_cast<size_t>(plan_.lengths[i++])) {
        const auto length = static_cast<size_t>(plan_.lengths[i]);
        on_work_("computing against loading", round * plan_.lengths.back() + static_cast<int64_t>(at),
                 plan_.repeats * plan_.lengths.back());
        spent += timed_feed(engine_, growing.id(), std::span(tokens_).subspan(at, length - at)).seconds;
        recompute[i].push_back(spent);
        points[i].length = plan_.lengths[i];
        branch_off(growing.id(), length, fork[i], suffix[i]);
        if (round == 0) reload(growing.id(), points[i], tiers);
      }
    }
    for (size_t i = 0; i < points.size(); i++) {
      points[i].recompute = median_of(recompute[i]);
      points[i].suffix = median_of(suffix[i]);
      points[i].fork = median_of(fork[i]);
    }
    return points;
  }

 private:
  // The suffix on pages that never left: what a cache inside the engine gives.
  void branch_off(int32_t from, size_t length, std::vector<double>& fork, std::vector<double>& suffix) {
    const double start = lab_seconds();
    const int32_t branch = engine_.fork(from);
    fork.push_back(lab_seconds() - start);
    Timed fed = timed_feed(engine_, branch, suffix_at(length));
    engine_.close(branch);
    suffix.push_back(fed.seconds);
    expected_ = std::move(fed.logits);
  }

  void reload(int32_t from, CurvePoint& point, std::span<Tier* const> tiers) {
    Bytes state;
    engine_.save(
        from, s_.model, std::as_bytes(std::span(kRawAttachment)),
        [&](std::span<const std::byte> part) { state.insert(state.end(), part.begin(), part.end()); });
    point.state_bytes = static_cast<int64_t>(state.size());
    const OpenSequence target(engine_);
    for (Tier* tier : tiers) {
      tier->store(state);
      point.reload.push_back(reload_from(*tier, target.id(), static_cast<size_t>(point.length), false));
      if (tier->cool())
        point.reload.push_back(reload_from(*tier, target.id(), static_cast<size_t>(point.length), true));
    }
  }

  CurvePoint::Reload reload_from(Tier& tier, int32_t target, size_t length, bool cold) {
    CurvePoint::Reload out{.way = tier.name() + (cold ? ", cold" : ""), .cold = cold};
    std::vector<double> seconds;
    for (int64_t i = 0; i < plan_.repeats; i++) {
      if (cold) tier.cool();
      note_cached_share(out.cached_share, tier, cold);
      const double start = lab_seconds();
      engine_.restore(target, tier.load(), s_.model, tier.name(), [](std::span<const std::byte>) {});
      seconds.push_back(lab_seconds() - start);
    }
    const std::vector<float> logits = timed_feed(engine_, target, suffix_at(length)).logits;
    out.same_logits = logits.size() == expected_.size() &&
                      std::memcmp(logits.data(), expected_.data(), logits.size() * sizeof(float)) == 0;
    out.seconds = median_of(seconds);
    return out;
  }

  std::span<const int32_t> suffix_at(size_t length) const {
    return std::span(tokens_).subspan(length, static_cast<size_t>(plan_.suffix));
  }

  const OffloadEngine& s_;
  Engine& engine_;
  const CurvePlan& plan_;
  OnLabWork on_work_;
  std::vector<int32_t> tokens_;
  std::vector<float> expected_;  // logits behind the suffix
};

BreakEven break_even_of(std::span<const CurvePoint> curve, size_t way) {
  BreakEven out{curve.front().reload[way].way, BreakEven::Verdict::never, {}};
  const auto gain = [&](size_t i) { return curve[i].recompute - curve[i].reload[way].seconds; };
  size_t first = curve.size();  // it wins here and at every longer length
  while (first > 0 && gain(first - 1) > 0) first--;
  if (first == curve.size()) return out;
  out.verdict = first == 0 ? BreakEven::Verdict::always : BreakEven::Verdict::crosses;
  const auto length = [&](size_t i) { return static_cast<double>(curve[i].length); };
  if (first == 0) {
    out.length = length(0);
  } else {
    const double loss = -gain(first - 1), share = loss / (loss + gain(first));
    out.length = length(first - 1) + share * (length(first) - length(first - 1));
  }
  return out;
}

}  // namespace

std::vector<CurvePoint> measure_curve(const OffloadEngine& engine, const CurvePlan& plan,
                                      std::span<Tier* const> tiers, OnLabWork on_work) {
  ensure(!plan.lengths.empty() && plan.lengths.front() >= 1 && plan.suffix >= 1 && plan.repeats >= 1 &&
             std::adjacent_find(plan.lengths.begin(), plan.lengths.end(), std::greater_equal<>()) ==
                 plan.lengths.end(),
         ErrorCode::usage, "the curve: expected rising lengths from 1 on, a suffix and repeats");
  return Curve(engine, plan, on_work).run(tiers);
}

std::vector<BreakEven> break_even(std::span<const CurvePoint> curve) {
  std::vector<BreakEven> out;
  if (curve.empty()) return out;
  for (size_t way = 0; way < curve.front().reload.size(); way++) out.push_back(break_even_of(curve, way));
  return out;
}

std::vector<int32_t> random_tokens(uint64_t seed, int64_t count, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; i++) {
    const double u = uniform_double(seed, 0, static_cast<uint64_t>(i));
    tokens.push_back(static_cast<int32_t>(u * static_cast<double>(vocab_size)));
  }
  return tokens;
}

void note_cached_share(std::optional<double>& worst, const Tier& tier, bool cold) {
  const std::optional<double> now = tier.cached_share();
  if (!now) return;
  const double before = worst.value_or(*now);
  worst = cold ? std::max(before, *now) : std::min(before, *now);
}

double median_of(std::vector<double> seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  if (seconds.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(seconds.begin(), middle)) / 2;
}

double lab_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lapidary::kvlab
