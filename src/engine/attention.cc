// The attention verb: queries of each row against the pages of the layer that owns the keys and values.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "engine/forward.h"

namespace lapidary {

using kernels::kBlock;
using kernels::kPartPositions;

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
  const int64_t query_width = a.n_heads * a.head_dim, kv_width = a.n_kv_heads * a.head_dim;
  norm(ws_.hidden, w.attention_norm, ws_.normed);
  report(index, Op::attention_input, ws_.normed, spec_.d_model);
  const bool owner = a.kv_owner == index, rows_leave = index == last_owner_;
  if (owner) {  // one pass for all, unless queries are wanted of fewer rows
    project(ws_.normed, {{&w.key, &ws_.keys},
                         {a.k_eq_v ? nullptr : &w.value, &ws_.values},
                         {rows_leave ? nullptr : &w.query, &ws_.queries}});
    report(index, Op::key, ws_.keys, kv_width);
    if (!a.k_eq_v) report(index, Op::value, ws_.values, kv_width);
    write_kv(index);
  }
  if (rows_leave) drop_unread_rows();
  if (rows_.empty()) return;
  if (!owner || rows_leave) project(ws_.normed, {{&w.query, &ws_.queries}});
  report(index, Op::query, ws_.queries, query_width);
  prepare_queries(index);
  report(index, Op::turned_query, ws_.queries, query_width);
  plan_tiles(index);
  if (parts_pay()) {
    attend_parts(a);
  } else {
    team_.parallel_for(static_cast<int64_t>(tiles_.size()), 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; i++) attend_tile(a, tiles_[static_cast<size_t>(i)], thread);
    });
  }
  if (probe_ && probe_->wants_scores()) report_scores(index);
  report(index, Op::attended, ws_.attended, query_width);
  project(ws_.attended, {{&w.attention_output, &ws_.branch}});
  report(index, Op::attention_output, ws_.branch, spec_.d_model);
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

// Normalises and turns the keys, and puts them with their values into the layer's pages.
void Forward::write_kv(int64_t index) {
  const AttentionSpec& a = *spec_.layers[static_cast<size_t>(index)].attention;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  const size_t rope = rope_of_layer_[static_cast<size_t>(index)];
  traffic_.kv_written[static_cast<size_t>(index)] +=
      rows() * static_cast<int64_t>(cache_.geometry(index).position_bytes());
  std::mutex mutex;
  std::optional<KvCache::Misfit> misfit;
  int64_t misfit_row = rows();
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
    if (const auto found = cache_.store(k_, index, id.sequence, id.position, keys, values)) {
      const std::lock_guard lock(mutex);
      if (r < misfit_row) misfit = found;
      misfit_row = std::min(r, misfit_row);
    }
  });
  if (misfit) {
    const RowId& id = rows_[static_cast<size_t>(misfit_row)].id;
    fail(
        ErrorCode::data,
        "layer {}: the {} of sequence {}, position {}, KV head {} holds {}: expected finite numbers up to {} "
        "in a KV cache of {}",
        index, misfit->what, id.sequence, id.position, misfit->kv_head, misfit->number,
        kv_type_limit(misfit->type), kv_type_name(misfit->type));
  }
  if (!probe_) return;
  const auto n = static_cast<size_t>(a.n_kv_heads * a.head_dim);
  for (int64_t r = 0; r < rows(); r++) {
    const RowId& id = rows_[static_cast<size_t>(r)].id;
    cache_.read(index, id.sequence, id.position, ws_.keys.row(r), ws_.values.row(r));
    probe_->on_kv(index, id, {ws_.keys.row(r), n}, {ws_.values.row(r), n});
  }
}

