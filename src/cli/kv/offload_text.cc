#include "cli/kv/offload_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "cli/numbers.h"
#include "cli/table.h"

namespace lapidary {

using namespace kvlab;

namespace {

using kv_state::LayerEntry;

std::string short_time(double seconds) {
  return seconds < 9.95e-4 ? fmt::format("{:.0f} µs", seconds * 1e6) : seconds_text(seconds);
}
std::string ratio_text(double ratio) {
  return fmt::format("{:.{}f}×", ratio, ratio < 9.95 ? 2 : ratio < 99.5 ? 1 : 0);
}
std::string giga(double bytes, double seconds) {
  return fmt::format("{:.3g}", bytes / seconds / 1e9);
}
std::string plural(int64_t n, std::string_view what) {
  return fmt::format("{} {}{}", grouped(n), what, n == 1 ? "" : "s");
}

// Hashes in messages, cut to what tells them apart.
std::string with_short_hashes(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && std::isxdigit(static_cast<unsigned char>(text[end])) != 0) end++;
    if (end - at == 32) {
      out += text.substr(at, 8) + "…";
      at = end;
    } else {
      end = std::max(end, at + 1);
      out += text.substr(at, end - at);
      at = end;
    }
  }
  return out;
}

std::string kind_text(const LayerEntry& e) {
  const std::string window = e.window > 0 ? fmt::format("window {}", e.window) : "global";
  switch (e.kind) {
    case kv_state::kNoAttention: return "no attention";
    case kv_state::kOwner: return "owner, " + window;
    default: return fmt::format("reads layer {}, {}", e.owner, window);
  }
}
std::string rope_text(const LayerEntry& e) {
  return fmt::format("{} {:g}", rope_kind_name(static_cast<RopeKind>(e.rope_kind)), e.rope_theta);
}
std::string span_text(const LayerFacts& layer) {
  if (layer.positions == 0) return "-";
  const auto first = static_cast<int64_t>(layer.entry.first);
  return fmt::format("{} to {}", first, first + layer.positions - 1);
}

std::string every_layer(const StateFacts& f, const Style& style) {
  TextTable table({{"layer", Align::right},
                   {"kind", Align::left},
                   {"kv", Align::right},
                   {"head", Align::right},
                   {"rope", Align::left},
                   {"positions", Align::left},
                   {"pages", Align::right},
                   {"bytes", Align::right},
                   {"keys xxh3", Align::left},
                   {"values xxh3", Align::left}});
  for (const LayerFacts& layer : f.layers) {
    const LayerEntry& e = layer.entry;
    const bool owner = e.kind == kv_state::kOwner, attends = e.kind != kv_state::kNoAttention;
    table.add({std::to_string(e.layer), kind_text(e), attends ? std::to_string(e.n_kv_heads) : "-",
               attends ? std::to_string(e.head_dim) : "-", attends ? rope_text(e) : "-", span_text(layer),
               std::to_string(layer.pages.size()), grouped(layer.kv_bytes),
               owner ? hash_text(layer.keys).substr(0, 16) : "-",
               owner ? hash_text(layer.values).substr(0, 16) : "-"});
  }
  return table.text(style);
}

// One line for layers that differ in their numbers only.
std::string kinds_of_layers(const StateFacts& f, const Style& style) {
  struct Kind {
    std::vector<std::string> cells;
    int64_t layers = 0, pages = 0, bytes = 0;
  };
  std::vector<Kind> kinds;
  for (const LayerFacts& layer : f.layers) {
    const LayerEntry& e = layer.entry;
    const bool attends = e.kind != kv_state::kNoAttention;
    std::vector<std::string> cells{kind_text(e), attends ? std::to_string(e.n_kv_heads) : "-",
                                   attends ? std::to_string(e.head_dim) : "-", span_text(layer),
                                   layer.positions > 0 ? grouped(layer.position_bytes) : "-"};
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) { return k.cells == cells; });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {std::move(cells), 0, 0, 0});
    kind->layers++;
    kind->pages += static_cast<int64_t>(layer.pages.size());
    kind->bytes += layer.kv_bytes;
  }
  TextTable table({{"layers", Align::right},
                   {"kind", Align::left},
                   {"kv", Align::right},
                   {"head", Align::right},
                   {"positions", Align::left},
                   {"B/position", Align::right},
                   {"pages", Align::right},
                   {"bytes", Align::right}});
  for (const Kind& kind : kinds) {
    std::vector<std::string> cells{std::to_string(kind.layers)};
    cells.insert(cells.end(), kind.cells.begin(), kind.cells.end());
    cells.push_back(grouped(kind.pages));
    cells.push_back(grouped(kind.bytes));
    table.add(cells);
  }
  return table.text(style);
}

