#include "engine/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace lapidary {
namespace {

using kernels::kBlock;

KvGeometry geometry_of(const ModelSpec& spec, int64_t index, const KvTypes& types) {
  const LayerSpec& layer = spec.layers[static_cast<size_t>(index)];
  if (!layer.owns_kv(index)) return {};
  const AttentionSpec& a = *layer.attention;
  return {true, a.n_kv_heads, a.head_dim, a.window, kernels::kv_layout(types, a.head_dim)};
}

int64_t blocks_of(int64_t positions) {
  return (positions + kBlock - 1) / kBlock;
}

// Pages that one sequence of a layer can hold at once: the window, what is kept behind it, one step's rows,
// and a part of a page at either end.
int64_t ring_size(const KvGeometry& g, const KvCacheOptions& o) {
  const int64_t all = blocks_of(o.context);
  return g.window ? std::min(all, (g.window + o.keep_behind + o.step_rows) / kBlock + 2) : all;
}

// Room for all sequences at their greatest, none of them sharing a page, or for what memory is allowed.
PagePool make_pool(const ModelSpec& spec, const KvCacheOptions& o, bool sliding, const char* name) {
  size_t page_bytes = 0;
  int64_t pages = 0;
  for (int64_t i = 0; i < spec.n_layers(); i++) {
    const KvGeometry g = geometry_of(spec, i, o.types);
    if (!g.owner || (g.window > 0) != sliding) continue;
    page_bytes = std::max(page_bytes, g.page_bytes());
    pages += o.max_sequences * ring_size(g, o);
  }
  page_bytes = (page_bytes + 63) / 64 * 64;
  if (o.bytes > 0 && page_bytes > 0) pages = std::min(pages, o.bytes / static_cast<int64_t>(page_bytes));
  return {page_bytes, pages, name};
}

}  // namespace

size_t KvGeometry::position_bytes() const {
  return static_cast<size_t>(n_kv_heads) *
         (kv_row_bytes(layout.types.keys, head_dim) + kv_row_bytes(layout.types.values, head_dim));
}

KvCache::KvCache(const ModelSpec& spec, const KvCacheOptions& options)
    : options_(options),
      tokens_(static_cast<size_t>(options.max_sequences * options.context) * sizeof(int32_t), "token ids",
              true),
      sliding_(make_pool(spec, options, true, "KV pages of sliding layers")),
      full_(make_pool(spec, options, false, "KV pages of global layers")) {
  for (int64_t i = 0; i < spec.n_layers(); i++) {
    const KvGeometry g = geometry_of(spec, i, options.types);
    layers_.push_back({g, g.owner ? ring_size(g, options) : 0});
  }
  const int64_t everything = bytes_reserved();
  options_.bytes = options.bytes > 0 ? std::min(options.bytes, everything) : everything;
  sequences_.resize(static_cast<size_t>(options.max_sequences));
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
  return sequence >= 0 && static_cast<size_t>(sequence) < sequences_.size() && at(sequence).open;
}

int32_t* KvCache::token_row(int32_t sequence) const {
  return reinterpret_cast<int32_t*>(tokens_.data()) + int64_t{sequence} * options_.context;
}

std::span<const int32_t> KvCache::tokens(int32_t sequence) const {
  return {token_row(sequence), static_cast<size_t>(length(sequence))};
}

// ---- pages ----

void KvCache::release_before(const Layer& layer, PageTable& table, int64_t first) {
  for (; table.first < first; table.first++)
    pool(layer).give_back(table.pages[static_cast<size_t>(table.first % layer.ring)]);
}

void KvCache::release_from(const Layer& layer, PageTable& table, int64_t end) {
  for (; table.end > end; table.end--)
    pool(layer).give_back(table.pages[static_cast<size_t>((table.end - 1) % layer.ring)]);
}

void KvCache::own(const Layer& layer, PageTable& table, int64_t block) {
  int32_t& page = table.pages[static_cast<size_t>(block % layer.ring)];
  PagePool& pages = pool(layer);
  if (!pages.is_shared(page)) return;
  const int32_t copy = pages.take();
  std::memcpy(pages.data(copy), pages.data(page), layer.geometry.page_bytes());
  pages.give_back(page);
  page = copy;
  page_copies_++;
}

void KvCache::close(int32_t sequence) {
  trim(sequence, 0);
  at(sequence).open = false;
}