// From here on no layer stores KV, so rows whose output nobody wants have no reader left: the others close
// ranks.
void Forward::drop_unread_rows() {
  auto move = [](const Workspace::Rows& rows, int64_t to, int64_t from) {
    if (rows.width)
      std::memcpy(rows.row(to), rows.row(from), static_cast<size_t>(rows.width) * sizeof(float));
  };
  int64_t kept = 0;
  for (int64_t r = 0; r < rows(); r++) {
    if (!rows_[static_cast<size_t>(r)].kept) continue;
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
  for_rows([&](int64_t r) {
    for (int64_t h = 0; h < a.n_heads; h++) {
      float* q = ws_.queries.row(r) + h * a.head_dim;
      if (a.q_norm) k_.rms_norm(q, w.query_norm.data(), eps_, a.head_dim, q);
      k_.rotate(ws_.cosines[rope].row(r), ws_.sines[rope].row(r), a.head_dim / 2, q);
      k_.scale(static_cast<float>(a.scale), a.head_dim, q);
    }
  });
}

// ---- tiles and parts

void Forward::plan_attention(int64_t padded_head, int64_t max_rows) {
  const int64_t tile_floats = kTileQueries * (3 * padded_head + 4);
  ws_.scratch = {
      Buffer(static_cast<size_t>(team_.size() * tile_floats) * sizeof(float), "workspace: attention tiles"),
      tile_floats};
  // Parts are shared out when a step has few rows: as many as there may be sequences, or a handful of one.
  constexpr int64_t kFewRows = 4;
  int64_t states_a_row = 0;
  for (const LayerSpec& layer : spec_.layers) {
    if (!layer.attention) continue;
    const int64_t seen =
        layer.attention->window ? std::min(layer.attention->window, cache_.context()) : cache_.context();
    states_a_row = std::max(states_a_row, layer.attention->n_heads * (seen / kPartPositions + 2));
  }
  ws_.n_part_states = states_a_row * std::min(max_rows, std::max(kFewRows, cache_.max_sequences()));
  ws_.part_states = Buffer(static_cast<size_t>(ws_.n_part_states * (padded_head + 2)) * sizeof(float),
                           "workspace: parts of attention", true);
}

Forward::Scratch Forward::scratch(int thread, int64_t padded_dim) const {
  float* p = ws_.scratch.row(thread);
  const auto take = [&](int64_t n) {
    float* taken = p;
    p += n;
    return taken;
  };
  Scratch s;
  s.queries = take(kTileQueries * padded_dim);
  s.tile = {take(kTileQueries), take(kTileQueries), take(kTileQueries * padded_dim)};
  s.part = {take(kTileQueries), take(kTileQueries), take(kTileQueries * padded_dim)};
  return s;
}

kernels::AttentionState Forward::part_state(int64_t index, int64_t padded_dim) const {
  float* p = ws_.part_states.floats();
  return {p + index, p + ws_.n_part_states + index, p + 2 * ws_.n_part_states + index * padded_dim};
}

// Cuts the step into tiles of queries that read the same pages: large enough that a part of the context is
// read for many queries, small enough that every thread has some. How it is cut never changes a query's own
// sums.
void Forward::plan_tiles(int64_t index) {
  const AttentionSpec& a = *spec_.layers[static_cast<size_t>(index)].attention;
  const auto head_bytes = static_cast<int64_t>(cache_.geometry(a.kv_owner).position_bytes()) / a.n_kv_heads;
  int64_t& read = traffic_.kv_read[static_cast<size_t>(index)];
  constexpr int64_t kTilesPerThread = 4;
  const int64_t group = a.n_heads / a.n_kv_heads, splits = kv_passes(a.n_heads, a.n_kv_heads),
                heads = (group + splits - 1) / splits;
  const int64_t fair = rows() * a.n_kv_heads * splits / (kTilesPerThread * team_.size());
  const int64_t max_rows =
      std::clamp(fair, std::max<int64_t>(1, kTileHeads / heads), std::max<int64_t>(1, kTileQueries / heads));
  int64_t work = 0, states = 0;
  tiles_.clear();
  for (int64_t first = 0; first < rows();) {
    int64_t n = 1;
    const int32_t sequence = rows_[static_cast<size_t>(first)].id.sequence;
    while (n < max_rows && first + n < rows() &&
           rows_[static_cast<size_t>(first + n)].id.sequence == sequence)
      n++;
    const int64_t oldest = visible(a, rows_[static_cast<size_t>(first)].id.position).lo,
                  newest = visible(a, rows_[static_cast<size_t>(first + n - 1)].id.position).hi - 1;
    const int64_t first_part = oldest / kPartPositions, n_parts = newest / kPartPositions + 1 - first_part;
    for (int64_t kv = 0; kv < a.n_kv_heads; kv++)
      for (int64_t h = 0; h < group; h += heads) {
        tiles_.push_back(
            {first, n, kv, kv * group + h, std::min(heads, group - h), first_part, n_parts, work, states});
        read += (newest + 1 - oldest) * head_bytes;
        work += n_parts;
        states += n_parts * tiles_.back().n_queries();
      }
    first += n;
  }
}

// Whether threads should share out the parts of the tiles: there are few tiles and long contexts.
bool Forward::parts_pay() const {
  constexpr int64_t kManyTiles = 4;  // for each thread
  const auto n = static_cast<int64_t>(tiles_.size());
  const Tile& last = tiles_.back();
  const int64_t work = last.first_work + last.n_parts,
                states = last.first_state + last.n_parts * last.n_queries();
  return team_.size() > 1 && n < kManyTiles * team_.size() && work > n && states <= ws_.n_part_states;
}

void Forward::gather_queries(const AttentionSpec& a, const Tile& tile, float* queries) const {
  const auto bytes = static_cast<size_t>(tile.n_heads * a.head_dim) * sizeof(float);
  for (int64_t r = 0; r < tile.n_rows; r++)
    std::memcpy(queries + r * tile.n_heads * a.head_dim,
                ws_.queries.row(tile.first_row + r) + tile.first_head * a.head_dim, bytes);
}

// What the tile's queries get from one part of the context, from nothing.
void Forward::attend_part(const AttentionSpec& a, const Tile& tile, int64_t part, const float* queries,
                          const kernels::AttentionState& state) const {
  const KvGeometry& g = cache_.geometry(a.kv_owner);
  const int32_t sequence = rows_[static_cast<size_t>(tile.first_row)].id.sequence;
  const int64_t start = part * kPartPositions;
  kernels::Seen seen[kTileQueries];
  int lo = kPartPositions, hi = 0;
  for (int64_t i = 0; i < tile.n_queries(); i++) {
    const Visible v = visible(a, rows_[static_cast<size_t>(tile.first_row + i / tile.n_heads)].id.position);
    seen[i] = {static_cast<int>(std::clamp(v.lo - start, int64_t{0}, kPartPositions)),
               static_cast<int>(std::clamp(v.hi - start, int64_t{0}, kPartPositions))};
    if (seen[i].lo >= seen[i].hi) continue;
    lo = std::min(lo, seen[i].lo);
    hi = std::max(hi, seen[i].hi);
  }
  const std::byte* blocks[kernels::kPartBlocks] = {};
  for (int64_t b = lo / kBlock; b * kBlock < hi; b++)
    blocks[b] = cache_.page(a.kv_owner, sequence, start / kBlock + b) +
                static_cast<size_t>(tile.kv_head) * g.layout.head_bytes;
  k_.attend({g.layout, blocks, queries, a.head_dim, tile.n_queries(), seen}, state);
}

// A tile, all its parts in order, by one thread.
void Forward::attend_tile(const AttentionSpec& a, const Tile& tile, int thread) {
  const int64_t padded = cache_.geometry(a.kv_owner).layout.padded_dim;
  const Scratch s = scratch(thread, padded);
  gather_queries(a, tile, s.queries);
  attend_part(a, tile, tile.first_part, s.queries, s.tile);
  for (int64_t i = 1; i < tile.n_parts; i++) {
    attend_part(a, tile, tile.first_part + i, s.queries, s.part);
    k_.merge(s.part, tile.n_queries(), padded, s.tile);
  }
  put_attended(a, tile, s.tile);
}

// All tiles, their parts shared out among the threads, then merged in the same order.
void Forward::attend_parts(const AttentionSpec& a) {
  const int64_t padded = cache_.geometry(a.kv_owner).layout.padded_dim;
  const auto state_of = [&](const Tile& tile, int64_t part) {
    return part_state(tile.first_state + part * tile.n_queries(), padded);
  };
  team_.parallel_for(tiles_.back().first_work + tiles_.back().n_parts, 1,
                     [&](int64_t begin, int64_t end, int thread) {
                       float* queries = scratch(thread, padded).queries;
                       size_t t = 0;
                       for (int64_t i = begin; i < end; i++) {
                         while (t + 1 < tiles_.size() && tiles_[t + 1].first_work <= i) t++;
                         const Tile& tile = tiles_[t];
                         const int64_t part = i - tile.first_work;
                         if (i == begin || part == 0) gather_queries(a, tile, queries);
                         attend_part(a, tile, tile.first_part + part, queries, state_of(tile, part));
                       }
                     });
  team_.parallel_for(static_cast<int64_t>(tiles_.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; t++) {
      const Tile& tile = tiles_[static_cast<size_t>(t)];
      for (int64_t i = 1; i < tile.n_parts; i++)
        k_.merge(state_of(tile, i), tile.n_queries(), padded, state_of(tile, 0));
      put_attended(a, tile, state_of(tile, 0));
    }
  });
}

void Forward::put_attended(const AttentionSpec& a, const Tile& tile, const kernels::AttentionState& state) {
  const int64_t padded = cache_.geometry(a.kv_owner).layout.padded_dim;
  for (int64_t i = 0; i < tile.n_queries(); i++) {
    float* out = ws_.attended.row(tile.first_row + i / tile.n_heads) +
                 (tile.first_head + i % tile.n_heads) * a.head_dim;
    for (int64_t d = 0; d < a.head_dim; d++) out[d] = state.values[i * padded + d] / state.sum[i];
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
        const std::byte* head = cache_.page(a.kv_owner, id.sequence, j / kBlock) +
                                static_cast<size_t>(h * a.n_kv_heads / a.n_heads) * g.layout.head_bytes;
        double sum = 0;
        for (int64_t d = 0; d < a.head_dim; d++)
          sum +=
              static_cast<double>(q[d]) * static_cast<double>(kernels::kv_key(g.layout, head, j % kBlock, d));
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
