#include "engine/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/half.h"
#include "kernels/kernels.h"

namespace lapidary {
namespace {

using kernels::kBlock;
using kernels::kLanes;

KvGeometry geometry_of(const ModelSpec& spec, int64_t index, DType dtype) {
  const LayerSpec& layer = spec.layers[static_cast<size_t>(index)];
  if (!layer.owns_kv(index)) return {};
  const AttentionSpec& a = *layer.attention;
  return {true,       a.n_kv_heads,
          a.head_dim, (a.head_dim + kLanes - 1) / kLanes * kLanes,
          a.window,   dtype == DType::bf16 ? size_t{2} : size_t{4}};
}

// Pages that one sequence of a layer can hold at once: the window, one step's rows, and a part of a page at
// either end.
int64_t ring_size(const KvGeometry& g, int64_t context, int64_t step_rows) {
  const int64_t all = (context + kBlock - 1) / kBlock;
  return g.window ? std::min(all, (g.window + step_rows) / kBlock + 2) : all;
}

struct PoolPlan {
  size_t page_bytes = 0;
  int64_t pages = 0;
};

PoolPlan plan_pool(const ModelSpec& spec, DType dtype, int64_t max_sequences, int64_t context,
                   int64_t step_rows, bool sliding) {
  PoolPlan plan;
  for (int64_t i = 0; i < spec.n_layers(); i++) {
    const KvGeometry g = geometry_of(spec, i, dtype);
    if (!g.owner || (g.window > 0) != sliding) continue;
    plan.page_bytes = std::max(plan.page_bytes, g.page_bytes());
    plan.pages += max_sequences * ring_size(g, context, step_rows);
  }
  plan.page_bytes = (plan.page_bytes + 63) / 64 * 64;
  return plan;
}

PagePool make_pool(const PoolPlan& plan, const char* name) {
  return {plan.page_bytes, plan.pages, name};
}

}  // namespace

size_t KvGeometry::head_bytes() const {
  return static_cast<size_t>((head_dim + padded_dim) * kBlock) * element_bytes;
}

PagePool::PagePool(size_t page_bytes, int64_t max_pages, const char* name)
    : page_bytes_(page_bytes),
      name_(name),
      memory_(page_bytes * static_cast<size_t>(max_pages), name, true),
      max_pages_(max_pages) {
  free_.reserve(static_cast<size_t>(max_pages));
}

int32_t PagePool::take() {
  int32_t page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    ensure(fresh_ < max_pages_, ErrorCode::limit, "{}: all {} pages are in use", name_, max_pages_);
    page = fresh_++;
  }
  in_use_++;
  return page;
}

void PagePool::give_back(int32_t page) {
  free_.push_back(page);
  in_use_--;
}

KvCache::KvCache(const ModelSpec& spec, DType dtype, int64_t max_sequences, int64_t context,
                 int64_t step_rows)
    : dtype_(dtype),
      sliding_(make_pool(plan_pool(spec, dtype, max_sequences, context, step_rows, true),
                         "KV pages of sliding layers")),
      full_(make_pool(plan_pool(spec, dtype, max_sequences, context, step_rows, false),
                      "KV pages of global layers")) {
  ensure(dtype == DType::f32 || dtype == DType::bf16, ErrorCode::unsupported,
         "KV dtype: expected f32 or bf16, got {}", dtype_name(dtype));
  for (int64_t i = 0; i < spec.n_layers(); i++) {
    const KvGeometry g = geometry_of(spec, i, dtype);
    layers_.push_back({g, g.owner ? ring_size(g, context, step_rows) : 0});
  }
  sequences_.resize(static_cast<size_t>(max_sequences));
  for (Sequence& s : sequences_) {
    s.tables.resize(layers_.size());
    for (size_t i = 0; i < layers_.size(); i++)
      s.tables[i].pages.resize(static_cast<size_t>(layers_[i].ring));
  }
}

