#include "kvlab/report/timeline.h"

#include <chrono>

#include "engine/probe.h"
#include "kvlab/sequence.h"

namespace lapidary::kvlab {
namespace {

using Clock = std::chrono::steady_clock;

class ClockProbe : public Probe {
 public:
  explicit ClockProbe(std::vector<TimedSpan>& spans) : spans_(spans), begun_(Clock::now()) {}

  void on_op(const OpRows& op) override { add(op.layer, op_name(op.op)); }
  void on_hidden(int64_t layer, std::span<const RowId>, std::span<const float>) override {
    last_ = now();
    spans_.push_back({layer, "layer", layer_begun_, last_});
    layer_begun_ = last_;
  }
  void on_final_norm(std::span<const RowId>, std::span<const float>) override { add(-1, "final norm"); }
  void on_kv(int64_t, RowId, std::span<const float>, std::span<const float>) override {}
  void on_scores(int64_t, RowId, int64_t, int64_t, std::span<const float>) override {}
  bool wants_scores() const override { return false; }
  bool wants_ops() const override { return true; }

  double now() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }
  void add(int64_t layer, std::string_view what) {
    const double end = now();
    spans_.push_back({layer, what, last_, end});
    last_ = end;
  }

 private:
  std::vector<TimedSpan>& spans_;
  Clock::time_point begun_;
  double last_ = 0, layer_begun_ = 0;
};

}  // namespace

std::vector<TimedCall> time_calls(Engine& engine, const std::vector<TimedFeed>& calls) {
  const OpenSequence sequence(engine);
  std::vector<TimedCall> timed;
  for (const TimedFeed& call : calls) {
    TimedCall& now = timed.emplace_back();
    const Feed feed{sequence.id(), call.tokens, call.wants_logits ? Want::last : Want::none};
    ClockProbe probe(now.spans);
    const auto ignore = [](size_t, int64_t, std::span<const float>) {};
    engine.forward({&feed, 1}, ignore, &probe);
    if (call.wants_logits) probe.add(-1, "head");
    now.seconds = probe.now();
  }
  return timed;
}

}  // namespace lapidary::kvlab
