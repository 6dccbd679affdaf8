#include "kvlab/bytes/bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "engine/kv_state.h"
#include "kernels/kv_layout.h"
#include "kvlab/plan/numbers.h"
#include "kvlab/sequence.h"
#include "spec/footprint.h"

namespace lapidary::kvlab {
namespace {

using kernels::kBlock;

// Bytes of a page that belong to no number: values are padded to whole vectors.
int64_t padding_of_position(const PlanLayer& layer, const KvTypes& types) {
  const kernels::KvLayout l = kernels::kv_layout(types, layer.head_dim);
  const auto size = static_cast<int64_t>(dtype_info(types.values).block_bytes);
  return layer.n_kv_heads * (l.padded_dim - l.head_dim) * size;
}

class Measure {
 public:
  Measure(Engine& engine, const BytesOptions& options, OnBytesWork on_work)
      : engine_(engine), options_(options), on_work_(on_work), sequence_(engine) {
    layers_ = plan_layers(engine.spec(), options.types);
  }

  BytesReport run() {
    BytesReport report{.options = options_};
    for (const int64_t length : options_.lengths) {
      feed_to(length - 1);
      report.lengths.push_back(look(length));
    }
    report.slopes = slopes_of(report.lengths);
    report.checks = check_bytes(report);
    return report;
  }

 private:
  void feed_to(int64_t length) {
    constexpr int64_t kPiece = 256;  // tokens from one word of progress to the next
    for (int64_t at = engine_.length(sequence_.id()); at < length; at += kPiece) {
      on_work_(at, options_.lengths.back());
      feed(at, std::min(kPiece, length - at), Want::none);
    }
  }