std::string state_text(const StateFacts& f, bool layers, const Style& style) {
  const auto length = static_cast<int64_t>(f.header.length);
  const std::string_view arithmetic(f.header.arithmetic, sizeof f.header.arithmetic);
  std::string out =
      style.bold("the state") + fmt::format(": {} B for {}\n", grouped(f.bytes), plural(length, "token"));
  out += fmt::format("  format version {}, model {}, {}, kv {}, pages of {} positions\n", f.header.version,
                     hash_text(f.header.model).substr(0, 16),
                     terminal_safe(arithmetic.substr(0, arithmetic.find('\0'))), kv_types_name(f.types),
                     f.header.block);
  out += fmt::format(
      "  {} B header + {} B map of layers + {} B token ids + {} B attachment + {} B K and V + {} B checksums "
      "of "
      "{}\n",
      sizeof(kv_state::Header), grouped(f.layer_map_bytes), grouped(f.token_bytes),
      grouped(f.attachment_bytes), grouped(f.kv_bytes), grouped(f.checksum_bytes), plural(f.pages, "page"));
  return out + (layers ? every_layer(f, style) : kinds_of_layers(f, style));
}

std::string sharing_text(const StateFacts& f) {
  const int64_t needed = f.needed_kv_bytes, more = f.kv_bytes - needed;
  std::string out = fmt::format("  K and V: {} B, as the formula says. {} B are needed", grouped(f.kv_bytes),
                                grouped(needed));
  out += more == 0
             ? "; nothing more is saved.\n"
             : fmt::format(
                   "; {} B more are whole pages at the windows' far ends and what is kept behind them.\n",
                   grouped(more));
  if (f.shared_bytes_saved > 0)
    out += fmt::format(
        "  only owners are saved: layers that read another's K and V would add {} B of their own ({:.2f}× in "
        "all).\n",
        grouped(f.shared_bytes_saved),
        static_cast<double>(f.kv_bytes + f.shared_bytes_saved) / static_cast<double>(f.kv_bytes));
  return out;
}

std::string restart_text(const OffloadReport& r) {
  const auto earliest = static_cast<int64_t>(r.state.header.earliest_restart);
  if (earliest == 0)
    return fmt::format("  earliest restart: every length from 0 to {} is exact.\n", r.prompt_tokens);
  std::string out = fmt::format(
      "  earliest restart: {} of {}. Exact are 0 and every length from there on; before it, a window has "
      "lost "
      "positions.\n",
      grouped(earliest), grouped(r.prompt_tokens));
  if (!r.replay) return out;
  const ReplayFacts& p = *r.replay;
  int64_t first = p.boundary, end = 0;
  for (const ReplayFacts::Lost& lost : p.lost) {
    first = std::min(first, lost.first);
    end = std::max(end, lost.first + lost.positions);
  }
  out += fmt::format(
      "  going on from {} would need positions {} to {} of {}: --keep-behind {} keeps them for {} B "
      "more; without, {} are computed again.\n",
      grouped(p.boundary), grouped(first), grouped(end - 1),
      plural(static_cast<int64_t>(p.lost.size()), "layer"), p.keep_behind, grouped(p.extra_kv_bytes),
      plural(p.recompute_tokens, "token"));
  return out;
}

