#include "kvlab/trace/trace.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "kvlab/sequence.h"

namespace lapidary::kvlab {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

size_t at(int64_t index) {
  return static_cast<size_t>(index);
}

// Bytes of one position of an owner, by the formula: heads times a row of keys and a row of values.
int64_t position_bytes_of(const ModelSpec& spec, int64_t layer, const KvTypes& kv) {
  const LayerSpec& l = spec.layers[at(layer)];
  if (!l.owns_kv(layer)) return 0;
  const AttentionSpec& a = *l.attention;
  return a.n_kv_heads *
         static_cast<int64_t>(kv_row_bytes(kv.keys, a.head_dim) + kv_row_bytes(kv.values, a.head_dim));
}

// What the probe sees of one call, by layer.
class CallWatch : public Probe {
 public:
  struct Layer {
    SeenShape x, q, k, v, stored_k, stored_v;
    int64_t query_position = -1;
    int64_t next_stored = -1;  // position after the last that was stored
  };
  CallWatch(int64_t n_layers, int64_t first_position) : layers_(at(n_layers)), first_(first_position) {}

  void on_hidden(int64_t, std::span<const RowId>, std::span<const float>) override {}
  void on_final_norm(std::span<const RowId>, std::span<const float>) override {}
  void on_scores(int64_t, RowId, int64_t, int64_t, std::span<const float>) override {}
  bool wants_scores() const override { return false; }
  bool wants_ops() const override { return true; }

  void on_kv(int64_t layer, RowId row, std::span<const float> k, std::span<const float> v) override {
    Layer& seen = layers_[at(layer)];
    if (seen.next_stored < 0) seen.next_stored = first_;
    in_order_ = in_order_ && row.position == seen.next_stored;
    seen.next_stored = row.position + 1;
    add(seen.stored_k, k.size());
    add(seen.stored_v, v.size());
  }
  void on_op(const OpRows& op) override {
    Layer& seen = layers_[at(op.layer)];
    SeenShape* shape = shape_of(seen, op.op);
    if (!shape) return;
    shape->rows += static_cast<int64_t>(op.rows.size());
    shape->width = op.width;
    if (op.op == Op::query && !op.rows.empty()) seen.query_position = op.rows.back().position;
  }

  const Layer& layer(int64_t index) const { return layers_[at(index)]; }
  bool in_order() const { return in_order_; }  // positions were stored one after the other

 private:
  static void add(SeenShape& shape, size_t width) {
    ++shape.rows;
    shape.width = static_cast<int64_t>(width);
  }
  static SeenShape* shape_of(Layer& layer, Op op) {
    switch (op) {
      case Op::attention_input: return &layer.x;
      case Op::query: return &layer.q;
      case Op::key: return &layer.k;
      case Op::value: return &layer.v;
      default: return nullptr;
    }
  }

  std::vector<Layer> layers_;
  int64_t first_;
  bool in_order_ = true;
};

struct PageSums {
  std::vector<CacheSpan> spans;  // [L], of owners
  int64_t pool_bytes = 0;
};

PageSums sum_pages(const Engine& engine, int32_t sequence) {
  PageSums sums;
  sums.spans.resize(at(engine.spec().n_layers()));
  engine.for_each_page(sequence, [&](const KvPageView& page) {
    CacheSpan& span = sums.spans[at(page.layer)];
    if (span.pages == 0) span.first = page.first;
    span.end = page.first + page.positions;
    span.bytes += static_cast<int64_t>(page.bytes.size());
    ++span.pages;
    sums.pool_bytes += page.pool_bytes;
  });
  return sums;
}

// Floats in their order as whole numbers, so that neighbours differ by one.
int64_t ordered(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  return bits >= 0 ? bits : int64_t{std::numeric_limits<int32_t>::min()} - bits;
}

// The two greatest; ties go to the lower id, as in the sampler.
Picked pick(std::span<const float> logits, const PieceOf& piece_of) {
  size_t best = 0, second = logits.size();
  for (size_t i = 0; i < logits.size(); ++i) {
    ensure(!std::isnan(logits[i]), ErrorCode::data, "the logit of token {} is not a number", i);
    if (i == 0) continue;
    if (logits[i] > logits[best]) {
      second = best;
      best = i;
    } else if (second == logits.size() || logits[i] > logits[second]) {
      second = i;
    }
  }
  const auto token = [&](size_t i) {
    return Token{static_cast<int32_t>(i), piece_of(static_cast<int32_t>(i))};
  };
  Picked picked{.token = token(best), .logit = logits[best]};
  if (second == logits.size()) return picked;
  picked.runner_up = token(second);
  picked.runner_up_logit = logits[second];
  picked.gap = logits[best] - logits[second];
  picked.gap_ulps = ordered(logits[best]) - ordered(logits[second]);
  return picked;
}

class Tracer {
 public:
  Tracer(Engine& engine, const TraceOptions& options, const PieceOf& piece_of, Trace& trace)
      : engine_(engine), options_(options), piece_of_(piece_of), trace_(trace) {}

