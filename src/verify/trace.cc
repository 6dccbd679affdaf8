#include "verify/trace.h"

#include <algorithm>

namespace lapidary {
namespace {

void put(std::vector<float>& matrix, int64_t row, std::span<const float> values) {
  std::copy(values.begin(), values.end(), matrix.begin() + row * static_cast<int64_t>(values.size()));
}

class EngineTracer : public Probe {
 public:
  explicit EngineTracer(Trace& trace) : trace_(trace) {}
  void on_hidden(int64_t layer, std::span<const RowId> rows, std::span<const float> hidden) override {
    put_rows(trace_.hidden[static_cast<size_t>(layer)], rows, hidden);
  }
  void on_final_norm(std::span<const RowId> rows, std::span<const float> values) override {
    put_rows(trace_.final_norm, rows, values);
  }
  void on_kv(int64_t layer, RowId row, std::span<const float> k, std::span<const float> v) override {
    put(trace_.kv.at(layer).k, row.position, k);
    put(trace_.kv.at(layer).v, row.position, v);
  }
  void on_scores(int64_t, RowId, int64_t, int64_t, std::span<const float>) override {}
  bool wants_scores() const override { return false; }

 private:
  static void put_rows(std::vector<float>& matrix, std::span<const RowId> rows,
                       std::span<const float> values) {
    const size_t width = values.size() / rows.size();
    for (size_t r = 0; r < rows.size(); ++r) put(matrix, rows[r].position, values.subspan(r * width, width));
  }
  Trace& trace_;
};

class ReferenceTracer : public ReferenceObserver {
 public:
  ReferenceTracer(Trace& trace, int64_t first_row) : trace_(trace), first_row_(first_row) {}
  void on_hidden(int64_t layer, std::span<const double> hidden) override {
    put_from(trace_.hidden[static_cast<size_t>(layer)], hidden);
  }
  void on_final_norm(std::span<const double> values) override { put_from(trace_.final_norm, values); }
  void on_kv(int64_t layer, std::span<const double> k, std::span<const double> v) override {
    put_from(trace_.kv.at(layer).k, k);
    put_from(trace_.kv.at(layer).v, v);
  }
  void on_logits(int64_t row, std::span<const double> logits) override {
    const int64_t at = (first_row_ + row - trace_.first_logits) * static_cast<int64_t>(logits.size());
    std::transform(logits.begin(), logits.end(), trace_.logits.begin() + at,
                   [](double z) { return static_cast<float>(z); });
  }

 private:
  // Rows [first_row, ...) of a matrix whose width follows from its size.
  void put_from(std::vector<float>& matrix, std::span<const double> values) {
    const int64_t width = static_cast<int64_t>(matrix.size()) / trace_.rows;
    std::transform(values.begin(), values.end(), matrix.begin() + first_row_ * width,
                   [](double x) { return static_cast<float>(x); });
  }
  Trace& trace_;
  int64_t first_row_;
};

int64_t count_rows(int64_t n_prompt, int64_t n_decoded) {
  return n_prompt + std::max<int64_t>(n_decoded - 1, 0);
}

}  // namespace

Trace::Trace(const ModelSpec& spec, std::span<const int32_t> given, int64_t n_decoded)
    : prompt_rows(static_cast<int64_t>(given.size())),
      rows(count_rows(prompt_rows, n_decoded)),
      first_logits(std::max<int64_t>(0, prompt_rows - kPromptLogits)),
      prompt(given.begin(), given.end()) {
  const auto matrix = [](int64_t n_rows, int64_t width) {
    return std::vector<float>(static_cast<size_t>(n_rows * width));
  };
  hidden.assign(spec.layers.size(), matrix(rows, spec.d_model));
  final_norm = matrix(rows, spec.d_model);
  logits = matrix(rows - first_logits, spec.vocab_size);
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (!layer.owns_kv(i)) continue;
    const int64_t width = layer.attention->n_kv_heads * layer.attention->head_dim;
    kv[i] = {matrix(rows, width), matrix(rows, width)};
  }
}

void Trace::drop_states() {
  hidden = {};
  final_norm = {};
  kv = {};
}

Trace trace_engine(Engine& engine, std::span<const int32_t> prompt, int64_t n_decode,
                   std::span<const int32_t> forced) {
  Trace trace(engine.spec(), prompt, n_decode);
  EngineTracer tracer(trace);
  struct Sequence {  // closed when a step throws, too
    explicit Sequence(Engine& e) : engine(e), id(e.open()) {}
    ~Sequence() { engine.close(id); }
    Sequence(const Sequence&) = delete;
    Engine& engine;
    int32_t id;
  } const sequence(engine);

  int64_t fed = 0;
  const auto feed = [&](std::span<const int32_t> tokens) {
    int32_t best = 0;
    const Feed feeds[] = {{sequence.id, tokens, Want::all}};
    engine.forward(
        feeds,
        [&](size_t, int64_t index, std::span<const float> logits) {
          const int64_t row = fed + index;
          if (row >= trace.first_logits) put(trace.logits, row - trace.first_logits, logits);
          best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
        },
        &tracer);
    fed += static_cast<int64_t>(tokens.size());
    return best;
  };
  int32_t next = feed(prompt);
  for (int64_t i = 0; i < n_decode; ++i) {
    trace.decoded.push_back(forced.empty() ? next : forced[static_cast<size_t>(i)]);
    if (i + 1 < n_decode) next = feed(std::span(trace.decoded).last(1));
  }
  return trace;
}

Trace trace_reference(const ModelSpec& spec, Reference& reference, std::span<const int32_t> prompt,
                      std::span<const int32_t> decoded) {
  const auto n_prompt = static_cast<int64_t>(prompt.size()), n_decoded = static_cast<int64_t>(decoded.size());
  Trace trace(spec, prompt, n_decoded);
  trace.decoded.assign(decoded.begin(), decoded.end());
  reference.reset();
  ReferenceTracer prefill(trace, 0);
  reference.forward(prompt, trace.first_logits, prefill);
  if (n_decoded > 1) {
    ReferenceTracer decode(trace, n_prompt);
    reference.forward(decoded.first(static_cast<size_t>(n_decoded - 1)), 0, decode);
  }
  return trace;
}

}  // namespace lapidary