// Checks by name, and how each went on every way. What failed is told in full.
std::string checks_text(const std::vector<OffloadCheck>& checks, const Style& style) {
  std::vector<std::string> ways, names;
  for (const OffloadCheck& c : checks) {
    if (!c.way.empty() && std::find(ways.begin(), ways.end(), c.way) == ways.end()) ways.push_back(c.way);
    if (std::find(names.begin(), names.end(), c.name) == names.end()) names.push_back(c.name);
  }
  std::vector<std::pair<std::string, Align>> columns{{"check", Align::left}};
  for (const std::string& way : ways) columns.emplace_back(way, Align::left);
  if (ways.empty()) columns.emplace_back("", Align::left);
  columns.emplace_back("", Align::left);
  TextTable table(columns);
  std::string failed;
  for (const std::string& name : names) {
    std::vector<std::string> cells{name};
    cells.resize(columns.size());
    for (const OffloadCheck& c : checks) {
      if (c.name != name) continue;
      const auto way = std::find(ways.begin(), ways.end(), c.way);
      cells[c.way.empty() ? 1 : 1 + static_cast<size_t>(way - ways.begin())] = c.passed ? "ok" : "FAILED";
      if (cells.back().empty()) cells.back() = terminal_safe(with_short_hashes(c.detail));
      if (!c.passed)
        failed += style.red("  FAILED") + fmt::format(": {}{}{}: {}\n", c.name, c.way.empty() ? "" : ", ",
                                                      c.way, terminal_safe(c.detail));
    }
    table.add(cells);
  }
  return table.text(style) + failed;
}

std::string tiers_text(const OffloadReport& r, const Style& style) {
  TextTable table({{"tier", Align::left},
                   {"holds", Align::right},
                   {"pack", Align::right},
                   {"store", Align::right},
                   {"save GB/s", Align::right},
                   {"load", Align::right},
                   {"unpack", Align::right},
                   {"restore GB/s", Align::right},
                   {"", Align::left}});
  const auto bytes = static_cast<double>(r.state.bytes);
  for (const TierTimes& t : r.tiers) {
    std::string note = t.cold ? "the system was asked to forget the file" : t.what;
    if (t.cached_share)
      note += fmt::format("; {} {:.0f} % of it in memory as the load began", t.cold ? "at most" : "at least",
                          100 * *t.cached_share);
    table.add({t.way, grouped(t.stored_bytes) + " B", short_time(t.pack), short_time(t.store),
               giga(bytes, t.pack + t.store), short_time(t.load), short_time(t.unpack),
               giga(bytes, t.load + t.unpack), note});
  }
  return table.text(style);
}

std::string mutations_text(const OffloadReport& r, const Style& style) {
  const MutationCounts counts = count_mutations(r.mutations);
  std::string out =
      style.bold("damage on purpose") +
      fmt::format(
          ": {} tried, {} caught and named, {} caught under another name, {} missed, {} changed "
          "nothing\n",
          counts.tried, counts.caught, counts.misnamed, counts.missed, counts.changed_nothing);
  std::string group;
  TextTable table({{"", Align::left},
                   {"at byte", Align::right},
                   {"", Align::left},
                   {"what the refusal says", Align::left}});
  for (const Mutation& m : r.mutations) {
    if (m.group != group) table.add({m.group, "", "", ""});
    group = m.group;
    std::string said = terminal_safe(with_short_hashes(m.message));
    for (const std::string_view prefix : {"damaged state: damaged: ", "damaged state: "})
      if (said.starts_with(prefix)) said.erase(0, prefix.size());
    const bool bad = m.verdict == Mutation::Verdict::missed || m.verdict == Mutation::Verdict::misnamed;
    table.add({"  " + m.name, grouped(m.at_byte),
               bad ? fmt::format("{}!", verdict_name(m.verdict)) : std::string(verdict_name(m.verdict)),
               said});
  }
  return out + table.text(style);
}

std::string break_even_text(const BreakEven& b, const std::vector<CurvePoint>& curve) {
  switch (b.verdict) {
    case BreakEven::Verdict::always:
      return fmt::format("  {}: loading wins from the shortest length on ({}).\n", b.way,
                         plural(curve.front().length, "token"));
    case BreakEven::Verdict::never:
      return fmt::format("  {}: loading loses up to the longest length ({}).\n", b.way,
                         plural(curve.back().length, "token"));
    case BreakEven::Verdict::crosses:
      return fmt::format(
          "  {}: loading wins from about {} on, by a straight line between two measured lengths.\n", b.way,
          plural(std::llround(b.length.value_or(0)), "token"));
  }
  return "";
}

