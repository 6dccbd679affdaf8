#include "cli/kv/recompute_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/kv_types.h"
#include "cli/numbers.h"
#include "cli/table.h"

namespace lapidary {
namespace {

using kvlab::KvDifference;
using kvlab::Recomputation;
using kvlab::RecomputeReport;
using kvlab::RunResult;
using Piece = FunctionRef<std::string(int32_t)>;

std::string plural(int64_t n, std::string_view word) {
  return fmt::format("{} {}{}", grouped(n), word, n == 1 ? "" : "s");
}

std::string small(double x) {  // a difference
  return x == 0 ? "0" : fmt::format("{:.1e}", x);
}

std::string percent(int64_t equal, int64_t elements) {
  return elements == 0 ? "-" : fmt::format("{:.1f} %", kvlab::percent_equal(equal, elements));
}

std::string ulps_text(uint64_t ulps) {
  return ulps < 10'000'000 ? grouped(static_cast<int64_t>(ulps)) : fmt::format("{:.0e}", double(ulps));
}

std::string type_of(DType type) {
  return std::string(type == DType::i8 ? kv_type_name(type) : dtype_name(type));
}

std::string where(const std::optional<kvlab::Divergence>& first) {
  if (!first) return "none";
  if (first->layer < 0) return fmt::format("{}, position {}", first->op, first->position);
  return fmt::format("layer {}, {}, position {}", first->layer, first->op, first->position);
}

std::string summary_table(const RunResult& run, const Style& style) {
  const auto right = Align::right;
  TextTable table({{"computed again by", Align::left},
                   {"threads", right},
                   {"calls", right},
                   {"K/V same bits", right},
                   {"prompt", right},
                   {"decode", right},
                   {"max |dK|", right},
                   {"max |dV|", right},
                   {"max ulps", right},
                   {"logit rows", right},
                   {"max |dlogit|", right},
                   {"first to differ", Align::left},
                   {"flips", right}});
  const auto positions = static_cast<int64_t>(run.tokens.size());
  for (const Recomputation& r : run.recomputations) {
    const KvDifference kv = r.kv(), prompt = r.prompt(), decode = r.decode();
    table.add({r.name(), std::to_string(r.threads), grouped(r.calls), percent(kv.equal, kv.elements),
               percent(prompt.equal, prompt.elements), percent(decode.equal, decode.elements),
               small(kv.max_abs_k), small(kv.max_abs_v), ulps_text(kv.max_ulps),
               fmt::format("{}/{}", r.equal_logit_rows, positions), small(r.max_logit_difference),
               where(r.first), std::to_string(r.flips.size())});
  }
  return table.text(style);
}

std::string layer_table(const Recomputation& r, const Style& style) {
  const auto right = Align::right;
  TextTable table({{"layer", right},
                   {"K/V same bits", right},
                   {"prompt", right},
                   {"decode", right},
                   {"max |dK|", right},
                   {"max |dV|", right},
                   {"max ulps", right},
                   {"0 ulps", right},
                   {"1", right},
                   {"2", right},
                   {"more", right},
                   {"hidden same bits", right},
                   {"max |dh|", right}});
  for (const kvlab::LayerDifference& layer : r.layers) {
    const KvDifference kv = layer.all();
    const kvlab::Difference& hidden = r.hidden[static_cast<size_t>(layer.layer)];
    table.add({std::to_string(layer.layer), percent(kv.equal, kv.elements),
               percent(layer.prompt.equal, layer.prompt.elements),
               percent(layer.decode.equal, layer.decode.elements), small(kv.max_abs_k), small(kv.max_abs_v),
               ulps_text(kv.max_ulps), grouped(kv.histogram[0]), grouped(kv.histogram[1]),
               grouped(kv.histogram[2]), grouped(kv.histogram[3]), percent(hidden.equal, hidden.elements),
               small(hidden.max_abs)});
  }
  return table.text(style, "    ");
}

std::string flips_text(const RunResult& run, const Recomputation& r, Piece piece) {
  std::string out;
  const std::string type = type_of(run.facts.logits);
  for (const kvlab::Flip& flip : r.flips) {
    out += fmt::format(
        "    token {} (position {}): cached {} before {} by {:.4g} ({} {} ulp{}); computed again {} before "
        "{} by "
        "{:.4g} ({} ulp{})\n",
        flip.index, flip.position, piece(flip.cached.id), piece(flip.cached.second_id), flip.cached.gap(),
        ulps_text(flip.cached.gap_ulps), type, flip.cached.gap_ulps == 1 ? "" : "s",
        piece(flip.recomputed.id), piece(flip.recomputed.second_id), flip.recomputed.gap(),
        ulps_text(flip.recomputed.gap_ulps), flip.recomputed.gap_ulps == 1 ? "" : "s");
  }
  return out;
}

std::string differing_text(const RunResult& run, const RecomputeView& view, Piece piece, const Style& style) {
  std::vector<const Recomputation*> shown;
  for (const Recomputation& r : run.recomputations) {
    if (!r.same(static_cast<int64_t>(run.tokens.size()))) shown.push_back(&r);
  }
  const auto worse = [](const Recomputation* a, const Recomputation* b) {
    return a->kv().equal < b->kv().equal;
  };
  if (!view.every_layer && !shown.empty()) shown = {*std::min_element(shown.begin(), shown.end(), worse)};
  std::string out;
  for (const Recomputation* r : shown) {
    out += fmt::format("  {}, {}, by layer:\n", style.bold(r->name()), plural(r->threads, "thread"));
    out += layer_table(*r, style);
    if (!r->flips.empty()) out += "  tokens that flip:\n" + flips_text(run, *r, piece);
  }
  return out;
}

// The top two of every generated token: how close was it?
std::string choices_table(const RunResult& run, int64_t prompt_tokens, Piece piece, const Style& style) {
  const auto right = Align::right;
  TextTable table({{"token", right},
                   {"position", right},
                   {"picked", Align::left},
                   {"runner-up", Align::left},
                   {"gap", right},
                   {"ulps of " + type_of(run.facts.logits), right},
                   {"", Align::left}});
  const auto flips_at = [&](size_t i) {
    return std::count_if(run.recomputations.begin(), run.recomputations.end(), [&](const Recomputation& r) {
      return std::any_of(r.flips.begin(), r.flips.end(),
                         [&](const kvlab::Flip& flip) { return flip.index == static_cast<int64_t>(i) + 1; });
    });
  };
  for (size_t i = 0; i < run.generated.size(); ++i) {
    const kvlab::Choice& c = run.generated[i];
    const auto flips = flips_at(i);
    table.add({std::to_string(i + 1), std::to_string(prompt_tokens - 1 + static_cast<int64_t>(i)),
               piece(c.id), piece(c.second_id), fmt::format("{:.4g}", c.gap()), ulps_text(c.gap_ulps),
               flips == 0 ? "" : fmt::format("flips in {} of {}", flips, run.recomputations.size())});
  }
  return table.text(style);
}

std::string error_table(const RunResult& run, const std::string& reference, const Style& style) {
  if (!run.cached_error) return "";
  const auto right = Align::right;
  TextTable table({{"against the reference in " + reference, Align::left},
                   {"threads", right},
                   {"max error K", right},
                   {"V", right},
                   {"rms K/V", right},
                   {"max error hidden", right},
                   {"logits", right},
                   {"rms logits", right}});
  const auto add = [&](const std::string& name, int threads, const kvlab::TruthError& e) {
    const auto text = [](double x) { return fmt::format("{:.3g}", x); };
    table.add({name, threads == 0 ? "" : std::to_string(threads), text(e.max_k), text(e.max_v),
               text(e.rms_kv), text(e.max_hidden), text(e.max_logits), text(e.rms_logits)});
  };
  const auto positions = static_cast<int64_t>(run.tokens.size());
  add("the cached run, and what equals it", 0, *run.cached_error);
  for (const Recomputation& r : run.recomputations)
    if (!r.same(positions)) add(r.name(), r.threads, *r.error);
  return table.text(style);
}

std::string run_text(const RecomputeReport& report, const RunResult& run, const RecomputeView& view,
                     Piece piece, const Style& style) {
  std::string out =
      fmt::format("{}  {}; K {}, V {}, logits {}\n", style.bold(run.facts.name), run.facts.numeric_mode,
                  type_of(run.facts.keys), type_of(run.facts.values), type_of(run.facts.logits));
  if (run.facts.numeric_mode.find("a16/a8") != std::string::npos)
    out += style.dim(
               "  many rows take one int8 term of two: fewer bits, not only another order; "
               "--arithmetic f32 changes the order alone") +
           "\n";
  const RunResult& first = report.runs.front();
  if (&run != &first && run.tokens == first.tokens) {
    out += fmt::format("  picked the same tokens as {}\n\n", first.facts.name);
  } else {
    out += choices_table(run, report.prompt_tokens, piece, style) + "\n";
  }
  out += summary_table(run, style);
  const std::string differing = differing_text(run, view, piece, style);
  if (!differing.empty()) out += "\n" + differing;
  const std::string errors = error_table(run, report.reference_type, style);
  if (!errors.empty()) out += "\n" + errors;
  return out + "\n";
}

}  // namespace

std::string recompute_text(const RecomputeReport& report, const RecomputeView& view, Piece piece,
                           const Style& style) {
  std::string out = fmt::format("{}: {} of prompt, {}, {} cached; {} K/V elements in {} that store\n\n",
                                terminal_safe(view.model), plural(report.prompt_tokens, "token"),
                                plural(report.decode_calls, "decode call"),
                                plural(report.positions(), "position"), grouped(report.kv_elements()),
                                plural(static_cast<int64_t>(report.owner_layers.size()), "layer"));
  for (const RunResult& run : report.runs) out += run_text(report, run, view, piece, style);
  if (!report.reference_missing.empty())
    out += fmt::format("no comparison with the truth: {}\n", report.reference_missing);
  for (const RunResult& run : report.runs) {
    const std::string verdict = run.verdict() + "\n";
    out += run.passed() ? style.bold(verdict) : style.red(verdict);
    if (const std::string distance = run.distance(); !distance.empty()) out += distance + "\n";
  }
  return out;
}

std::string recompute_csv(const RecomputeReport& report) {
  std::string out =
      "run,numeric_mode,chunk,batch,threads,calls,layer,elements,equal,equal_percent,prompt_elements,"
      "prompt_equal,decode_elements,decode_equal,max_abs_diff_k,max_abs_diff_v,max_ulps,ulps_0,ulps_1,ulps_2,"
      "ulps_more,hidden_elements,hidden_equal,hidden_max_abs_diff\n";
  for (const RunResult& run : report.runs)
    for (const Recomputation& r : run.recomputations)
      for (const kvlab::LayerDifference& layer : r.layers) {
        const KvDifference kv = layer.all();
        const kvlab::Difference& hidden = r.hidden[static_cast<size_t>(layer.layer)];
        out += fmt::format("{},\"{}\",{},{},{},{},{},{},{},{},", run.facts.name, run.facts.numeric_mode,
                           r.chunk, r.batch, r.threads, r.calls, layer.layer, kv.elements, kv.equal,
                           kvlab::percent_equal(kv.equal, kv.elements));
        out += fmt::format("{},{},{},{},{},{},{},{},{},{}\n", layer.prompt.elements, layer.prompt.equal,
                           layer.decode.elements, layer.decode.equal, kv.max_abs_k, kv.max_abs_v, kv.max_ulps,
                           fmt::join(kv.histogram, ","), hidden.elements,
                           fmt::format("{},{}", hidden.equal, hidden.max_abs));
      }
  return out;
}

}  // namespace lapidary