  void run(FunctionRef<void(int64_t, int64_t)> on_progress) {
    const OpenSequence sequence(engine_);
    const std::span<const int32_t> prompt(options_.prompt);
    const auto total = static_cast<int64_t>(prompt.size()) + options_.decode_calls;
    for (size_t start = 0; start < prompt.size(); start += at(options_.chunk)) {
      const size_t n = std::min(prompt.size() - start, at(options_.chunk));
      call(sequence.id(), prompt.subspan(start, n), true, start + n == prompt.size());
      on_progress(engine_.length(sequence.id()), 2 * total);
    }
    for (int64_t done = 0;; ++done) {
      const int32_t next = trace_.calls.back().picked->token.id;
      if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), next) != options_.stop_ids.end()) {
        trace_.end = TraceEnd::stop_token;
        break;
      }
      if (done == options_.decode_calls) break;
      if (engine_.length(sequence.id()) == engine_.context()) {
        trace_.end = TraceEnd::context;
        break;
      }
      call(sequence.id(), {&next, 1}, false, true);
      on_progress(engine_.length(sequence.id()), 2 * total);
    }
    keep_pages(sequence.id());
  }

  // The same calls without a probe: for the times. The first run has warmed the caches.
  void run_unwatched(FunctionRef<void(int64_t, int64_t)> on_progress) {
    const OpenSequence sequence(engine_);
    std::vector<float> last;
    for (TraceCall& call : trace_.calls) {
      std::vector<int32_t> ids;
      for (const Token& token : call.fed) ids.push_back(token.id);
      const Feed feed{sequence.id(), ids, call.logits ? Want::last : Want::none};
      const Clock::time_point start = Clock::now();
      engine_.forward({&feed, 1}, [&](size_t, int64_t, std::span<const float> logits) {
        last.assign(logits.begin(), logits.end());
      });
      call.seconds = seconds_since(start);
      if (call.logits) call.same_bits_unwatched = hash128(std::as_bytes(std::span(last))) == *call.logits;
      on_progress(trace_.length() + call.after, 2 * trace_.length());
    }
  }

 private:
  void call(int32_t sequence, std::span<const int32_t> tokens, bool prefill, bool wanted) {
    TraceCall call{.index = static_cast<int64_t>(trace_.calls.size()), .prefill = prefill};
    for (const int32_t id : tokens) call.fed.push_back({id, piece_of_(id)});
    call.before = engine_.length(sequence);
    const PageSums before = sum_pages(engine_, sequence);
    const Traffic traffic = engine_.traffic();
    CallWatch watch(trace_.spec.n_layers(), call.before);
    std::vector<float> row;
    const Feed feed{sequence, tokens, wanted ? Want::last : Want::none};
    const Clock::time_point start = Clock::now();
    engine_.forward(
        {&feed, 1},
        [&](size_t, int64_t, std::span<const float> logits) { row.assign(logits.begin(), logits.end()); },
        &watch);
    call.watched_seconds = seconds_since(start);
    call.after = engine_.length(sequence);
    const Traffic& now = engine_.traffic();
    call.kv_written_bytes = now.all_kv_written() - traffic.all_kv_written();
    call.kv_read_bytes = now.all_kv_read() - traffic.all_kv_read();
    call.weights_read_bytes = now.weights_read - traffic.weights_read;
    call.table_rows_read_bytes = now.table_rows_read - traffic.table_rows_read;
    const PageSums after = sum_pages(engine_, sequence);
    call.kv_page_bytes = after.pool_bytes;
    if (wanted) {
      call.logits = hash128(std::as_bytes(std::span(row)));
      const size_t words = options_.words > 0 ? std::min(row.size(), at(options_.words)) : row.size();
      call.picked = pick(std::span(row).first(words), piece_of_);
    }
    for (int64_t i = 0; i < trace_.spec.n_layers(); ++i) {
      if (!trace_.spec.layers[at(i)].attention) continue;
      call.layers.push_back(layer_of(i, watch.layer(i), before, after));
      call.layers.back().kv_written_bytes = now.kv_written[at(i)] - traffic.kv_written[at(i)];
      call.layers.back().kv_read_bytes = now.kv_read[at(i)] - traffic.kv_read[at(i)];
      count_passes(call.layers.back());
    }
    call.stored_in_order = watch.in_order();
    trace_.calls.push_back(std::move(call));
  }

  TraceCallLayer layer_of(int64_t index, const CallWatch::Layer& seen, const PageSums& before,
                          const PageSums& after) const {
    const AttentionSpec& a = *trace_.spec.layers[at(index)].attention;
    TraceCallLayer layer{.layer = index,
                         .x = seen.x,
                         .q = seen.q,
                         .k = seen.k,
                         .v = seen.v,
                         .stored_k = seen.stored_k,
                         .stored_v = seen.stored_v,
                         .before = before.spans[at(a.kv_owner)],
                         .after = after.spans[at(a.kv_owner)],
                         .query_position = seen.query_position};
    if (layer.query_position < 0) return layer;
    if (a.window > 0) layer.first_in_sight = std::max<int64_t>(0, layer.query_position - a.window + 1);
    layer.keys_attended = layer.query_position + 1 - layer.first_in_sight;
    return layer;
  }

  // A single query reads the keys in sight a whole number of times, or the counter and the window disagree.
  void count_passes(TraceCallLayer& layer) const {
    if (layer.q.rows != 1) return;
    const AttentionSpec& a = *trace_.spec.layers[at(layer.layer)].attention;
    const int64_t once = layer.keys_attended * trace_.position_bytes[at(a.kv_owner)];
    if (once > 0 && layer.kv_read_bytes > 0 && layer.kv_read_bytes % once == 0)
      layer.passes = layer.kv_read_bytes / once;
  }

  void keep_pages(int32_t sequence) {
    engine_.for_each_page(sequence, [&](const KvPageView& page) {
      trace_.pages.push_back({.layer = page.layer,
                              .first = page.first,
                              .positions = page.positions,
                              .room = page.room,
                              .bytes = static_cast<int64_t>(page.bytes.size()),
                              .live_bytes = page.positions * trace_.position_bytes[at(page.layer)],
                              .sliding = page.sliding,
                              .pool_offset = page.pool_offset,
                              .pool_bytes = page.pool_bytes,
                              .hash = hash128(page.bytes)});
    });
    const PageSums sums = sum_pages(engine_, sequence);
    for (int64_t i = 0; i < trace_.spec.n_layers(); ++i) {
      if (!trace_.spec.layers[at(i)].owns_kv(i)) continue;
      TraceSight sight{.layer = i,
                       .window = trace_.spec.layers[at(i)].attention->window,
                       .length = engine_.length(sequence)};
      sight.in_sight = sight.window > 0 ? std::min(sight.window, sight.length) : sight.length;
      sight.behind = sight.length - sight.in_sight;
      sight.evicted = sums.spans[at(i)].first;
      trace_.sight.push_back(sight);
    }
  }

  Engine& engine_;
  const TraceOptions& options_;
  const PieceOf& piece_of_;
  Trace& trace_;
};

}  // namespace

