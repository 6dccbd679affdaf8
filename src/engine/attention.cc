// The attention verb: queries of each row against the pages of the layer that owns the keys and values.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"
#include "engine/forward.h"

namespace lapidary {

using kernels::kBlock;
using kernels::kLanes;

namespace {

struct Visible {  // positions [lo, hi) that a query sees
  int64_t lo, hi;
};

Visible visible(const AttentionSpec& a, int64_t position) {
  return {a.window ? std::max<int64_t>(0, position - a.window + 1) : 0, position + 1};
}

}  // namespace

void Forward::attention(int64_t index) {
  const AttentionSpec& a = *spec_.layers[static_cast<size_t>(index)].attention;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  norm(ws_.hidden, w.attention_norm, ws_.normed);
  if (a.kv_owner == index) write_kv(index);
  if (index == last_owner_) keep_wanted_rows();
  if (rows_.empty()) return;
  prepare_queries(index);
  plan_tiles(a);
  team_.parallel_for(static_cast<int64_t>(tiles_.size()), 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; i++)
      attend_tile(a, tiles_[static_cast<size_t>(i)], ws_.scratch.row(thread));
  });
  if (probe_ && probe_->wants_scores()) report_scores(index);
  project(ws_.attended, {{&w.attention_output, &ws_.branch}});
}

// Cosines and sines of every row's position, for each rope of the model. Angles in double: positions are
// large.
void Forward::turn_angles() {
  for (size_t i = 0; i < ropes_.size(); i++) {
    const Rope& rope = ropes_[i];
    for_rows([&](int64_t r) {
      const auto position = static_cast<double>(rows_[static_cast<size_t>(r)].id.position);
      for (size_t j = 0; j < rope.frequencies.size(); j++) {
        ws_.cosines[i].row(r)[j] = static_cast<float>(std::cos(position * rope.frequencies[j]));
        ws_.sines[i].row(r)[j] = static_cast<float>(std::sin(position * rope.frequencies[j]));
      }
    });
  }
}

// Projects, normalises and turns the keys, and puts them with their values into the layer's pages.
void Forward::write_kv(int64_t index) {
  const AttentionSpec& a = *spec_.layers[static_cast<size_t>(index)].attention;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  const size_t rope = rope_of_layer_[static_cast<size_t>(index)];
  if (a.k_eq_v) project(ws_.normed, {{&w.key, &ws_.keys}});
  else project(ws_.normed, {{&w.key, &ws_.keys}, {&w.value, &ws_.values}});
  for_rows([&](int64_t r) {
    float* keys = ws_.keys.row(r);
    float* values = ws_.values.row(r);
    if (a.k_eq_v) std::memcpy(values, keys, static_cast<size_t>(a.n_kv_heads * a.head_dim) * sizeof(float));
    for (int64_t h = 0; h < a.n_kv_heads; h++) {
      float* k = keys + h * a.head_dim;
      float* v = values + h * a.head_dim;
      if (a.k_norm) k_.rms_norm(k, w.key_norm.data(), eps_, a.head_dim, k);
      if (a.v_norm) k_.rms_norm(v, nullptr, eps_, a.head_dim, v);
      k_.rotate(ws_.cosines[rope].row(r), ws_.sines[rope].row(r), a.head_dim / 2, k);
    }
    const RowId& id = rows_[static_cast<size_t>(r)].id;
    cache_.store(index, id.sequence, id.position, keys, values);
  });
  if (!probe_) return;
  const auto n = static_cast<size_t>(a.n_kv_heads * a.head_dim);
  for (int64_t r = 0; r < rows(); r++)
    probe_->on_kv(index, rows_[static_cast<size_t>(r)].id, {ws_.keys.row(r), n}, {ws_.values.row(r), n});
}

