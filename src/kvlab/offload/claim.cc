#include "kvlab/offload/claim.h"

#include <algorithm>

#include "base/error.h"
#include "kvlab/offload/offload.h"

namespace lapidary::kvlab {
namespace {

// 123 µs, 4.56 ms, 1.23 s
std::string time_text(double seconds) {
  if (seconds < 9.995e-4) return fmt::format("{:.0f} µs", seconds * 1e6);
  if (seconds < 0.9995) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} s", seconds);
}
std::string times_text(double ratio) {
  return ratio < 10 ? fmt::format("{:.2f}×", ratio) : fmt::format("{:.0f}×", ratio);
}

class Claim {
 public:
  explicit Claim(const OffloadReport& report) : r_(report), point_(report.curve.back()) {
    decode_ = r_.uninterrupted_seconds_per_token;
    rate_ = static_cast<double>(point_.length) / point_.recompute;
  }

  std::vector<ClaimFact> facts() const {
    return {baseline(), hit_rate(), time_to_first_token(), suffix(), link(), exactness()};
  }

 private:
  ClaimFact baseline() const {
    ClaimFact f{'a', "the baseline has no cache at all", {}, {}};
    f.lines.push_back(fmt::format(
        "{} tokens computed from nothing: {}. The same prefix still in this engine: {} (a second sequence on "
        "the same pages).",
        point_.length, time_text(point_.recompute), time_text(point_.fork)));
    f.numbers = {{"recompute_seconds", point_.recompute}, {"in_engine_seconds", point_.fork}};
    for (const CurvePoint::Reload& way : point_.reload) {
      f.lines.push_back(
          fmt::format("{}: {}, {} against computing; the pages in the engine are {} quicker still.", way.way,
                      time_text(way.seconds), times_text(point_.recompute / way.seconds),
                      times_text(way.seconds / point_.fork)));
      f.numbers.emplace_back("speed_up, " + way.way, point_.recompute / way.seconds);
      f.numbers.emplace_back("speed_up_against_engine, " + way.way, point_.fork / way.seconds);
    }
    return f;
  }

  ClaimFact hit_rate() const {
    ClaimFact f{'b', "every request is taken to hit", {}, {}};
    for (const CurvePoint::Reload& way : point_.reload) {
      std::string line = way.way + ":";
      for (const int percent : {100, 90, 50, 10}) {
        const double hit = percent / 100.0;
        const double mean = hit * way.seconds + (1 - hit) * point_.recompute;
        line += fmt::format("{} {} at {} % hits", percent == 100 ? "" : ",",
                            times_text(point_.recompute / mean), percent);
        f.numbers.emplace_back(fmt::format("speed_up_at_{}_percent, {}", percent, way.way),
                               point_.recompute / mean);
      }
      f.lines.push_back(line + ".");
    }
    f.lines.emplace_back(
        "All requests of this run were hits. A miss is charged its prefill here and nothing "
        "for the look that found nothing.");
    return f;
  }

  ClaimFact time_to_first_token() const {
    ClaimFact f{'c', "only the first token comes sooner", {}, {}};
    f.lines.push_back(
        fmt::format("decode: {} a token behind the computed cache, {} behind the restored one; the "
                    "same kernels on the same bytes, so a difference is the machine's noise.",
                    time_text(decode_), time_text(r_.restored_seconds_per_token)));
    f.numbers = {{"decode_seconds_per_token_uninterrupted", decode_},
                 {"decode_seconds_per_token_restored", r_.restored_seconds_per_token}};
    for (const CurvePoint::Reload& way : point_.reload) {
      std::string line = way.way + ": the whole answer";
      for (const int64_t tokens : {1, 100, 1000}) {
        const double after = point_.suffix + decode_ * static_cast<double>(tokens - 1);
        const double ratio = (point_.recompute + after) / (way.seconds + after);
        line += fmt::format("{} {} for {} token{}", tokens == 1 ? "" : ",", times_text(ratio), tokens,
                            tokens == 1 ? "" : "s");
        f.numbers.emplace_back(fmt::format("speed_up_of_{}_tokens, {}", tokens, way.way), ratio);
      }
      f.lines.push_back(line + ".");
    }
    f.lines.push_back(fmt::format("Taken from the {} a token measured behind {} tokens.", time_text(decode_),
                                  r_.prompt_tokens));
    return f;
  }