std::string_view trace_end_name(TraceEnd end) {
  switch (end) {
    case TraceEnd::calls: return "-n";
    case TraceEnd::stop_token: return "stop token";
    case TraceEnd::context: return "context";
  }
  fail(ErrorCode::internal, "trace end {} has no name", static_cast<int>(end));
}

int64_t Trace::prefill_calls() const {
  return std::count_if(calls.begin(), calls.end(), [](const TraceCall& call) { return call.prefill; });
}

std::vector<Token> Trace::picked() const {
  std::vector<Token> tokens;
  for (const TraceCall& call : calls)
    if (call.picked) tokens.push_back(call.picked->token);
  return tokens;
}

int64_t Trace::bytes_per_position() const {
  int64_t bytes = 0;
  for (const int64_t layer : position_bytes) bytes += layer;
  return bytes;
}

int64_t Trace::kv_written_bytes() const {
  int64_t bytes = 0;
  for (const TraceCall& call : calls) bytes += call.kv_written_bytes;
  return bytes;
}

bool Trace::passed() const {
  return all_passed(checks);
}

Trace run_trace(Engine& engine, const KvTypes& kv, const TraceOptions& options, const PieceOf& piece_of,
                FunctionRef<void(int64_t done, int64_t total)> on_progress) {
  ensure(!options.prompt.empty(), ErrorCode::usage, "the prompt is empty: there is nothing to trace");
  ensure(options.decode_calls >= 0 && options.chunk >= 1, ErrorCode::usage,
         "decode calls and chunk: expected at least 0 and 1, got {} and {}", options.decode_calls,
         options.chunk);
  ensure(static_cast<int64_t>(options.prompt.size()) <= engine.context(), ErrorCode::limit,
         "the prompt has {} tokens, the context holds {}", options.prompt.size(), engine.context());
  Trace trace;
  trace.spec = engine.spec();
  ensure(std::any_of(trace.spec.layers.begin(), trace.spec.layers.end(),
                     [](const LayerSpec& layer) { return layer.attention.has_value(); }),
         ErrorCode::usage, "no layer of the model has attention: there is no KV cache to trace");
  trace.kv_dtype = kv;
  trace.chunk = options.chunk;
  trace.context = engine.context();
  for (int64_t i = 0; i < trace.spec.n_layers(); ++i)
    trace.position_bytes.push_back(position_bytes_of(trace.spec, i, kv));
  for (const int32_t id : options.prompt) {
    ensure(id >= 0 && id < trace.spec.vocab_size, ErrorCode::usage, "token id {}: expected 0 to {}", id,
           trace.spec.vocab_size - 1);
    trace.prompt.push_back({id, piece_of(id)});
  }
  Tracer tracer(engine, options, piece_of, trace);
  tracer.run(on_progress);
  tracer.run_unwatched(on_progress);
  check_trace(trace);
  return trace;
}

}  // namespace lapidary::kvlab
