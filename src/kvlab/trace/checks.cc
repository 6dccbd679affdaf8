// What a trace must agree with: the model's description, its own sums, and a run that nobody watched.
#include <algorithm>

#include "base/error.h"
#include "kvlab/trace/trace.h"

namespace lapidary::kvlab {
namespace {

size_t at(int64_t index) {
  return static_cast<size_t>(index);
}

// The first thing that is wrong, and how many there are.
class Findings {
 public:
  template <typename... Args>
  void expect(bool fine, fmt::format_string<Args...> format, Args&&... args) {
    ++looked_at_;
    if (fine) return;
    if (wrong_++ == 0) first_ = fmt::format(format, std::forward<Args>(args)...);
  }
  Check check(std::string name, std::string detail) const {
    if (wrong_ == 0 && looked_at_ > 0) return {std::move(name), true, std::move(detail)};
    if (looked_at_ == 0) return {std::move(name), false, "there was nothing to look at"};
    return {std::move(name), false,
            fmt::format("{}{}", first_, wrong_ > 1 ? fmt::format(" (and {} more)", wrong_ - 1) : "")};
  }
  int64_t looked_at() const { return looked_at_; }

 private:
  std::string first_;
  int64_t wrong_ = 0, looked_at_ = 0;
};

std::string shape_text(const SeenShape& s) {
  return s.rows == 0 ? "nothing" : fmt::format("[1,{},{}]", s.rows, s.width);
}

Check check_length(const Trace& trace) {
  Findings found;
  const auto prompt = static_cast<int64_t>(trace.prompt.size()), decoded = trace.decode_calls();
  for (const TraceCall& call : trace.calls) {
    const auto fed = static_cast<int64_t>(call.fed.size());
    found.expect(call.after == call.before + fed, "call {} fed {} tokens: the cache went from {} to {}",
                 call.index, fed, call.before, call.after);
    for (const TraceCallLayer& layer : call.layers)
      found.expect(layer.after.end == call.after && layer.before.end == call.before,
                   "call {}, layer {}: pages end at {} and {}, the sequence at {} and {}", call.index,
                   layer.layer, layer.before.end, layer.after.end, call.before, call.after);
  }
  const auto picked = static_cast<int64_t>(trace.picked().size());
  found.expect(trace.length() == prompt + decoded, "{} prompt tokens and {} decode calls: the cache holds {}",
               prompt, decoded, trace.length());
  found.expect(picked == decoded + 1, "{} decode calls picked {} tokens", decoded, picked);
  return found.check("cache length",
                     fmt::format("prompt {} + {} decode calls = {} positions, {} tokens picked", prompt,
                                 decoded, trace.length(), picked));
}

Check check_written(const Trace& trace) {
  Findings found;
  for (const TraceCall& call : trace.calls) {
    const auto fed = static_cast<int64_t>(call.fed.size());
    for (const TraceCallLayer& layer : call.layers) {
      const int64_t expected = fed * trace.position_bytes[at(layer.layer)];
      found.expect(layer.kv_written_bytes == expected,
                   "call {}, layer {}: {} bytes were written, expected {} tokens × {}", call.index,
                   layer.layer, layer.kv_written_bytes, fed, trace.position_bytes[at(layer.layer)]);
    }
  }
  found.expect(trace.kv_written_bytes() == trace.bytes_per_position() * trace.length(),
               "{} bytes were written in all, expected {} × {}", trace.kv_written_bytes(),
               trace.bytes_per_position(), trace.length());
  return found.check("bytes written",
                     fmt::format("{} by the counters = {} positions × {} bytes of all owners",
                                 trace.kv_written_bytes(), trace.length(), trace.bytes_per_position()));
}

// The last layer that stores KV, and those after it, run only the rows whose logits are wanted.
int64_t last_owner_of(const ModelSpec& spec) {
  int64_t last = -1;
  for (int64_t i = 0; i < spec.n_layers(); ++i)
    if (spec.layers[at(i)].owns_kv(i)) last = i;
  return last;
}

Check check_shapes(const Trace& trace) {
  Findings found;
  const int64_t last_owner = last_owner_of(trace.spec);
  const auto expect = [&](const TraceCall& call, int64_t layer, const char* what, const SeenShape& seen,
                          SeenShape expected) {
    if (expected.rows == 0) expected.width = 0;
    found.expect(seen == expected, "call {}, layer {}: {} is {}, expected {}", call.index, layer, what,
                 shape_text(seen), shape_text(expected));
  };
  for (const TraceCall& call : trace.calls) {
    const auto fed = static_cast<int64_t>(call.fed.size()), wanted = int64_t{call.picked ? 1 : 0};
    for (const TraceCallLayer& layer : call.layers) {
      const AttentionSpec& a = *trace.spec.layers[at(layer.layer)].attention;
      const bool owner = a.kv_owner == layer.layer;
      const int64_t kv_width = a.n_kv_heads * a.head_dim, kv_rows = owner ? fed : 0;
      expect(call, layer.layer, "x", layer.x, {layer.layer <= last_owner ? fed : wanted, trace.spec.d_model});
      expect(call, layer.layer, "k", layer.k, {kv_rows, kv_width});
      expect(call, layer.layer, "v", layer.v, {a.k_eq_v ? 0 : kv_rows, kv_width});
      expect(call, layer.layer, "stored k", layer.stored_k, {kv_rows, kv_width});
      expect(call, layer.layer, "stored v", layer.stored_v, {kv_rows, kv_width});
      expect(call, layer.layer, "q", layer.q,
             {layer.layer < last_owner ? fed : wanted, a.n_heads * a.head_dim});
    }
  }
  return found.check("shapes",
                     fmt::format("{} shapes of x, q, k, v seen are those of the model", found.looked_at()));
}

// What a query sees has pages, and the kernels were given exactly that to read.
Check check_sight(const Trace& trace) {
  Findings found;
  for (const TraceCall& call : trace.calls) {
    for (const TraceCallLayer& layer : call.layers) {
      if (layer.q.rows != 1) continue;
      found.expect(layer.passes.has_value(),
                   "call {}, layer {}: {} bytes were read, no whole number of passes over {} keys in sight",
                   call.index, layer.layer, layer.kv_read_bytes, layer.keys_attended);
      const int64_t window = trace.spec.layers[at(layer.layer)].attention->window;
      const int64_t needed = window > 0 ? std::max<int64_t>(0, call.after - window + 1) : 0;
      found.expect(layer.after.first <= needed,
                   "call {}, layer {}: pages begin at position {}, the next query sees from {} on",
                   call.index, layer.layer, layer.after.first, needed);
    }
  }
  return found.check("keys in sight",
                     "bytes read by single queries are whole passes over the keys that they see");
}

Check check_positions(const Trace& trace) {
  Findings found;
  for (const TraceCall& call : trace.calls)
    found.expect(call.stored_in_order, "call {}: positions were not stored one after the other from {} on",
                 call.index, call.before);
  return found.check("positions", "each call stored its tokens at the positions after the last");
}

Check check_unwatched(const Trace& trace) {
  Findings found;
  for (const TraceCall& call : trace.calls)
    found.expect(call.same_bits_unwatched, "call {}: its logits have other bits when nobody watches",
                 call.index);
  return found.check("unwatched run", "a second run without the probe gave the same logits, bit for bit");
}

}  // namespace

void check_trace(Trace& trace) {
  trace.checks = {check_length(trace), check_written(trace),   check_shapes(trace),
                  check_sight(trace),  check_positions(trace), check_unwatched(trace)};
}

}  // namespace lapidary::kvlab
