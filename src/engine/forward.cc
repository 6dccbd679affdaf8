#include "engine/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace lapidary {

// The whole model. Rows whose output nobody wants leave at the last layer that stores KV (drop_unread_rows).
void Forward::run(std::span<const StepRow> rows, OnLogits on_logits, Probe* probe) {
  rows_.assign(rows.begin(), rows.end());
  ids_.clear();
  for (const StepRow& row : rows) ids_.push_back(row.id);
  probe_ = probe;
  embed();
  per_layer_inputs();
  turn_angles();
  for (int64_t i = 0; i < spec_.n_layers() && !rows_.empty(); i++) layer(i);
  if (last_owner_ < 0) drop_unread_rows();
  if (!rows_.empty()) head(on_logits);
}

void Forward::embed() {
  const float scale = static_cast<float>(spec_.embed_scale);
  traffic_.table_rows_read += rows() * weights_.token_embedding.row_bytes();
  for (int64_t r = 0; r < rows(); r++) {
    weights_.token_embedding.gather(rows_[static_cast<size_t>(r)].token,
                                    {ws_.hidden.row(r), static_cast<size_t>(spec_.d_model)});
    k_.scale(scale, spec_.d_model, ws_.hidden.row(r));
  }
}

void Forward::layer(int64_t index) {
  const LayerSpec& layer = spec_.layers[static_cast<size_t>(index)];
  const LayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  if (layer.attention) {
    attention(index);
    if (rows_.empty()) return;
    residual(layer, w.post_attention_norm);
  }
  if (layer.ffn) {
    ffn(index);
    residual(layer, w.post_ffn_norm);
  }
  if (layer.ple) per_layer_embedding(index);
  if (layer.layer_scalar)
    for_rows([&](int64_t r) { k_.scale(w.layer_scalar[0], spec_.d_model, ws_.hidden.row(r)); });
  check_finite(index);
  if (probe_)
    probe_->on_hidden(index, ids_, {ws_.hidden.row(0), static_cast<size_t>(rows() * spec_.d_model)});
}

// A row that is NaN or infinite can only get worse: it is named where it began, not as odd text a hundred
// tokens later.
void Forward::check_finite(int64_t index) const {
  for (int64_t r = 0; r < rows(); r++) {
    const float* hidden = ws_.hidden.row(r);
    float sum = 0;  // x * 0 is NaN exactly where x is not finite, and stays so in any sum
    for (int64_t i = 0; i < spec_.d_model; i++) sum += hidden[i] * 0.0f;
    const RowId& id = ids_[static_cast<size_t>(r)];
    ensure(sum == 0, ErrorCode::data, "layer {}: the hidden state of sequence {}, position {} is not finite",
           index, id.sequence, id.position);
  }
}

// hidden += post_norm(branch); the norm is there in sandwich models only.
void Forward::residual(const LayerSpec& layer, const std::vector<float>& post_norm) {
  switch (layer.residual) {
    case ResidualRule::add:
      for_rows([&](int64_t r) {
        if (!post_norm.empty())
          k_.rms_norm(ws_.branch.row(r), post_norm.data(), eps_, spec_.d_model, ws_.branch.row(r));
        k_.add(ws_.branch.row(r), spec_.d_model, ws_.hidden.row(r));
      });
  }
}

// Per layer: hidden += post_norm(output(gelu(gate(hidden)) * ple[layer])).
void Forward::per_layer_embedding(int64_t index) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  const int64_t p = spec_.ple_dim;
  project(ws_.hidden, {{&w.ple_gate, &ws_.gate}});
  for_rows([&](int64_t r) { k_.gelu_gate(ws_.gate.row(r), ws_.ple.row(r) + index * p, p, ws_.gate.row(r)); });
  project(ws_.gate, {{&w.ple_output, &ws_.branch}});
  report(index, Op::ple_output, ws_.branch, spec_.d_model);
  for_rows([&](int64_t r) {
    k_.rms_norm(ws_.branch.row(r), w.ple_post_norm.data(), eps_, spec_.d_model, ws_.branch.row(r));
    k_.add(ws_.branch.row(r), spec_.d_model, ws_.hidden.row(r));
  });
}