  void feed(int64_t first, int64_t n, Want want) {
    const Feed piece{sequence_.id(),
                     std::span(options_.tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
                     want};
    engine_.forward({&piece, 1}, [](size_t, int64_t, std::span<const float>) {});
  }

  // Decodes one token, which makes the sequence so long, and takes stock.
  BytesAtLength look(int64_t length) {
    const Traffic before = engine_.traffic();
    feed(length - 1, 1, Want::last);
    const Traffic& after = engine_.traffic();
    BytesAtLength out{.length = length};
    const PageRule rule{options_.keep_behind};
    for (const PlanLayer& plan : layers_) {
      BytesLayer layer{.plan = plan};
      const auto index = static_cast<size_t>(plan.layer);
      if (plan.owns()) {
        const int64_t kept = length - rule.first_kept(plan, length);
        layer.needed_bytes =
            kv_position_bytes(*engine_.spec().layers[index].attention, options_.types) * plan.seen(length);
        layer.stored_formula_bytes = times(kept, plan.position_bytes);
        layer.pages_formula = rule.pages_held(plan, length);
        layer.first_stored = length;
      }
      layer.touched_formula_bytes = times(plan.passes, times(plan.seen(length), plan.position_bytes));
      layer.touched_bytes = after.kv_read[index] - before.kv_read[index];
      layer.written_bytes = after.kv_written[index] - before.kv_written[index];
      out.layers.push_back(layer);
    }
    count_pages(out);
    out.weights_read_bytes = after.weights_read - before.weights_read;
    out.table_rows_read_bytes = after.table_rows_read - before.table_rows_read;
    out.saved_bytes = saved_bytes(out);
    out.in_use_bytes = engine_.stats().kv_bytes_in_use;
    sum_up(out);
    return out;
  }

  void count_pages(BytesAtLength& out) const {
    engine_.for_each_page(sequence_.id(), [&](const KvPageView& page) {
      BytesLayer& layer = *std::find_if(out.layers.begin(), out.layers.end(),
                                        [&](const BytesLayer& l) { return l.plan.layer == page.layer; });
      const auto bytes = static_cast<int64_t>(page.bytes.size());
      const int64_t a_position = bytes / page.room - padding_of_position(layer.plan, options_.types);
      layer.first_stored = std::min(layer.first_stored, page.first);
      layer.stored_positions += page.positions;
      layer.stored_bytes += page.positions * a_position;
      layer.allocated_bytes += bytes;
      layer.pool_bytes += page.pool_bytes;
      layer.pages++;
    });
  }

  // A saved state copies each number that lies in the pages; what else it writes has a known size.
  int64_t saved_bytes(const BytesAtLength& at) const {
    int64_t written = 0, pages = 0;
    engine_.save(sequence_.id(), Hash128{}, {},
                 [&](std::span<const std::byte> bytes) { written += static_cast<int64_t>(bytes.size()); });
    for (const BytesLayer& layer : at.layers) pages += layer.pages;
    const auto n_layers = engine_.spec().n_layers();
    return written - static_cast<int64_t>(sizeof(kv_state::Header)) -
           n_layers * static_cast<int64_t>(sizeof(kv_state::LayerEntry)) -
           at.length * static_cast<int64_t>(sizeof(int32_t)) - pages * static_cast<int64_t>(sizeof(Hash128));
  }

  static void sum_up(BytesAtLength& at) {
    for (const BytesLayer& l : at.layers) {
      at.total.needed_bytes += l.needed_bytes;
      at.total.stored_bytes += l.stored_bytes;
      at.total.allocated_bytes += l.allocated_bytes;
      at.total.pool_bytes += l.pool_bytes;
      at.total.pages += l.pages;
      at.total.touched_bytes += l.touched_bytes;
      at.total.touched_once_bytes += l.touched_bytes / l.plan.passes;
      at.total.written_bytes += l.written_bytes;
    }
  }

  static std::vector<BytesSlope> slopes_of(const std::vector<BytesAtLength>& lengths) {
    std::vector<BytesSlope> slopes;
    for (size_t i = 0; i < lengths.size(); ++i)
      for (size_t j = i + 1; j < lengths.size(); ++j) {
        const BytesAtLength &a = lengths[i], &b = lengths[j];
        if ((b.length - a.length) % kBlock != 0) continue;
        slopes.push_back({a.length, b.length, b.total.stored_bytes - a.total.stored_bytes,
                          b.total.touched_bytes - a.total.touched_bytes});
        break;
      }
    return slopes;
  }

  Engine& engine_;
  const BytesOptions& options_;
  OnBytesWork on_work_;
  OpenSequence sequence_;
  std::vector<PlanLayer> layers_;
};

class Checker {
 public:
  explicit Checker(std::string name) : check_{std::move(name), 0, {}} {}

  void equal(const BytesLayer& layer, int64_t length, int64_t expected, int64_t got) {
    note(expected == got, [&] {
      return fmt::format("layer {} at length {}: expected {} bytes, got {}", layer.plan.layer, length,
                         expected, got);
    });
  }
  void equal_in_all(int64_t length, int64_t expected, int64_t got) {
    note(expected == got, [&] {
      return fmt::format("all layers at length {}: expected {} bytes, got {}", length, expected, got);
    });
  }
  template <typename Words>
  void note(bool holds, Words words) {
    check_.comparisons++;
    if (!holds && check_.failure.empty()) check_.failure = words();
  }
  const BytesCheck& result() const { return check_; }