int32_t KvCache::open() {
  for (size_t i = 0; i < sequences_.size(); i++)
    if (!sequences_[i].open) {
      sequences_[i].open = true;
      return static_cast<int32_t>(i);
    }
  fail(ErrorCode::limit, "all {} sequences are in use", sequences_.size());
}

bool KvCache::is_open(int32_t sequence) const {
  return sequence >= 0 && static_cast<size_t>(sequence) < sequences_.size() &&
         sequences_[static_cast<size_t>(sequence)].open;
}

void KvCache::release(const Layer& layer, PageTable& table, int64_t first) {
  for (; table.first < first; table.first++)
    pool(layer).give_back(table.pages[static_cast<size_t>(table.first % layer.ring)]);
}

void KvCache::close(int32_t sequence) {
  Sequence& s = sequences_[static_cast<size_t>(sequence)];
  for (size_t i = 0; i < layers_.size(); i++) {
    release(layers_[i], s.tables[i], s.tables[i].end);
    s.tables[i].first = s.tables[i].end = 0;
  }
  s.open = false;
  s.length = 0;
}

void KvCache::grow(int32_t sequence, int64_t n) {
  Sequence& s = sequences_[static_cast<size_t>(sequence)];
  const int64_t end = (s.length + n + kBlock - 1) / kBlock;
  for (size_t i = 0; i < layers_.size(); i++) {
    if (!layers_[i].geometry.owner) continue;
    PageTable& table = s.tables[i];
    for (; table.end < end; table.end++)
      table.pages[static_cast<size_t>(table.end % layers_[i].ring)] = pool(layers_[i]).take();
  }
}

void KvCache::commit(int32_t sequence, int64_t n) {
  Sequence& s = sequences_[static_cast<size_t>(sequence)];
  s.length += n;
  for (size_t i = 0; i < layers_.size(); i++) {
    const int64_t window = layers_[i].geometry.window;
    if (layers_[i].geometry.owner && window && s.length >= window)
      release(layers_[i], s.tables[i],
              (s.length - window + 1) / kBlock);  // the next query sees positions from length - window + 1 on
  }
}

std::byte* KvCache::page(int64_t layer, int32_t sequence, int64_t block) const {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  const PageTable& table = sequences_[static_cast<size_t>(sequence)].tables[static_cast<size_t>(layer)];
  const int32_t page = table.pages[static_cast<size_t>(block % l.ring)];
  return (l.geometry.window ? sliding_ : full_).data(page);
}

void KvCache::store(int64_t layer, int32_t sequence, int64_t position, float* k, float* v) {
  const KvGeometry& g = geometry(layer);
  std::byte* head = page(layer, sequence, position / kBlock);
  const int64_t at = position % kBlock;
  for (int64_t h = 0; h < g.n_kv_heads; h++, head += g.head_bytes(), k += g.head_dim, v += g.head_dim) {
    std::byte* values = head + static_cast<size_t>(g.head_dim * kBlock) * g.element_bytes;
    if (dtype_ == DType::bf16) {
      auto* keys16 = reinterpret_cast<uint16_t*>(head);
      auto* values16 = reinterpret_cast<uint16_t*>(values) + at * g.padded_dim;
      for (int64_t d = 0; d < g.head_dim; d++) {
        keys16[d * kBlock + at] = float_to_bf16(k[d]);
        values16[d] = float_to_bf16(v[d]);
        k[d] = bf16_to_float(keys16[d * kBlock + at]);
        v[d] = bf16_to_float(values16[d]);
      }
    } else {
      auto* keys32 = reinterpret_cast<float*>(head);
      for (int64_t d = 0; d < g.head_dim; d++) keys32[d * kBlock + at] = k[d];
      std::memcpy(reinterpret_cast<float*>(values) + at * g.padded_dim, v,
                  static_cast<size_t>(g.head_dim) * sizeof(float));
    }
  }
}

}  // namespace lapidary