std::string curve_text(const OffloadReport& r, const Style& style) {
  std::string out =
      style.bold("computing again against loading") +
      fmt::format(
          ": medians of {}; in brackets the speed-up of the cache alone, and to the first token "
          "with {} more\n",
          r.repeats, plural(r.suffix_tokens, "token"));
  std::vector<std::pair<std::string, Align>> columns{{"tokens", Align::right},   {"state", Align::right},
                                                     {"computed", Align::right}, {"pays from", Align::right},
                                                     {"suffix", Align::right},   {"in engine", Align::right}};
  for (const CurvePoint::Reload& way : r.curve.front().reload) columns.emplace_back(way.way, Align::right);
  TextTable table(columns);
  bool exact = true;
  for (const CurvePoint& point : r.curve) {
    std::vector<std::string> cells{
        grouped(point.length),       bytes_text(point.state_bytes),
        short_time(point.recompute), fmt::format("{:.2g} GB/s", point.break_even_bytes_per_second() / 1e9),
        short_time(point.suffix),    short_time(point.fork)};
    for (const CurvePoint::Reload& way : point.reload) {
      cells.push_back(
          fmt::format("{} ({}, {})", short_time(way.seconds), ratio_text(point.recompute / way.seconds),
                      ratio_text((point.recompute + point.suffix) / (way.seconds + point.suffix))));
      exact = exact && way.same_logits;
    }
    table.add(cells);
  }
  out += table.text(style);
  out +=
      exact ? "  at every length the logits behind the suffix are those of the computed cache, bit for bit.\n"
            : style.red(
                  "  FAILED: at some length the logits behind the suffix are not those of the computed "
                  "cache.\n");
  for (const BreakEven& b : r.break_even) out += break_even_text(b, r.curve);
  return out;
}

std::string claim_text(const OffloadReport& r, const Style& style) {
  std::string out = style.bold("what a speed-up leaves out") +
                    fmt::format(": six facts, at {}\n", plural(r.curve.back().length, "token"));
  for (const ClaimFact& fact : r.claim) {
    out += fmt::format("  ({}) {}\n", fact.letter, style.bold(fact.title));
    for (const std::string& line : fact.lines) out += "      " + line + "\n";
  }
  return out;
}

std::string head_text(const OffloadView& view, const std::string& what, const Style& style) {
  return fmt::format("{}: {}\n{}\n", style.bold(terminal_safe(view.model)), what,
                     style.dim(fmt::format("  {}; {}", view.numeric_mode, plural(view.threads, "thread"))));
}

}  // namespace

std::string offload_text(const OffloadReport& r, const OffloadView& view, const Style& style) {
  std::string out = head_text(view,
                              fmt::format("{} saved, overwritten with NaN, restored, {} more decoded",
                                          plural(r.prompt_tokens, "token"), grouped(r.suffix_tokens)),
                              style);
  out += "\n" + state_text(r.state, view.every_layer, style) + sharing_text(r.state) + restart_text(r);
  out += "\n" + style.bold("there and back") + "\n" + checks_text(r.checks, style);
  out += "\n" + style.bold("speed") +
         fmt::format(": medians of {}; GB/s of the state's {} B\n", r.repeats, grouped(r.state.bytes)) +
         tiers_text(r, style);
  if (!r.mutations.empty()) out += "\n" + mutations_text(r, style);
  if (!r.curve.empty()) out += "\n" + curve_text(r, style);
  if (!r.claim.empty()) out += "\n" + claim_text(r, style);
  const auto failed =
      std::count_if(r.checks.begin(), r.checks.end(), [](const OffloadCheck& c) { return !c.passed; });
  const MutationCounts counts = count_mutations(r.mutations);
  out += fmt::format("\n{}: {} of {} checks", r.passed() ? style.bold("passed") : style.red("FAILED"),
                     static_cast<int64_t>(r.checks.size()) - failed, r.checks.size());
  if (counts.tried > 0)
    out += fmt::format("; {} of {} kinds of damage refused and named", counts.caught,
                       counts.tried - counts.changed_nothing);
  return out + "\n";
}

std::string state_file_text(const StateFileReport& r, const OffloadView& view, const Style& style) {
  std::string out = head_text(view, "a saved state, checked and computed again", style);
  if (!r.error.empty()) return out + style.red("refused") + ": " + terminal_safe(r.error) + "\n";
  out += "\n" + state_text(*r.state, true, style);
  const auto earliest = static_cast<int64_t>(r.state->header.earliest_restart);
  out += fmt::format("  earliest restart: {}\n", grouped(earliest));
  out += fmt::format("  attachment: {}\n", terminal_safe(r.attachment.substr(0, 400)));
  out += "\n" + checks_text(r.checks, style);
  return out + fmt::format("\n{}\n", r.passed() ? style.bold("passed") : style.red("FAILED"));
}

}  // namespace lapidary
