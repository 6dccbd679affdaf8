#include "verify/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lapidary {
namespace {

size_t best(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double root_mean_square(std::span<const float> row) {
  double sum = 0;
  for (const float x : row) sum += static_cast<double>(x) * static_cast<double>(x);
  return std::sqrt(sum / static_cast<double>(row.size()));
}

double log_sum_exp(std::span<const float> z) {
  const double top = static_cast<double>(z[best(z)]);
  double sum = 0;
  for (const float x : z) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

// norm: log_sum_exp of either side.
double kl(std::span<const float> expected, double norm_p, std::span<const float> got, double norm_q) {
  double sum = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double log_p = static_cast<double>(expected[i]) - norm_p;
    sum += std::exp(log_p) * (log_p - (static_cast<double>(got[i]) - norm_q));
  }
  return std::max(sum, 0.0);  // rounding may leave it just below
}

GreedyComparison compare_greedy(const Trace& got, const Trace& expected, int64_t vocab) {
  GreedyComparison out;
  out.steps = static_cast<int64_t>(got.decoded.size());
  for (int64_t i = 0; i < out.steps; ++i) {
    const int64_t row = expected.prompt_rows - 1 + i - expected.first_logits;
    const std::span<const float> z =
        std::span(expected.logits).subspan(static_cast<size_t>(row * vocab), static_cast<size_t>(vocab));
    const auto token = static_cast<size_t>(got.decoded[static_cast<size_t>(i)]);
    const size_t choice = best(z);
    if (token == choice) {
      ++out.equal;
      continue;
    }
    const double gap = static_cast<double>(z[choice]) - static_cast<double>(z[token]);
    if (!out.parts_at) {
      out.parts_at = i;
      out.gap = gap;
    }
    out.worst_gap = std::max(out.worst_gap, gap);
  }
  return out;
}

std::string failure(const std::string& what, const Difference& d, double tolerance) {
  if (!d.finite) return fmt::format("{}: NaN or infinite at position {}", what, d.row);
  if (tolerance == 0 || d.max <= tolerance) return "";
  return fmt::format("{}: {:.3g} at position {} (tolerance {:.3g})", what, d.max, d.row, tolerance);
}

}  // namespace

Difference difference(std::span<const float> got, std::span<const float> expected, int64_t width) {
  Difference out;
  double squares = 0;
  for (size_t begin = 0; begin < got.size(); begin += static_cast<size_t>(width)) {
    const auto row = static_cast<int64_t>(begin) / width;
    const std::span<const float> e = expected.subspan(begin, static_cast<size_t>(width));
    const double size = std::max(1.0, root_mean_square(e));
    for (size_t i = 0; i < e.size(); ++i) {
      const auto g = static_cast<double>(got[begin + i]), x = static_cast<double>(e[i]);
      if (!std::isfinite(g) || !std::isfinite(x)) return {0, 0, row, false};
      const double d = std::abs(g - x) / std::max(size, std::abs(x));
      squares += d * d;
      if (d > out.max) {
        out.max = d;
        out.row = row;
      }
    }
  }
  if (!got.empty()) out.rms = std::sqrt(squares / static_cast<double>(got.size()));
  return out;
}

void Difference::join(const Difference& other) {
  if (!finite) return;
  if (!other.finite) {
    *this = other;
    return;
  }
  if (other.max > max) row = other.row;
  max = std::max(max, other.max);
  rms = std::max(rms, other.rms);
}

Comparison compare(const ModelSpec& spec, const Trace& got, const Trace& expected) {
  Comparison out;
  out.layers.resize(spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerComparison& layer = out.layers[i];
    layer.hidden = difference(got.hidden[i], expected.hidden[i], spec.d_model);
    const auto owner = expected.kv.find(static_cast<int64_t>(i));
    layer.owner = owner != expected.kv.end();
    if (!layer.owner) continue;
    const AttentionSpec& a = *spec.layers[i].attention;
    const Trace::Kv& mine = got.kv.at(static_cast<int64_t>(i));
    layer.k = difference(mine.k, owner->second.k, a.n_kv_heads * a.head_dim);
    layer.v = difference(mine.v, owner->second.v, a.n_kv_heads * a.head_dim);
  }
  out.final_norm = difference(got.final_norm, expected.final_norm, spec.d_model);
  out.logits = compare_logits(spec, got, expected);
  out.greedy = compare_greedy(got, expected, spec.vocab_size);
  return out;
}

LogitComparison compare_logits(const ModelSpec& spec, const Trace& got, const Trace& expected) {
  const int64_t vocab = spec.vocab_size;
  LogitComparison out;
  out.difference = difference(got.logits, expected.logits, vocab);
  out.difference.row += expected.first_logits;
  out.rows = static_cast<int64_t>(got.logits.size()) / vocab;
  if (!out.difference.finite) return out;
  for (size_t i = 0; i < got.logits.size(); ++i) {
    out.max_absolute = std::max(out.max_absolute, std::abs(static_cast<double>(got.logits[i]) -
                                                           static_cast<double>(expected.logits[i])));
  }
  for (int64_t r = 0; r < out.rows; ++r) {
    const auto row = [&](const Trace& trace) {
      return std::span(trace.logits).subspan(static_cast<size_t>(r * vocab), static_cast<size_t>(vocab));
    };
    const std::span<const float> p = row(expected), q = row(got);
    const double norm_p = log_sum_exp(p), norm_q = log_sum_exp(q), divergence = kl(p, norm_p, q, norm_q);
    out.kl_mean += divergence / static_cast<double>(out.rows);
    out.kl_max = std::max(out.kl_max, divergence);
    out.same_first_choice += best(p) == best(q) ? 1 : 0;
    const auto next = static_cast<size_t>(expected.first_logits + r + 1);
    if (next >= expected.prompt.size()) continue;
    const auto token = static_cast<size_t>(expected.prompt[next]);
    ++out.scored;
    out.logprob_sum += static_cast<double>(q[token]) - norm_q;
    out.expected_logprob_sum += static_cast<double>(p[token]) - norm_p;
  }
  return out;
}

std::string first_failure(const LogitComparison& logits, const Tolerances& tolerances) {
  const std::string text = failure("logits", logits.difference, tolerances.logits);
  if (!text.empty() || tolerances.mean_kl == 0 || logits.kl_mean <= tolerances.mean_kl) return text;
  return fmt::format("logits: mean KL {:.3g} nats (tolerance {:.3g})", logits.kl_mean, tolerances.mean_kl);
}

std::string first_failure(const Comparison& comparison, const Tolerances& tolerances) {
  for (size_t i = 0; i < comparison.layers.size(); ++i) {
    const LayerComparison& layer = comparison.layers[i];
    const std::string name = fmt::format("layer {}", i);
    for (const std::string& text :
         {failure(name + ", K", layer.k, tolerances.kv), failure(name + ", V", layer.v, tolerances.kv),
          failure(name + ", hidden state", layer.hidden, tolerances.hidden)}) {
      if (!text.empty()) return text;
    }
  }
  for (const std::string& text : {failure("final norm", comparison.final_norm, tolerances.hidden),
                                  first_failure(comparison.logits, tolerances)}) {
    if (!text.empty()) return text;
  }
  // A token may differ only where the reference itself hardly prefers its own.
  const GreedyComparison& greedy = comparison.greedy;
  constexpr double kLargestLogit = 32;  // of the two best: their tolerance is relative
  if (tolerances.logits > 0 && greedy.worst_gap > 2 * tolerances.logits * kLargestLogit) {
    return fmt::format("greedy text: parts at step {} over a gap of {:.3g}", *greedy.parts_at, greedy.gap);
  }
  return "";
}

}  // namespace lapidary
