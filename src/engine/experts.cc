// Mixture of experts beside the dense FFN (Gemma 4 26B-A4B): branch = norm_1(dense) + norm_2(Σ share ·
// expert(pre_norm(hidden))).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/forward.h"

namespace lapidary {

void Forward::experts(int64_t index) {
  const FfnSpec& f = *spec_.layers[static_cast<size_t>(index)].ffn;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  const int64_t d_model = spec_.d_model;
  choose_experts(f, w);
  norm(ws_.hidden, w.expert_pre_norm, ws_.expert_in);
  for_rows([&](int64_t r) {
    std::memset(ws_.expert_sum.row(r), 0, static_cast<size_t>(d_model) * sizeof(float));
  });
  for (int64_t e = 0; e < f.moe->n_experts; e++) run_expert(f, w, e);
  for_rows([&](int64_t r) {
    k_.rms_norm(ws_.branch.row(r), w.dense_post_norm.data(), eps_, d_model, ws_.branch.row(r));
    k_.rms_norm(ws_.expert_sum.row(r), w.expert_post_norm.data(), eps_, d_model, ws_.expert_sum.row(r));
    k_.add(ws_.expert_sum.row(r), d_model, ws_.branch.row(r));
  });
}

// choice[r][e]: softmax over all experts of the router's scores, the top_k of it renormalised, times the
// expert's own scale. The router reads the residual: norm without weight, times D^-1/2, times its learned
// scale.
void Forward::choose_experts(const FfnSpec& f, const LayerWeights& w) {
  const int64_t n = f.moe->n_experts, d_model = spec_.d_model;
  const float root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d_model)));
  for_rows([&](int64_t r) {
    k_.rms_norm(ws_.hidden.row(r), w.router_scale.data(), eps_, d_model, ws_.normed.row(r));
    k_.scale(root, d_model, ws_.normed.row(r));
  });
  project(ws_.normed, {{&w.router, &ws_.router}});
  for_rows([&](int64_t r) {
    float* p = ws_.router.row(r);
    float* share = ws_.choice.data() + r * n;
    k_.softmax(n, p);
    std::fill_n(share, n, 0.0f);
    float total = 0;
    for (int64_t i = 0; i < f.moe->top_k;
         i++) {  // ties go to the lower index; chosen ones are marked by a negative value
      const int64_t best = std::max_element(p, p + n) - p;
      total += p[best];
      share[best] = p[best];
      p[best] = -1;
    }
    for (int64_t e = 0; e < n; e++)
      if (share[e] > 0) share[e] = share[e] / total * w.expert_scale[static_cast<size_t>(e)];
  });
}

// Gathers the rows that chose the expert, runs them together, and adds each result to its row's sum: in
// ascending order of experts.
void Forward::run_expert(const FfnSpec& f, const LayerWeights& w, int64_t expert) {
  const int64_t d_model = spec_.d_model, d_ff = f.moe->d_ff, n_experts = f.moe->n_experts;
  int64_t n = 0;
  for (int64_t r = 0; r < rows(); r++) {
    const float share = ws_.choice[static_cast<size_t>(r * n_experts + expert)];
    if (share == 0) continue;
    ws_.expert_row[static_cast<size_t>(n)] = r;
    ws_.expert_share[static_cast<size_t>(n)] = share;
    std::memcpy(ws_.expert_rows.row(n++), ws_.expert_in.row(r), static_cast<size_t>(d_model) * sizeof(float));
  }
  if (n == 0) return;
  auto product = [&](const Panels& weight, const Workspace::Rows& from, const Workspace::Rows& to) {
    const Operand x = operand(from, 0, n, weight);
    traffic_.weights_read += static_cast<int64_t>(weight.bytes());
    team_.parallel_for(weight.n_panels(), 1, [&](int64_t begin, int64_t end, int thread) {
      multiply(weight, begin, end, x, to, thread);
    });
  };
  product(w.expert_gate_up[static_cast<size_t>(expert)], ws_.expert_rows, ws_.expert_gate_up);
  for (int64_t i = 0; i < n; i++)
    gate_rows(f.activation, ws_.expert_gate_up.row(i), ws_.expert_gate_up.row(i) + d_ff, d_ff,
              ws_.expert_gate_up.row(i));
  product(w.expert_down[static_cast<size_t>(expert)], ws_.expert_gate_up, ws_.expert_rows);
  for (int64_t i = 0; i < n; i++)
    k_.add_scaled(ws_.expert_rows.row(i), ws_.expert_share[static_cast<size_t>(i)], d_model,
                  ws_.expert_sum.row(ws_.expert_row[static_cast<size_t>(i)]));
}

}  // namespace lapidary