 private:
  BytesCheck check_;
};

}  // namespace

bool BytesReport::ok() const {
  return std::all_of(checks.begin(), checks.end(), [](const BytesCheck& c) { return c.passed(); });
}

BytesReport measure_bytes(Engine& engine, const BytesOptions& options, OnBytesWork on_work) {
  ensure(!options.lengths.empty(), ErrorCode::usage, "lengths: expected at least one, got none");
  int64_t before = 0;
  for (const int64_t length : options.lengths) {
    ensure(length >= 1 && length <= engine.context(), ErrorCode::usage,
           "length: expected 1 to {} positions, got {}", engine.context(), length);
    ensure(length > before, ErrorCode::usage, "lengths: expected rising ones, got {} after {}", length,
           before);
    before = length;
  }
  ensure(options.lengths.back() <= static_cast<int64_t>(options.tokens.size()), ErrorCode::usage,
         "length: {} needs as many tokens, got {}", options.lengths.back(), options.tokens.size());
  return Measure(engine, options, on_work).run();
}

std::vector<BytesCheck> check_bytes(const BytesReport& report) {
  Checker stored("stored: positions in pages = formula"), needed("stored = needed + page rounding"),
      pages("allocated: pages in memory = formula"), pool("allocated: bytes of the pools = formula"),
      covered("needed: every position in sight is in a page"),
      touched("touched: bytes that the step read = formula"), written("written: one position of every owner"),
      saved("stored: numbers that a saved state copies"), in_use("allocated: what the engine says is in use");
  for (const BytesAtLength& at : report.lengths) {
    for (const BytesLayer& l : at.layers) {
      stored.equal(l, at.length, l.stored_formula_bytes, l.stored_bytes);
      pages.equal(l, at.length, times(l.pages_formula, l.plan.page_bytes), l.allocated_bytes);
      pool.equal(l, at.length, times(l.pages_formula, l.plan.pool_page_bytes), l.pool_bytes);
      touched.equal(l, at.length, l.touched_formula_bytes, l.touched_bytes);
      written.equal(l, at.length, l.plan.owns() ? l.plan.position_bytes : 0, l.written_bytes);
      if (!l.plan.owns()) continue;
      const int64_t rounding = times(l.stored_positions - l.plan.seen(at.length), l.plan.position_bytes);
      needed.equal(l, at.length, l.needed_bytes + rounding, l.stored_bytes);
      // The next query sees window - 1 positions before its own.
      const int64_t oldest = l.plan.window > 0 ? std::max<int64_t>(0, at.length - l.plan.window + 1) : 0;
      covered.note(l.first_stored <= oldest && l.first_stored + l.stored_positions == at.length, [&] {
        return fmt::format("layer {} at length {}: expected positions {} to {}, got {} to {}", l.plan.layer,
                           at.length, oldest, at.length - 1, l.first_stored,
                           l.first_stored + l.stored_positions - 1);
      });
    }
    saved.equal_in_all(at.length, at.total.stored_bytes, at.saved_bytes);
    in_use.equal_in_all(at.length, at.total.pool_bytes, at.in_use_bytes);
  }
  std::vector<BytesCheck> out;
  for (const Checker* c : {&stored, &needed, &saved, &covered, &pages, &pool, &in_use, &touched, &written})
    out.push_back(c->result());
  return out;
}

std::vector<int64_t> default_bytes_lengths(const ModelSpec& spec, int64_t most) {
  std::set<int64_t> windows, lengths;
  for (const LayerSpec& layer : spec.layers)
    if (layer.attention && layer.attention->window > 0) windows.insert(layer.attention->window);
  for (const int64_t window : windows)
    for (const int64_t length : {window / 2, window, window + 1, window + kBlock, window + 2 * kBlock})
      lengths.insert(length);
  if (windows.empty())
    for (const int64_t length : {int64_t{5}, kBlock, 4 * kBlock, 16 * kBlock}) lengths.insert(length);
  std::vector<int64_t> out;
  for (const int64_t length : lengths)
    if (length >= 1 && length <= most) out.push_back(length);
  if (out.empty()) out.push_back(most);
  return out;
}

std::string_view where_of(const std::vector<PlanLayer>& layers, int64_t length) {
  std::set<int64_t> windows;
  for (const PlanLayer& l : layers)
    if (l.window > 0) windows.insert(l.window);
  if (windows.empty()) return "no window";
  if (length < *windows.begin()) return "below the window";
  if (length > *windows.rbegin()) return "past the window";
  return windows.count(length) != 0 ? "at the window" : "between the windows";
}

}  // namespace lapidary::kvlab