// What every layer of a row will receive: (norm(projection(hidden) / sqrt(D)) + table[token] * sqrt(P)) /
// sqrt(2), P values a layer.
void Forward::per_layer_inputs() {
  if (!spec_.ple_dim) return;
  const int64_t p = spec_.ple_dim, n_layers = spec_.n_layers(), width = n_layers * p;
  traffic_.table_rows_read += rows() * weights_.ple_embedding.row_bytes();
  const float projection_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec_.d_model)));
  const float table_scale = static_cast<float>(std::sqrt(static_cast<double>(p))),
              both = static_cast<float>(std::sqrt(0.5));
  project(ws_.hidden, {{&weights_.ple_projection, &ws_.ple}});
  for (int64_t r = 0; r < rows(); r++) {
    float* ple = ws_.ple.row(r);
    float* table = ws_.ple_table.row(0);
    weights_.ple_embedding.gather(rows_[static_cast<size_t>(r)].token, {table, static_cast<size_t>(width)});
    k_.scale(projection_scale, width, ple);
    for (int64_t i = 0; i < n_layers; i++)
      k_.rms_norm(ple + i * p, weights_.ple_norm.data(), eps_, p, ple + i * p);
    k_.add_scaled(table, table_scale, width, ple);
    k_.scale(both, width, ple);
  }
}

void Forward::head(OnLogits on_logits) {
  norm(ws_.hidden, weights_.output_norm, ws_.normed);
  if (probe_) probe_->on_final_norm(ids_, {ws_.normed.row(0), static_cast<size_t>(rows() * spec_.d_model)});
  const int64_t vocab = spec_.vocab_size;
  for (int64_t first = 0; first < rows(); first += kHeadRows) {
    const int64_t n = std::min(kHeadRows, rows() - first);
    const std::span<const StepRow> tile(rows_.data() + first, static_cast<size_t>(n));
    if (std::none_of(tile.begin(), tile.end(), [](const StepRow& row) { return row.logits; })) continue;
    const Operand x = operand(ws_.normed, first, n, weights_.head);
    traffic_.weights_read += static_cast<int64_t>(weights_.head.bytes());
    team_.parallel_for(weights_.head.n_panels(), 1, [&](int64_t begin, int64_t end, int thread) {
      multiply(weights_.head, begin, end, x, ws_.logits, thread);
      if (spec_.logit_softcap == 0) return;
      const int64_t from = begin * kernels::kLanes, to = std::min(end * kernels::kLanes, vocab);
      for (int64_t r = 0; r < n; r++)
        k_.softcap(static_cast<float>(spec_.logit_softcap), to - from, ws_.logits.row(r) + from);
    });
    for (int64_t r = 0; r < n; r++) {
      const StepRow& row = tile[static_cast<size_t>(r)];
      if (row.logits) on_logits(row.feed, row.token_index, {ws_.logits.row(r), static_cast<size_t>(vocab)});
    }
  }
}

// ---- shared steps

void Forward::report(int64_t index, Op op, const Workspace::Rows& values, int64_t width) const {
  if (probe_ && probe_->wants_ops()) probe_->on_op({index, op, ids_, values.row(0), width, values.width});
}

void Forward::for_rows(FunctionRef<void(int64_t)> f) {
  constexpr int64_t kRowsWorthAThread = 4;  // below it, waking the team costs more than the work
  team_.parallel_for(rows(), kRowsWorthAThread, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++) f(r);
  });
}

void Forward::norm(const Workspace::Rows& from, const std::vector<float>& weight, const Workspace::Rows& to) {
  for_rows([&](int64_t r) { k_.rms_norm(from.row(r), weight.data(), eps_, spec_.d_model, to.row(r)); });
}

Forward::Operand Forward::operand(const Workspace::Rows& from, int64_t first, int64_t n,
                                  const Panels& weight) {
  if (as_integers(weight)) {
    const kernels::QuantisedRows to = integers(n);
    constexpr int64_t kRowsWorthAThread = 4;
    team_.parallel_for(n, kRowsWorthAThread, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; r++) k_.quantise(from.row(first + r), weight.n_inputs, to, r);
    });
  }
  return {from.row(first), from.width, n};
}

void Forward::multiply(const Panels& weight, int64_t begin, int64_t end, const Operand& rows,
                       const Workspace::Rows& y, int thread) const {
  const bool fewer_terms = as_integers(weight) && arithmetic_ == Arithmetic::a16;
  if (fast(rows.n) && !fewer_terms) return multiply_halves(weight, begin, end, rows, y, thread);
  if (as_integers(weight)) {
    k_.matmul_quantised(weight, begin, end, integers(rows.n), rows.n, y.row(0), y.width);
  } else {
    k_.matmul(weight, begin, end, rows.x, rows.ldx, rows.n, y.row(0), y.width);
  }
}