int64_t KvCache::bytes_to_grow(int32_t sequence, int64_t n) const {
  const Sequence& s = at(sequence);
  int64_t bytes = 0;
  for (size_t i = 0; i < layers_.size(); i++) {
    if (!layers_[i].geometry.owner) continue;
    const PageTable& table = s.tables[i];
    const PagePool& pages = pool(layers_[i]);
    int64_t taken = std::max<int64_t>(0, blocks_of(s.length + n) - table.end);
    for (int64_t b = s.length / kBlock; b < table.end; b++)
      taken += pages.is_shared(table.pages[static_cast<size_t>(b % layers_[i].ring)]);
    bytes += taken * pages.page_bytes();
  }
  return bytes;
}

int64_t KvCache::bytes_to_assign(int64_t length, std::span<const int64_t> first_blocks) const {
  int64_t bytes = 0;
  for (size_t i = 0; i < layers_.size(); i++)
    if (layers_[i].geometry.owner)
      bytes += (blocks_of(length) - first_blocks[i]) * pool(layers_[i]).page_bytes();
  return bytes;
}

int64_t KvCache::bytes_of_its_own(int32_t sequence) const {
  int64_t bytes = 0;
  for (size_t i = 0; i < layers_.size(); i++) {
    const PageTable& table = at(sequence).tables[i];
    for (int64_t b = table.first; b < table.end; b++)
      if (!pool(layers_[i]).is_shared(table.pages[static_cast<size_t>(b % layers_[i].ring)]))
        bytes += pool(layers_[i]).page_bytes();
  }
  return bytes;
}

int64_t KvCache::bytes_at_length(int64_t length) const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_)
    if (layer.geometry.owner) bytes += std::min(layer.ring, blocks_of(length)) * pool(layer).page_bytes();
  return bytes;
}

void KvCache::grow(int32_t sequence, std::span<const int32_t> tokens) {
  Sequence& s = at(sequence);
  const int64_t taken = bytes_to_grow(sequence, static_cast<int64_t>(tokens.size()));
  ensure(taken <= bytes_allowed() - bytes_in_use(), ErrorCode::limit,
         "sequence {}: {} tokens after {} need {} bytes of KV pages, {} of {} are free", sequence,
         tokens.size(), s.length, taken, bytes_allowed() - bytes_in_use(), bytes_allowed());
  std::copy(tokens.begin(), tokens.end(), token_row(sequence) + s.length);
  const int64_t end = blocks_of(s.length + static_cast<int64_t>(tokens.size()));
  for (size_t i = 0; i < layers_.size(); i++) {
    if (!layers_[i].geometry.owner) continue;
    PageTable& table = s.tables[i];
    for (int64_t b = s.length / kBlock; b < table.end; b++) own(layers_[i], table, b);
    for (; table.end < end; table.end++)
      table.pages[static_cast<size_t>(table.end % layers_[i].ring)] = pool(layers_[i]).take();
  }
}

// The next query of a sequence of `length` sees positions from length - window + 1 on.
int64_t KvCache::first_kept(int64_t layer, int64_t length) const {
  const int64_t window = geometry(layer).window;
  return window ? std::max<int64_t>(0, length - window + 1 - options_.keep_behind) / kBlock : 0;
}

void KvCache::commit(int32_t sequence, int64_t n) {
  Sequence& s = at(sequence);
  s.length += n;
  for (size_t i = 0; i < layers_.size(); i++)
    if (layers_[i].geometry.owner && layers_[i].geometry.window)
      release_before(layers_[i], s.tables[i], first_kept(static_cast<int64_t>(i), s.length));
}

std::byte* KvCache::page(int64_t layer, int32_t sequence, int64_t block) const {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  const PageTable& table = at(sequence).tables[static_cast<size_t>(layer)];
  return pool(l).data(table.pages[static_cast<size_t>(block % l.ring)]);
}

KvPageView KvCache::page_view(int64_t layer, int32_t sequence, int64_t block) const {
  const Layer& l = layers_[static_cast<size_t>(layer)];
  const PageTable& table = at(sequence).tables[static_cast<size_t>(layer)];
  const PagePool& pages = pool(l);
  const int32_t page = table.pages[static_cast<size_t>(block % l.ring)];
  return {.layer = layer,
          .first = block * kBlock,
          .positions = std::min(kBlock, length(sequence) - block * kBlock),
          .room = kBlock,
          .shared = pages.is_shared(page),
          .holders = pages.holders(page),
          .sliding = l.geometry.window > 0,
          .pool_offset = page * pages.page_bytes(),
          .bytes = {pages.data(page), l.geometry.page_bytes()},
          .pool_bytes = pages.page_bytes()};
}

// ---- going back, branching off ----