// From here on no layer stores KV, so rows whose logits nobody wants have no reader left: the others close
// ranks.
void Forward::keep_wanted_rows() {
  auto move = [](const Workspace::Rows& rows, int64_t to, int64_t from) {
    if (rows.width)
      std::memcpy(rows.row(to), rows.row(from), static_cast<size_t>(rows.width) * sizeof(float));
  };
  int64_t kept = 0;
  for (int64_t r = 0; r < rows(); r++) {
    if (!rows_[static_cast<size_t>(r)].wanted) continue;
    if (kept != r) {
      for (const Workspace::Rows* buffer : {&ws_.hidden, &ws_.normed, &ws_.ple}) move(*buffer, kept, r);
      for (const Workspace::Rows& buffer : ws_.cosines) move(buffer, kept, r);
      for (const Workspace::Rows& buffer : ws_.sines) move(buffer, kept, r);
      rows_[static_cast<size_t>(kept)] = rows_[static_cast<size_t>(r)];
      ids_[static_cast<size_t>(kept)] = ids_[static_cast<size_t>(r)];
    }
    kept++;
  }
  rows_.resize(static_cast<size_t>(kept));
  ids_.resize(static_cast<size_t>(kept));
}

void Forward::prepare_queries(int64_t index) {
  const AttentionSpec& a = *spec_.layers[static_cast<size_t>(index)].attention;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  const size_t rope = rope_of_layer_[static_cast<size_t>(index)];
  project(ws_.normed, {{&w.query, &ws_.queries}});
  for_rows([&](int64_t r) {
    for (int64_t h = 0; h < a.n_heads; h++) {
      float* q = ws_.queries.row(r) + h * a.head_dim;
      if (a.q_norm) k_.rms_norm(q, w.query_norm.data(), eps_, a.head_dim, q);
      k_.rotate(ws_.cosines[rope].row(r), ws_.sines[rope].row(r), a.head_dim / 2, q);
      k_.scale(static_cast<float>(a.scale), a.head_dim, q);
    }
  });
}

// Cuts the step into tiles of up to kTileQueries queries that read the same pages. How it is cut never
// changes a query's own sums.
void Forward::plan_tiles(const AttentionSpec& a) {
  const int64_t group = a.n_heads / a.n_kv_heads, parts = (group + 5) / 6,
                heads = (group + parts - 1) / parts;
  const int64_t max_rows = std::max<int64_t>(1, kTileQueries / heads);
  tiles_.clear();
  for (int64_t first = 0; first < rows();) {
    int64_t n = 1;
    const int32_t sequence = rows_[static_cast<size_t>(first)].id.sequence;
    while (n < max_rows && first + n < rows() &&
           rows_[static_cast<size_t>(first + n)].id.sequence == sequence)
      n++;
    for (int64_t kv = 0; kv < a.n_kv_heads; kv++)
      for (int64_t h = 0; h < group; h += heads)
        tiles_.push_back({first, n, kv, kv * group + h, std::min(heads, group - h)});
    first += n;
  }
}