  ClaimFact suffix() const {
    ClaimFact f{'d', "the new part of the prompt is small", {}, {}};
    f.lines.push_back(fmt::format("here {} tokens behind {}: {}, computed either way.", r_.suffix_tokens,
                                  point_.length, time_text(point_.suffix)));
    f.numbers = {{"suffix_tokens", static_cast<double>(r_.suffix_tokens)}, {"suffix_seconds", point_.suffix}};
    for (const CurvePoint::Reload& way : point_.reload) {
      const double measured = (point_.recompute + point_.suffix) / (way.seconds + point_.suffix);
      std::string line = fmt::format("{}: to the first token {}", way.way, times_text(measured));
      f.numbers.emplace_back("ttft_speed_up, " + way.way, measured);
      for (const int64_t divisor : {4, 1}) {
        const int64_t tokens = std::max<int64_t>(1, point_.length / divisor);
        const double fed = static_cast<double>(tokens) / rate_;
        const double ratio = (point_.recompute + fed) / (way.seconds + fed);
        line += fmt::format(", {} with {} new tokens", times_text(ratio), tokens);
        f.numbers.emplace_back(fmt::format("ttft_speed_up_at_{}_tokens, {}", tokens, way.way), ratio);
      }
      f.lines.push_back(line + ".");
    }
    f.lines.push_back(
        fmt::format("With more new tokens: from this run's mean {:.0f} tokens a second of prefill. Tokens "
                    "further behind cost more, so those ratios are upper bounds.",
                    rate_));
    return f;
  }

  ClaimFact link() const {
    ClaimFact f{'e', "the bandwidth that was really had", {}, {}};
    const auto bytes = static_cast<double>(point_.state_bytes);
    for (const CurvePoint::Reload& way : point_.reload) {
      std::string line =
          fmt::format("{}: {} bytes in {}, {:.2f} GB/s with every checksum and the copy into pages", way.way,
                      point_.state_bytes, time_text(way.seconds), bytes / way.seconds / 1e9);
      if (way.cached_share)
        line +=
            fmt::format("; {:.0f} % of the file was in memory when the load began", 100 * *way.cached_share);
      f.lines.push_back(line + ".");
      f.numbers.emplace_back("gb_per_s, " + way.way, bytes / way.seconds / 1e9);
    }
    f.lines.push_back(
        fmt::format("{:.0f} bytes a token of cache stand against {:.0f} tokens a second of prefill: a link "
                    "pays from {:.3f} "
                    "GB/s on.",
                    bytes / static_cast<double>(point_.length), rate_,
                    bytes / static_cast<double>(point_.length) * rate_ / 1e9));
    f.numbers.emplace_back("least_gb_per_s_that_pays", bytes / point_.recompute / 1e9);
    return f;
  }

  ClaimFact exactness() const {
    ClaimFact f{'f', "whether what comes back is the same cache", {}, {}};
    const auto failed =
        std::count_if(r_.checks.begin(), r_.checks.end(), [](const OffloadCheck& c) { return !c.passed; });
    f.lines.push_back(fmt::format(
        "{}: {} checks, {} failed: each page, layer, key and value by hash, logits and tokens bit for bit.",
        failed == 0 ? "exact" : "NOT exact", r_.checks.size(), failed));
    f.lines.push_back(
        fmt::format("kept in {}, the type that the engine computes with; nothing is left out or "
                    "rounded on the way.",
                    kv_types_name(r_.state.types)));
    f.numbers = {{"checks", static_cast<double>(r_.checks.size())},
                 {"checks_failed", static_cast<double>(failed)}};
    for (const TierTimes& tier : r_.tiers) {
      if (tier.stored_bytes == r_.state.bytes || tier.cold) continue;
      const double share = static_cast<double>(tier.stored_bytes) / static_cast<double>(r_.state.bytes);
      f.lines.push_back(fmt::format("{} keeps {:.1f} % of the bytes without loss.", tier.way, 100 * share));
      f.numbers.emplace_back("stored_share, " + tier.way, share);
    }
    return f;
  }

  const OffloadReport& r_;
  const CurvePoint& point_;
  double decode_ = 0, rate_ = 0;  // seconds a token; tokens a second of prefill
};

}  // namespace

std::vector<ClaimFact> claim_facts(const OffloadReport& report) {
  ensure(!report.curve.empty() && !report.curve.back().reload.empty(), ErrorCode::internal,
         "the facts of a claim need a curve with a tier");
  return Claim(report).facts();
}

}  // namespace lapidary::kvlab