int32_t KvCache::fork(int32_t sequence) {
  const int32_t branch = open();
  const Sequence& from = at(sequence);
  Sequence& to = at(branch);
  to.length = from.length;
  std::copy_n(token_row(sequence), from.length, token_row(branch));
  for (size_t i = 0; i < layers_.size(); i++) {
    if (!layers_[i].geometry.owner) continue;
    PageTable& table = to.tables[i];
    table.pages = from.tables[i].pages;  // the same size: no allocation
    table.first = from.tables[i].first;
    table.end = blocks_of(from.length);
    for (int64_t b = table.first; b < table.end; b++)
      pool(layers_[i]).share(table.pages[static_cast<size_t>(b % layers_[i].ring)]);
  }
  return branch;
}

int64_t KvCache::restart_of(const Layer& layer, const PageTable& table) const {
  const bool whole = !layer.geometry.owner || layer.geometry.window == 0 || table.first == 0;
  return whole ? 0 : table.first * kBlock + layer.geometry.window - 1;
}

KvCache::Restart KvCache::earliest_restart(int32_t sequence) const {
  Restart earliest;
  for (size_t i = 0; i < layers_.size(); i++) {
    const int64_t length = restart_of(layers_[i], at(sequence).tables[i]);
    if (length > earliest.length) earliest = {length, static_cast<int64_t>(i)};
  }
  return earliest;
}

void KvCache::trim(int32_t sequence, int64_t length) {
  Sequence& s = at(sequence);
  ensure(length >= 0 && length <= s.length, ErrorCode::usage,
         "sequence {}: cannot be cut to {} positions, it has {}", sequence, length, s.length);
  const Restart earliest = earliest_restart(sequence);
  ensure(length == 0 || length >= earliest.length, ErrorCode::limit,
         "sequence {}: cannot go on from position {}: layer {} no longer holds the window of {} positions "
         "there; possible are 0 and positions from {} to {}",
         sequence, length, earliest.layer, geometry(std::max<int64_t>(0, earliest.layer)).window,
         earliest.length, s.length);
  for (size_t i = 0; i < layers_.size(); i++) {
    if (!layers_[i].geometry.owner) continue;
    PageTable& table = s.tables[i];
    release_from(layers_[i], table, std::max(table.first, blocks_of(length)));
    if (length == 0) {
      release_before(layers_[i], table, table.end);
      table.first = table.end = 0;
    }
  }
  s.length = length;
}

// ---- contents from and for outside ----

KvCache::Blocks KvCache::live(int64_t layer, int32_t sequence) const {
  if (!geometry(layer).owner) return {};
  return {at(sequence).tables[static_cast<size_t>(layer)].first, blocks_of(length(sequence))};
}

void KvCache::assign(int32_t sequence, std::span<const int32_t> tokens,
                     std::span<const int64_t> first_blocks) {
  trim(sequence, 0);
  Sequence& s = at(sequence);
  s.length = static_cast<int64_t>(tokens.size());
  std::copy(tokens.begin(), tokens.end(), token_row(sequence));
  for (size_t i = 0; i < layers_.size(); i++) {
    if (!layers_[i].geometry.owner) continue;
    PageTable& table = s.tables[i];
    table.first = table.end = first_blocks[i];
    for (; table.end < blocks_of(s.length); table.end++)
      table.pages[static_cast<size_t>(table.end % layers_[i].ring)] = pool(layers_[i]).take();
  }
}

namespace {

// The pieces of a packed block and where they lie in a page: f(bytes in the page, length). What is padding in
// the page has no piece.
template <typename Fn>
void for_pieces(const KvGeometry& g, std::byte* page, int64_t n, Fn&& f) {
  const kernels::KvLayout& l = g.layout;
  const auto size = [](DType type) { return dtype_info(type).block_bytes; };
  const auto count = static_cast<size_t>(n);
  for (int64_t h = 0; h < g.n_kv_heads; h++, page += l.head_bytes) {
    const size_t key = size(l.types.keys), value = size(l.types.values);
    for (int64_t d = 0; d < g.head_dim; d++) f(page + static_cast<size_t>(d * kBlock) * key, count * key);
    if (l.types.keys == DType::i8) f(page + l.key_scales_at, count * sizeof(float));
    for (int64_t i = 0; i < n; i++)
      f(page + l.values_at + static_cast<size_t>(i * l.padded_dim) * value,
        static_cast<size_t>(g.head_dim) * value);
    if (l.types.values == DType::i8) f(page + l.value_scales_at, count * sizeof(float));
  }
}

template <typename T>
void put_column(std::byte* keys, int64_t position, const std::byte* codes, int64_t n) {
  auto* to = reinterpret_cast<T*>(keys) + position;
  const auto* from = reinterpret_cast<const T*>(codes);
  for (int64_t d = 0; d < n; d++) to[d * kBlock] = from[d];
}

void put_scale(std::byte* scales, int64_t position, float scale) {
  std::memcpy(scales + static_cast<size_t>(position) * sizeof scale, &scale, sizeof scale);
}

KvCache::Misfit misfit(const char* what, DType type, int64_t head, const float* x, int64_t n) {
  float worst = x[0];
  for (int64_t i = 0; i < n && std::isfinite(worst); i++)
    if (!(std::fabs(x[i]) <= std::fabs(worst))) worst = x[i];
  return {what, type, head, worst};
}

}  // namespace

