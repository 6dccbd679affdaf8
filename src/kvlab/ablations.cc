#include "kvlab/ablations.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "kvlab/bandwidth.h"
#include "kvlab/roofline.h"

namespace lapidary::kvlab {
namespace {

int64_t group_of(const AttentionSpec& a) {
  return a.n_heads / a.n_kv_heads;
}

// Bytes moved to bytes read; `factor` says how many times over a layer's bytes are moved.
template <typename Factor>
double passes(const ModelSpec& spec, const KvTypes& types, int64_t positions, Factor&& factor) {
  const std::vector<int64_t> read = kv_bytes_read(spec, types, positions);
  double moved = 0, all = 0;
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const auto bytes = static_cast<double>(read[static_cast<size_t>(i)]);
    if (bytes == 0) continue;
    all += bytes;
    moved += bytes * factor(i);
  }
  return all > 0 ? moved / all : 1;
}

}  // namespace

bool has_grouped_heads(const ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(), [](const LayerSpec& layer) {
    return layer.attention && layer.attention->n_kv_heads < layer.attention->n_heads;
  });
}

ModelSpec expanded_spec(const ModelSpec& spec) {
  ModelSpec out = spec;
  for (LayerSpec& layer : out.layers)
    if (layer.attention) layer.attention->n_kv_heads = layer.attention->n_heads;
  return out;
}

TensorData ExpandedHeads::read(const Slot& slot) const {
  TensorData data = base_.read(slot);
  if (slot.kind != TensorKind::key && slot.kind != TensorKind::value) return data;
  const AttentionSpec& a = *spec_.layers[static_cast<size_t>(slot.layer)].attention;
  if (group_of(a) == 1) return data;
  const size_t head =
      data.view.bytes.size() / static_cast<size_t>(a.n_kv_heads);  // rows of one head are neighbours
  auto bytes = std::make_shared<std::vector<std::byte>>(head * static_cast<size_t>(a.n_heads));
  for (int64_t h = 0; h < a.n_heads; ++h)
    std::memcpy(bytes->data() + static_cast<size_t>(h) * head,
                data.view.bytes.data() + static_cast<size_t>(h / group_of(a)) * head, head);
  Shape shape = data.view.shape;
  shape[0] = shape[0] / a.n_kv_heads * a.n_heads;
  return {{data.view.dtype, shape, *bytes}, bytes};
}

double expected_passes_expand(const ModelSpec& spec, const KvTypes& types, int64_t positions) {
  return passes(spec, types, positions, [&](int64_t layer) {
    const auto group = static_cast<double>(group_of(*spec.layers[static_cast<size_t>(layer)].attention));
    return group == 1 ? 1 : 1 + 2 * group;
  });
}

double expected_passes_concat(const ModelSpec& spec, const KvTypes& types, int64_t positions) {
  return passes(spec, types, positions, [&](int64_t layer) {
    return spec.layers[static_cast<size_t>(layer)].owns_kv(layer) ? 3.0 : 1.0;
  });
}

double written_passes_expand(const ModelSpec& spec, const KvTypes& types, int64_t positions) {
  return passes(spec, types, positions, [&](int64_t layer) {
    const auto group = static_cast<double>(group_of(*spec.layers[static_cast<size_t>(layer)].attention));
    return group == 1 ? 0 : group;
  });
}

double written_passes_concat(const ModelSpec& spec, const KvTypes& types, int64_t positions) {
  return passes(spec, types, positions, [&](int64_t layer) {
    return spec.layers[static_cast<size_t>(layer)].owns_kv(layer) ? 1.0 : 0.0;
  });
}

CopyingProbe::CopyingProbe(const Engine& engine)
    : engine_(engine),
      team_(engine.threads()),
      pages_(engine.spec().layers.size()),
      copies_(engine.spec().layers.size()),
      copied_(engine.spec().layers.size()) {}

void CopyingProbe::before_step(int32_t sequence) {
  for (auto& pages : pages_) pages.clear();
  engine_.for_each_page(sequence, [&](const KvPageView& page) {
    pages_[static_cast<size_t>(page.layer)].push_back(page.bytes);
  });
  const ModelSpec& spec = engine_.spec();
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const auto& attention = spec.layers[static_cast<size_t>(i)].attention;
    copied_[static_cast<size_t>(i)] = 0;
    if (!attention || !copies(i)) continue;
    const auto& pages = pages_[static_cast<size_t>(attention->kv_owner)];
    const size_t page = pages.empty() ? 0 : pages.front().size(), needed = page * pages.size();
    Buffer& copy = copies_[static_cast<size_t>(i)];
    if (copy.size() >= needed) continue;
    const size_t room = needed + 4 * page;  // of more steps
    ensure(static_cast<int64_t>(room) < available_memory_bytes(), ErrorCode::limit,
           "layer {}: a copy of its cache takes {} bytes: more than the memory that is available", i, room);
    copy = Buffer();
    copy = Buffer(room, "copies of the cache");
    std::memset(copy.data(), 0, room);  // its pages come now and not in a step
  }
}

std::span<const std::byte> CopyingProbe::copy_of(int64_t layer) const {
  return {copies_[static_cast<size_t>(layer)].data(), copied_[static_cast<size_t>(layer)]};
}

void CopyingProbe::copy(int64_t layer, int64_t group) {
  const AttentionSpec& a = *engine_.spec().layers[static_cast<size_t>(layer)].attention;
  const auto& pages = pages_[static_cast<size_t>(a.kv_owner)];
  if (pages.empty()) return;
  const size_t page = pages.front().size(), head = page / static_cast<size_t>(a.n_kv_heads);
  std::byte* const to = copies_[static_cast<size_t>(layer)].data();
  team_.parallel_for(static_cast<int64_t>(pages.size()), 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) {
      const std::byte* const from = pages[static_cast<size_t>(p)].data();
      std::byte* const place = to + static_cast<size_t>(p) * page;
      for (int64_t h = 0; h < a.n_kv_heads; ++h)
        std::memcpy(place + static_cast<size_t>(h) * head,
                    from + static_cast<size_t>(h / group * group) * head, head);
    }
  });
  const size_t bytes = page * pages.size();
  copied_[static_cast<size_t>(layer)] = bytes;
  read_ += static_cast<int64_t>(bytes) / group;
  written_ += static_cast<int64_t>(bytes);
}

bool ExpandProbe::copies(int64_t layer) const {
  const auto& attention = spec_.layers[static_cast<size_t>(layer)].attention;
  return attention && group_of(*attention) > 1;
}

void ExpandProbe::on_op(const OpRows& op) {
  if (op.op == Op::turned_query && copies(op.layer))
    copy(op.layer, group_of(*spec_.layers[static_cast<size_t>(op.layer)].attention));
}

bool ConcatProbe::copies(int64_t layer) const {
  return engine_.spec().layers[static_cast<size_t>(layer)].owns_kv(layer);
}

}  // namespace lapidary::kvlab
