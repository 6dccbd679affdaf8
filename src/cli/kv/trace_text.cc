#include "cli/kv/trace_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/error.h"
#include "base/quote.h"
#include "cli/inspect.h"
#include "cli/kv/checks_text.h"
#include "cli/numbers.h"
#include "cli/table.h"

namespace lapidary {
namespace {

using kvlab::CacheSpan;
using kvlab::SeenShape;
using kvlab::Token;
using kvlab::Trace;
using kvlab::TraceCall;
using kvlab::TraceCallLayer;

const AttentionSpec& attention_of(const Trace& trace, int64_t layer) {
  return *trace.spec.layers[static_cast<size_t>(layer)].attention;
}

std::string token_text(const Token& token) {
  return token.piece.empty() ? std::to_string(token.id)
                             : fmt::format("{} {}", token.id, lapidary::quoted(token.piece));
}

// What is fed at a glance: the pieces, or their ids, as far as a line goes.
std::string fed_text(const std::vector<Token>& tokens) {
  if (tokens.size() == 1) return token_text(tokens.front());
  constexpr size_t kMost = 6;
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(tokens.size(), kMost); ++i)
    parts.push_back(tokens[i].piece.empty() ? std::to_string(tokens[i].id)
                                            : lapidary::quoted(tokens[i].piece));
  if (tokens.size() > kMost) parts.emplace_back("…");
  return fmt::format("{} tokens {}", grouped(static_cast<int64_t>(tokens.size())), fmt::join(parts, " "));
}

std::string positions_text(const TraceCall& call) {
  return call.after - call.before == 1 ? std::to_string(call.before)
                                       : fmt::format("{}-{}", call.before, call.after - 1);
}

std::string growth_text(const TraceCall& call) {
  return fmt::format("KV {} -> {} (+{} B)", call.before, call.after, grouped(call.kv_written_bytes));
}

std::string bare(const SeenShape& shape) {
  return shape.rows == 0 ? "-" : fmt::format("[1,{},{}]", shape.rows, shape.width);
}

std::string taken_apart(const SeenShape& shape, int64_t head_dim) {
  const int64_t heads = shape.width / head_dim;
  return fmt::format("{} = 1 × {} tok × {} head{} × {}", bare(shape), shape.rows, heads,
                     heads == 1 ? "" : "s", head_dim);
}

std::string owner_mark(const Trace& trace, int64_t layer) {
  const int64_t owner = attention_of(trace, layer).kv_owner;
  return owner == layer ? "own KV" : fmt::format("no KV of its own, reads layer {}'s", owner);
}

// What the window does to a sequence that is so long now: "window 512: 512 of 700 in sight, 188 evicted".
std::string window_mark(int64_t window, int64_t length, int64_t evicted) {
  if (window == 0) return fmt::format("all {} in sight", grouped(length));
  const int64_t in_sight = std::min(window, length), behind = length - in_sight;
  std::string text = fmt::format("window {}: {} of {} in sight", window, in_sight, grouped(length));
  if (behind == 0) return text;
  if (evicted > 0) text += fmt::format(", {} evicted", std::min(evicted, behind));
  if (behind > evicted) text += fmt::format(", {} past it in a page still in use", behind - evicted);
  return text;
}

// Layers that this call treated alike.
struct Kind {
  std::vector<int64_t> layers;
  const TraceCallLayer* first = nullptr;
};

bool alike(const Trace& trace, const TraceCallLayer& a, const TraceCallLayer& b) {
  AttentionSpec left = attention_of(trace, a.layer), right = attention_of(trace, b.layer);
  const bool owners = left.kv_owner == a.layer && right.kv_owner == b.layer;
  if (owners) left.kv_owner = right.kv_owner;
  return left.kv_owner == right.kv_owner && left.window == right.window && left.n_heads == right.n_heads &&
         left.n_kv_heads == right.n_kv_heads && left.head_dim == right.head_dim &&
         left.k_eq_v == right.k_eq_v && a.x == b.x && a.q == b.q && a.k == b.k && a.v == b.v &&
         a.stored_k == b.stored_k && a.after.first == b.after.first && a.passes == b.passes;
}

std::vector<Kind> kinds_of(const Trace& trace, const TraceCall& call) {
  std::vector<Kind> kinds;
  for (const TraceCallLayer& layer : call.layers) {
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const Kind& k) { return alike(trace, *k.first, layer); });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), Kind{{}, &layer});
    kind->layers.push_back(layer.layer);
  }
  return kinds;
}