// scratch: queries [kTileQueries][Hd], values [kTileQueries][padded Hd], maxima and sums [kTileQueries].
void Forward::attend_tile(const AttentionSpec& a, const Tile& tile, float* scratch) {
  const KvGeometry& g = cache_.geometry(a.kv_owner);
  const int64_t n = tile.n_rows * tile.n_heads;
  float* queries = scratch;
  float* values = queries + kTileQueries * g.padded_dim;
  float* maxima = values + kTileQueries * g.padded_dim;
  float* sums = maxima + kTileQueries;
  std::fill_n(maxima, n, -std::numeric_limits<float>::infinity());
  std::fill_n(sums, n, 0.0f);
  std::fill_n(values, n * g.padded_dim, 0.0f);
  for (int64_t r = 0; r < tile.n_rows; r++)
    std::memcpy(queries + r * tile.n_heads * a.head_dim,
                ws_.queries.row(tile.first_row + r) + tile.first_head * a.head_dim,
                static_cast<size_t>(tile.n_heads * a.head_dim) * sizeof(float));

  const RowId first = rows_[static_cast<size_t>(tile.first_row)].id,
              last = rows_[static_cast<size_t>(tile.first_row + tile.n_rows - 1)].id;
  kernels::AttentionBlock block{.bf16 = cache_.dtype() == DType::bf16, .head_dim = a.head_dim};
  auto take = [&](int64_t start, int64_t first_query, int64_t n_queries, Visible seen) {
    block.lo = static_cast<int>(std::max(seen.lo, start) - start);
    block.hi = static_cast<int>(std::min(seen.hi, start + kBlock) - start);
    if (block.lo < block.hi)
      k_.attend(block, queries + first_query * a.head_dim, a.head_dim, n_queries,
                {maxima + first_query, sums + first_query, values + first_query * g.padded_dim});
  };
  const Visible oldest = visible(a, first.position), newest = visible(a, last.position);
  for (int64_t b = oldest.lo / kBlock; b * kBlock < newest.hi; b++) {
    const int64_t start = b * kBlock;
    const std::byte* head =
        cache_.page(a.kv_owner, first.sequence, b) + static_cast<size_t>(tile.kv_head) * g.head_bytes();
    block.keys = head;
    block.values = head + static_cast<size_t>(a.head_dim * kBlock) * g.element_bytes;
    if (newest.lo <= start && oldest.hi >= start + kBlock) {
      take(start, 0, n, oldest);  // every row sees the whole block
    } else {
      for (int64_t r = 0; r < tile.n_rows; r++)
        take(start, r * tile.n_heads, tile.n_heads,
             visible(a, rows_[static_cast<size_t>(tile.first_row + r)].id.position));
    }
  }
  for (int64_t i = 0; i < n; i++) {
    float* out = ws_.attended.row(tile.first_row + i / tile.n_heads) +
                 (tile.first_head + i % tile.n_heads) * a.head_dim;
    for (int64_t d = 0; d < a.head_dim; d++) out[d] = values[i * g.padded_dim + d] / sums[i];
  }
}

// For the probe only: probabilities again, plainly and in double, from what the cache holds.
void Forward::report_scores(int64_t index) {
  const AttentionSpec& a = *spec_.layers[static_cast<size_t>(index)].attention;
  const KvGeometry& g = cache_.geometry(a.kv_owner);
  std::vector<float> p;
  for (int64_t r = 0; r < rows(); r++) {
    const RowId id = rows_[static_cast<size_t>(r)].id;
    const Visible seen = visible(a, id.position);
    for (int64_t h = 0; h < a.n_heads; h++) {
      const float* q = ws_.queries.row(r) + h * a.head_dim;
      std::vector<double> s(static_cast<size_t>(seen.hi - seen.lo));
      for (int64_t j = seen.lo; j < seen.hi; j++) {
        const std::byte* keys = cache_.page(a.kv_owner, id.sequence, j / kBlock) +
                                static_cast<size_t>(h * a.n_kv_heads / a.n_heads) * g.head_bytes();
        double sum = 0;
        for (int64_t d = 0; d < a.head_dim; d++) {
          const int64_t at = d * kBlock + j % kBlock;
          sum += static_cast<double>(q[d]) *
                 static_cast<double>(cache_.dtype() == DType::bf16
                                         ? bf16_to_float(reinterpret_cast<const uint16_t*>(keys)[at])
                                         : reinterpret_cast<const float*>(keys)[at]);
        }
        s[static_cast<size_t>(j - seen.lo)] = sum;
      }
      const double top = *std::max_element(s.begin(), s.end());
      double total = 0;
      for (double& x : s) total += x = std::exp(x - top);
      p.resize(s.size());
      for (size_t j = 0; j < s.size(); j++) p[j] = static_cast<float>(s[j] / total);
      probe_->on_scores(index, id, h, seen.lo, p);
    }
  }
}

}  // namespace lapidary