void KvCache::copy_out(int64_t layer, int32_t sequence, int64_t block, int64_t n, std::byte* packed) const {
  for_pieces(geometry(layer), page(layer, sequence, block), n, [&](const std::byte* piece, size_t bytes) {
    std::memcpy(packed, piece, bytes);
    packed += bytes;
  });
}

void KvCache::copy_in(int64_t layer, int32_t sequence, int64_t block, int64_t n, const std::byte* packed) {
  for_pieces(geometry(layer), page(layer, sequence, block), n, [&](std::byte* piece, size_t bytes) {
    std::memcpy(piece, packed, bytes);
    packed += bytes;
  });
}

void KvCache::share_equal_pages(int32_t sequence, int32_t with) {
  const std::span<const int32_t> mine = tokens(sequence), theirs = tokens(with);
  const size_t n = std::min(mine.size(), theirs.size());
  const auto common =
      std::mismatch(mine.begin(), mine.begin() + static_cast<std::ptrdiff_t>(n), theirs.begin());
  const int64_t whole = (common.first - mine.begin()) / kBlock;
  for (size_t i = 0; i < layers_.size(); i++) {
    const Layer& layer = layers_[i];
    if (!layer.geometry.owner) continue;
    PageTable& to = at(sequence).tables[i];
    const PageTable& from = at(with).tables[i];
    PagePool& pages = pool(layer);
    for (int64_t b = std::max(to.first, from.first); b < std::min({to.end, from.end, whole}); b++) {
      int32_t& page = to.pages[static_cast<size_t>(b % layer.ring)];
      const int32_t other = from.pages[static_cast<size_t>(b % layer.ring)];
      bool same = page != other;
      const std::ptrdiff_t apart = pages.data(other) - pages.data(page);
      for_pieces(layer.geometry, pages.data(page), kBlock, [&](const std::byte* piece, size_t bytes) {
        same = same && std::memcmp(piece, piece + apart, bytes) == 0;
      });
      if (!same) continue;
      pages.share(other);
      pages.give_back(page);
      page = other;
    }
  }
}

std::optional<KvCache::Misfit> KvCache::store(const kernels::Kernels& kernels, int64_t layer,
                                              int32_t sequence, int64_t position, float* k, float* v) {
  const KvGeometry& g = geometry(layer);
  const kernels::KvLayout& l = g.layout;
  std::byte* head = page(layer, sequence, position / kBlock);
  const int64_t at_position = position % kBlock, n = g.head_dim;
  float scale = 0;
  for (int64_t h = 0; h < g.n_kv_heads; h++, head += l.head_bytes, k += n, v += n) {
    if (!kernels.encode_kv(l.types.keys, k, n, k, &scale)) return misfit("key", l.types.keys, h, k, n);
    const auto* codes = reinterpret_cast<const std::byte*>(k);
    switch (dtype_info(l.types.keys).block_bytes) {
      case 1: put_column<uint8_t>(head, at_position, codes, n); break;
      case 2: put_column<uint16_t>(head, at_position, codes, n); break;
      default: put_column<float>(head, at_position, codes, n);
    }
    if (l.types.keys == DType::i8) put_scale(head + l.key_scales_at, at_position, scale);
    const size_t row =
        static_cast<size_t>(at_position * l.padded_dim) * dtype_info(l.types.values).block_bytes;
    if (!kernels.encode_kv(l.types.values, v, n, head + l.values_at + row, &scale))
      return misfit("value", l.types.values, h, v, n);
    if (l.types.values == DType::i8) put_scale(head + l.value_scales_at, at_position, scale);
  }
  return {};
}

void KvCache::read(int64_t layer, int32_t sequence, int64_t position, float* k, float* v) const {
  const KvGeometry& g = geometry(layer);
  const std::byte* head = page(layer, sequence, position / kBlock);
  for (int64_t h = 0; h < g.n_kv_heads; h++, head += g.layout.head_bytes)
    for (int64_t d = 0; d < g.head_dim; d++) {
      *k++ = kernels::kv_key(g.layout, head, position % kBlock, d);
      *v++ = kernels::kv_value(g.layout, head, position % kBlock, d);
    }
}

}  // namespace lapidary