std::string cache_line(const Trace& trace, const TraceCallLayer& layer) {
  const AttentionSpec& a = attention_of(trace, layer.layer);
  const auto shape = [&](const CacheSpan& span) {
    return fmt::format("[1,{},{},{}]", a.n_kv_heads, span.held(), a.head_dim);
  };
  std::string text = fmt::format("K and V {} -> {}", shape(layer.before), shape(layer.after));
  if (layer.after.first > 0)
    text += fmt::format(", positions {} to {}", grouped(layer.after.first), grouped(layer.after.end - 1));
  return text;
}

std::string kind_text(const Trace& trace, const TraceCall& call, const Kind& kind) {
  const TraceCallLayer& l = *kind.first;
  const AttentionSpec& a = attention_of(trace, l.layer);
  const bool owner = a.kv_owner == l.layer;
  std::string out =
      fmt::format("    layer{} {}: {}; {}\n", kind.layers.size() == 1 ? "" : "s", layer_ranges(kind.layers),
                  owner_mark(trace, l.layer), window_mark(a.window, call.after, l.after.first));
  const auto row = [&](std::string_view name, const std::string& text) {
    out += fmt::format("      {:>5} {}\n", name, text);
  };
  if (l.x.rows == 0) {
    row("", "not run: no later layer stores KV, and this call's logits are not wanted");
    return out;
  }
  row("x", bare(l.x) + " in");
  if (l.q.rows == 0) {
    row("q", "not made: no later layer stores KV, and this call's logits are not wanted");
  } else {
    row("q", taken_apart(l.q, a.head_dim) + (l.q.rows < static_cast<int64_t>(call.fed.size())
                                                 ? ", the last token's alone (no later layer stores KV)"
                                                 : ""));
  }
  if (owner) {
    row("k", taken_apart(l.k, a.head_dim));
    row("v", a.k_eq_v
                 ? taken_apart(l.stored_v, a.head_dim) + ", made from k: there is no projection of its own"
                 : taken_apart(l.v, a.head_dim));
  }
  row("cache", cache_line(trace, l));
  if (l.query_position >= 0)
    row("keys",
        fmt::format("{} attended by the query at position {}{}", grouped(l.keys_attended), l.query_position,
                    l.passes ? fmt::format(", each read {}",
                                           *l.passes == 1 ? "once" : fmt::format("{} times", *l.passes))
                             : ""));
  return out;
}

std::string layers_table(const Trace& trace, const TraceCall& call, const std::vector<int64_t>& layers,
                         const Style& style) {
  TextTable table({{"layer", Align::right},
                   {"KV", Align::left},
                   {"window", Align::right},
                   {"q", Align::left},
                   {"k", Align::left},
                   {"v", Align::left},
                   {"cache", Align::right},
                   {"positions", Align::right},
                   {"keys", Align::right},
                   {"written", Align::right},
                   {"read", Align::right}});
  for (const TraceCallLayer& l : call.layers) {
    if (std::find(layers.begin(), layers.end(), l.layer) == layers.end()) continue;
    const AttentionSpec& a = attention_of(trace, l.layer);
    table.add({std::to_string(l.layer), a.kv_owner == l.layer ? "own" : fmt::format("reads {}'s", a.kv_owner),
               a.window > 0 ? grouped(a.window) : "-", bare(l.q), bare(l.k),
               a.k_eq_v && l.stored_v.rows > 0 ? bare(l.stored_v) + " =k" : bare(l.v),
               fmt::format("{} -> {}", l.before.held(), l.after.held()),
               l.after.held() == 0 ? "-" : fmt::format("{}-{}", l.after.first, l.after.end - 1),
               grouped(l.keys_attended), grouped(l.kv_written_bytes), grouped(l.kv_read_bytes)});
  }
  return table.text(style, "    ");
}

std::string call_text(const Trace& trace, const TraceCall& call, const TraceView& view, const Style& style) {
  std::string out = style.bold(fmt::format("call {}, {}: {}", call.index, call.prefill ? "prefill" : "decode",
                                           growth_text(call))) +
                    "\n";
  out += fmt::format("  fed {} at position{} {}\n", fed_text(call.fed), call.fed.size() == 1 ? "" : "s",
                     positions_text(call));
  if (view.layers) {
    out += layers_table(trace, call, *view.layers, style);
  } else {
    for (const Kind& kind : kinds_of(trace, call)) out += kind_text(trace, call, kind);
  }
  if (call.picked) {
    out += fmt::format("  picked {}, logit {:.4f}", token_text(call.picked->token), call.picked->logit);
    if (call.picked->runner_up)
      out += fmt::format(", {:.4f} ({} float steps) above {}", call.picked->gap,
                         grouped(call.picked->gap_ulps), token_text(*call.picked->runner_up));
    out += "\n";
  }
  return out + "\n";
}