// The fast mode's products of many rows: a running sum for each half of the inputs, added at the end. A
// weight whose inputs are a single span of its format has no halves.
void Forward::multiply_halves(const Panels& weight, int64_t begin, int64_t end, const Operand& rows,
                              const Workspace::Rows& y, int thread) const {
  const int64_t unit =
      weight.format.quantised() ? std::max(weight.format.span_inputs(), kernels::kQuantGroup) : 1;
  const int64_t split = weight.n_inputs / unit / 2 * unit;
  float* second = ws_.halves.row(thread);
  const auto product = [&](int64_t panel, int64_t from, int64_t to, float* out, int64_t ld) {
    Panels part = weight;
    part.n_outputs = std::min(kernels::kLanes, weight.n_outputs - panel * kernels::kLanes);
    part.n_inputs = to - from;
    part.data += static_cast<size_t>(panel) * weight.panel_bytes() +
                 static_cast<size_t>(from / weight.format.span_inputs()) * weight.format.span_bytes();
    if (as_integers(weight)) {
      kernels::QuantisedRows x = integers(rows.n);
      const int64_t group = from / kernels::kQuantGroup * x.height;
      x.hi += group * kernels::kQuantGroup;
      if (x.lo) x.lo += group * kernels::kQuantGroup;
      x.scales += group;
      x.sums += group * (kernels::kQuantGroup / kernels::kSumGroup);
      k_.matmul_quantised(part, 0, 1, x, rows.n, out, ld);
    } else {
      k_.matmul(part, 0, 1, rows.x + from, rows.ldx, rows.n, out, ld);
    }
    return part.n_outputs;
  };
  for (int64_t panel = begin; panel < end; panel++) {
    float* first = y.row(0) + panel * kernels::kLanes;
    if (split > 0) product(panel, 0, split, first, y.width);
    const int64_t n = product(panel, split, weight.n_inputs, split > 0 ? second : first,
                              split > 0 ? kernels::kLanes : y.width);
    for (int64_t r = 0; split > 0 && r < rows.n; r++)
      k_.add(second + r * kernels::kLanes, n, first + r * y.width);
  }
}

void Forward::project(const Workspace::Rows& from, std::initializer_list<Job> jobs) {
  int64_t panels = 0;
  const Panels* operand_of = nullptr;  // one that wants integers, if any does
  for (const Job& job : jobs) {
    if (!job.weight) continue;
    panels += job.weight->n_panels();
    traffic_.weights_read += static_cast<int64_t>(job.weight->bytes());
    if (!operand_of || job.weight->format.quantised()) operand_of = job.weight;
  }
  const Operand x = operand(from, 0, rows(), *operand_of);
  team_.parallel_for(panels, 1, [&](int64_t begin, int64_t end, int thread) {
    int64_t start = 0;  // of this job among all panels
    for (const Job& job : jobs) {
      if (!job.weight) continue;
      const int64_t first = std::max(begin - start, int64_t{0}),
                    last = std::min(end - start, job.weight->n_panels());
      if (first < last) multiply(*job.weight, first, last, x, *job.to, thread);
      start += job.weight->n_panels();
    }
  });
}

void Forward::gate_rows(Activation activation, const float* gate, const float* up, int64_t n,
                        float* out) const {
  switch (activation) {
    case Activation::gelu_tanh: return k_.gelu_gate(gate, up, n, out);
    case Activation::silu: return k_.silu_gate(gate, up, n, out);
  }
}

void Forward::project_gated(const Workspace::Rows& from, const LayerWeights& w, Activation activation) {
  const Operand x = operand(from, 0, rows(), w.gate.format.quantised() ? w.gate : w.up);
  traffic_.weights_read += static_cast<int64_t>(w.gate.bytes() + w.up.bytes());
  team_.parallel_for(w.gate.n_panels(), 1, [&](int64_t begin, int64_t end, int thread) {
    multiply(w.gate, begin, end, x, ws_.gate, thread);
    multiply(w.up, begin, end, x, ws_.up, thread);
    const int64_t first = begin * kernels::kLanes, last = std::min(end * kernels::kLanes, w.gate.n_outputs);
    for (int64_t r = 0; r < rows(); r++)
      gate_rows(activation, ws_.gate.row(r) + first, ws_.up.row(r) + first, last - first,
                ws_.gate.row(r) + first);
  });
}

}  // namespace lapidary