// The calls whose shapes are worth a look: the first and the last of the prefill and the first decode call.
bool shows_shapes(const Trace& trace, const TraceCall& call, const TraceView& view) {
  const int64_t prefills = trace.prefill_calls();
  return view.every_call || call.index == 0 || call.index == prefills - 1 || call.index == prefills;
}

std::string calls_table(const Trace& trace, const Style& style) {
  TextTable table({{"call", Align::right},
                   {"", Align::left},
                   {"fed", Align::left},
                   {"positions", Align::right},
                   {"KV", Align::right},
                   {"written", Align::right},
                   {"KV read", Align::right},
                   {"weights read", Align::right},
                   {"picked", Align::left},
                   {"logit", Align::right},
                   {"gap", Align::right},
                   {"time", Align::right}});
  for (const TraceCall& call : trace.calls) {
    const auto& picked = call.picked;
    table.add(
        {std::to_string(call.index), call.prefill ? "prefill" : "decode",
         call.fed.size() == 1 ? token_text(call.fed.front())
                              : fmt::format("{} tokens", grouped(static_cast<int64_t>(call.fed.size()))),
         positions_text(call), fmt::format("{} -> {}", call.before, call.after),
         fmt::format("+{} B", grouped(call.kv_written_bytes)), bytes_text(call.kv_read_bytes),
         bytes_text(call.weights_read_bytes + call.table_rows_read_bytes),
         picked ? token_text(picked->token) : "-", picked ? fmt::format("{:.3f}", picked->logit) : "-",
         picked && picked->runner_up ? fmt::format("{:.3f}", picked->gap) : "-", seconds_text(call.seconds)});
  }
  return table.text(style);
}

std::string prompt_text(const Trace& trace, const TraceView& view, const Style& style) {
  constexpr size_t kMost = 12;
  const size_t n = trace.prompt.size();
  std::string how = "raw text, no chat template";
  if (view.mode == "chat") how = "in the chat template";
  if (view.mode == "ids") how = "given as ids";
  std::string out =
      fmt::format("prompt: {} token{}, {}\n", grouped(static_cast<int64_t>(n)), n == 1 ? "" : "s", how);
  TextTable table({{"position", Align::right}, {"id", Align::right}, {"piece", Align::left}});
  for (size_t i = 0; i < n; ++i) {
    if (n > kMost && i == kMost - 3) {
      table.add({"…", "", ""});
      i = n - 2;
    }
    const Token& token = trace.prompt[i];
    table.add({std::to_string(i), std::to_string(token.id),
               token.piece.empty() ? "-" : lapidary::quoted(token.piece)});
  }
  return out + table.text(style);
}

std::string accounting_text(const Trace& trace) {
  const int64_t decodes = trace.decode_calls(), prefills = trace.prefill_calls();
  const auto prompt = static_cast<int64_t>(trace.prompt.size());
  const std::vector<Token> picked = trace.picked();
  std::string out = fmt::format(
      "{} decode call{} -> {} token{}: the prefill ({}) already picks the first one, {}, and each decode "
      "call\n"
      "feeds the token picked last and picks one more. The last one, {}, was picked and never fed: it has\n"
      "no entry in the cache, which ends at {} + {} = {} positions, not {}.\n",
      decodes, decodes == 1 ? "" : "s", picked.size(), picked.size() == 1 ? "" : "s",
      prefills == 1 ? "1 call" : fmt::format("{} calls, the last of them", prefills),
      token_text(picked.front()), token_text(picked.back()), prompt, decodes, trace.length(),
      trace.length() + 1);
  switch (trace.end) {
    case kvlab::TraceEnd::calls: break;
    case kvlab::TraceEnd::stop_token:
      out += fmt::format("It ended there because {} is a stop token of the model (--ignore-eos goes on).\n",
                         token_text(picked.back()));
      break;
    case kvlab::TraceEnd::context:
      out += fmt::format("It ended there because the context of {} positions is full.\n",
                         grouped(trace.context));
      break;
  }
  return out;
}

// What the owners hold at the end, alike ones together.
std::string cache_table(const Trace& trace, const Style& style) {
  struct Row {
    std::vector<int64_t> layers;
    kvlab::TraceSight sight;
    int64_t position_bytes = 0, pages = 0, page_bytes = 0, held = 0;
  };
  std::vector<Row> rows;
  for (const kvlab::TraceSight& sight : trace.sight) {
    Row row{{sight.layer}, sight, trace.position_bytes[static_cast<size_t>(sight.layer)]};
    for (const kvlab::TracePage& page : trace.pages) {
      if (page.layer != sight.layer) continue;
      ++row.pages;
      row.page_bytes += page.bytes;
      row.held += page.positions;
    }
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& r) {
      return r.sight.window == sight.window && r.position_bytes == row.position_bytes &&
             r.pages == row.pages && r.page_bytes == row.page_bytes && r.sight.evicted == sight.evicted;
    });
    if (same == rows.end()) {
      rows.push_back(std::move(row));
    } else {
      same->layers.push_back(sight.layer);
    }
  }
  TextTable table({{"owners", Align::left},
                   {"window", Align::right},
                   {"held", Align::right},
                   {"B/position", Align::right},
                   {"K and V", Align::right},
                   {"pages", Align::right},
                   {"page bytes", Align::right},
                   {"", Align::left}});
  for (const Row& row : rows) {
    const auto n = static_cast<int64_t>(row.layers.size());
    table.add({fmt::format("{} ({})", layer_ranges(row.layers), n),
               row.sight.window > 0 ? grouped(row.sight.window) : "-",
               fmt::format("{}-{}", row.sight.evicted, row.sight.length - 1), grouped(row.position_bytes),
               grouped(n * row.held * row.position_bytes), grouped(n * row.pages),
               grouped(n * row.page_bytes),
               window_mark(row.sight.window, row.sight.length, row.sight.evicted)});
  }
  return table.text(style);
}

}  // namespace

std::vector<int64_t> parse_layers(const std::string& list, int64_t n_layers) {
  std::vector<int64_t> layers;
  if (list == "all") {
    layers.resize(static_cast<size_t>(n_layers));
    std::iota(layers.begin(), layers.end(), 0);
    return layers;
  }
  const auto number = [&](std::string_view word) {
    int64_t value = -1;
    const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
    ensure(problem == std::errc{} && end == word.data() + word.size() && value >= 0 && value < n_layers,
           ErrorCode::usage, "--layers: {} is no layer: expected all, or layers 0 to {} as in 0,3,5-9",
           lapidary::quoted(word), n_layers - 1);
    return value;
  };
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string_view part = std::string_view(list).substr(at, end - at);
    const size_t dash = part.find('-', 1);
    const int64_t first = number(part.substr(0, dash)),
                  last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    ensure(first <= last, ErrorCode::usage, "--layers: {} runs backwards", lapidary::quoted(part));
    for (int64_t layer = first; layer <= last; ++layer)
      if (std::find(layers.begin(), layers.end(), layer) == layers.end()) layers.push_back(layer);
    at = end + 1;
  }
  std::sort(layers.begin(), layers.end());
  return layers;
}

std::string trace_text(const Trace& trace, const TraceView& view, const Style& style) {
  std::string out =
      fmt::format("{}  {} layers {}, KV in {}: {} B a position\n", style.bold(terminal_safe(view.model)),
                  trace.spec.n_layers(), layer_pattern(trace.spec), kv_types_name(trace.kv_dtype),
                  grouped(trace.bytes_per_position()));
  out += prompt_text(trace, view, style) + "\n";
  int64_t skipped = 0;
  for (const TraceCall& call : trace.calls) {
    if (shows_shapes(trace, call, view)) {
      out += call_text(trace, call, view, style);
    } else {
      ++skipped;
    }
  }
  if (skipped > 0)
    out += style.dim(
        fmt::format("The other {} calls look the same but for their lengths (--every-call).\n\n", skipped));
  out += calls_table(trace, style) + "\n" + accounting_text(trace);
  if (!view.text.empty()) out += fmt::format("Text: {}\n", lapidary::quoted(view.text, 4000));
  out += "\nThe cache at the end:\n" + cache_table(trace, style);
  out += fmt::format("\nChecks:\n{}", checks_text(trace.checks, style));
  return out;
}

}  // namespace lapidary
