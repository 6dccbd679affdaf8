#include "kvlab/offload/state_parts.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.h"
#include "kernels/kv_layout.h"

namespace lapidary::kvlab {

using namespace kv_state;

namespace {

constexpr uint32_t kMostHeads = 1 << 16, kMostBlock = 1 << 16;

std::optional<DType> type_of_code(uint32_t code) {
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::i8};
  if (code >= std::size(kTypes)) return {};
  return kTypes[code];
}

size_t key_bytes(const KvTypes& types, const PagePart& page) {
  return kv_row_bytes(types.keys, page.head_dim) * static_cast<size_t>(page.positions);
}
size_t value_bytes(const KvTypes& types, const PagePart& page) {
  return kv_row_bytes(types.values, page.head_dim) * static_cast<size_t>(page.positions);
}

// Numbers of a row, then their scale: both NaN, as far as the type has one.
void fill_with_nan(std::span<std::byte> bytes, DType type, int64_t numbers) {
  const auto fill = [&](auto pattern, std::span<std::byte> to) {
    for (size_t at = 0; at + sizeof pattern <= to.size(); at += sizeof pattern)
      std::memcpy(to.data() + at, &pattern, sizeof pattern);
  };
  switch (type) {
    case DType::f32: return fill(std::numeric_limits<float>::quiet_NaN(), bytes);
    case DType::f16: return fill(uint16_t{0x7e00}, bytes);
    case DType::bf16: return fill(uint16_t{0x7fc0}, bytes);
    case DType::i8:
      fill(uint8_t{0x7f}, bytes.first(static_cast<size_t>(numbers)));
      return fill(std::numeric_limits<float>::quiet_NaN(), bytes.subspan(static_cast<size_t>(numbers)));
    default: fail(ErrorCode::internal, "{} is no type of a KV cache", dtype_name(type));
  }
}

}  // namespace

StateParts parts_of(std::span<const std::byte> bytes) {
  StateParts parts;
  if (bytes.size() < sizeof(Header)) return parts;
  const Header h = parts.header = record_at<Header>(bytes, 0);
  size_t at = sizeof(Header);
  for (uint32_t i = 0; i < h.n_layers && bytes.size() - at >= sizeof(LayerEntry); i++) {
    parts.entries.push_back(record_at<LayerEntry>(bytes, at));
    at += sizeof(LayerEntry);
  }
  if (parts.entries.size() < h.n_layers) return parts;
  parts.tokens_at = at;
  if (h.length > (bytes.size() - at) / sizeof(int32_t)) return parts;
  parts.attachment_at = at += static_cast<size_t>(h.length) * sizeof(int32_t);
  const std::optional<DType> keys = type_of_code(h.key_dtype), values = type_of_code(h.value_dtype);
  if (h.attachment_bytes > bytes.size() - at || !keys || !values || h.block == 0 || h.block > kMostBlock)
    return parts;
  parts.pages_at = at += static_cast<size_t>(h.attachment_bytes);
  parts.types = {*keys, *values};
  for (size_t i = 0; i < parts.entries.size(); i++) {
    const LayerEntry& e = parts.entries[i];
    if (e.kind != kOwner || e.n_kv_heads > kMostHeads || e.head_dim > kMostHeads) continue;
    for (uint64_t first = e.first; first < h.length; first += h.block) {
      PagePart page{.layer = static_cast<int64_t>(i),
                    .block = static_cast<int64_t>(first / h.block),
                    .positions = static_cast<int64_t>(std::min<uint64_t>(h.block, h.length - first)),
                    .n_kv_heads = e.n_kv_heads,
                    .head_dim = e.head_dim,
                    .at = at};
      page.bytes = e.n_kv_heads * (key_bytes(parts.types, page) + value_bytes(parts.types, page));
      if (page.bytes + sizeof(Hash128) > bytes.size() - at) return parts;
      at = page.end();
      parts.pages.push_back(page);
    }
  }
  parts.whole = at == bytes.size();
  return parts;
}

void seal(std::span<std::byte> bytes) {
  const StateParts parts = parts_of(bytes);
  if (bytes.size() < sizeof(Header)) return;
  Header h = parts.header;
  if (parts.attachment_at > 0)
    h.tokens_hash = hash128(bytes.subspan(parts.tokens_at, parts.attachment_at - parts.tokens_at));
  if (parts.pages_at > 0)
    h.attachment_hash = hash128(bytes.subspan(parts.attachment_at, parts.pages_at - parts.attachment_at));
  h.hash = hash128(hashed_part(h));
  put_record(bytes, 0, h);
  for (size_t i = 0; i < parts.entries.size(); i++) {
    LayerEntry entry = parts.entries[i];
    entry.hash = entry_hash(h.hash, entry);
    put_record(bytes, parts.entry_at(i), entry);
  }
  for (const PagePart& page : parts.pages)
    put_record(bytes, page.at + page.bytes,
               page_hash(h.hash, page.layer, page.block, bytes.subspan(page.at, page.bytes)));
}

std::vector<std::byte> poisoned(std::span<const std::byte> state) {
  std::vector<std::byte> bytes(state.begin(), state.end());
  const StateParts parts = parts_of(bytes);
  ensure(parts.whole, ErrorCode::internal, "a state to be poisoned: its parts do not fill its {} bytes",
         bytes.size());
  for (const PagePart& page : parts.pages) {
    std::span<std::byte> rest = std::span(bytes).subspan(page.at, page.bytes);
    for (int64_t h = 0; h < page.n_kv_heads; h++) {
      const size_t keys = key_bytes(parts.types, page), values = value_bytes(parts.types, page);
      fill_with_nan(rest.first(keys), parts.types.keys, page.head_dim * page.positions);
      fill_with_nan(rest.subspan(keys, values), parts.types.values, page.head_dim * page.positions);
      rest = rest.subspan(keys + values);
    }
  }
  seal(bytes);
  return bytes;
}

std::vector<PageHash> page_hashes(std::span<const std::byte> state, const StateParts& parts) {
  std::vector<PageHash> hashes;
  for (const PagePart& page : parts.pages) {
    Hasher keys, values;
    std::span<const std::byte> rest = state.subspan(page.at, page.bytes);
    for (int64_t h = 0; h < page.n_kv_heads; h++) {
      const size_t k = key_bytes(parts.types, page), v = value_bytes(parts.types, page);
      keys.add(rest.first(k));
      values.add(rest.subspan(k, v));
      rest = rest.subspan(k + v);
    }
    hashes.push_back({page.layer, page.block * int64_t{parts.header.block}, page.positions,
                      static_cast<int64_t>(page.bytes), keys.digest(), values.digest()});
  }
  return hashes;
}

std::vector<PageHash> page_hashes(const Engine& engine, int32_t sequence, const KvTypes& types) {
  std::vector<PageHash> hashes;
  engine.for_each_page(sequence, [&](const KvPageView& view) {
    const AttentionSpec& a = *engine.spec().layers[static_cast<size_t>(view.layer)].attention;
    const kernels::KvLayout l = kernels::kv_layout(types, a.head_dim);
    const auto n = static_cast<size_t>(view.positions), width = static_cast<size_t>(a.head_dim);
    const size_t key = dtype_info(types.keys).block_bytes, value = dtype_info(types.values).block_bytes;
    PageHash hash{view.layer, view.first, view.positions, 0, {}, {}};
    Hasher keys, values;
    const auto add = [&](Hasher& to, size_t at, size_t bytes) {
      to.add(view.bytes.subspan(at, bytes));
      hash.kv_bytes += static_cast<int64_t>(bytes);
    };
    for (int64_t h = 0; h < a.n_kv_heads; h++) {
      const size_t head = static_cast<size_t>(h) * l.head_bytes;
      for (size_t d = 0; d < width; d++) add(keys, head + d * kernels::kBlock * key, n * key);
      if (types.keys == DType::i8) add(keys, head + l.key_scales_at, n * sizeof(float));
      for (size_t i = 0; i < n; i++)
        add(values, head + l.values_at + i * static_cast<size_t>(l.padded_dim) * value, width * value);
      if (types.values == DType::i8) add(values, head + l.value_scales_at, n * sizeof(float));
    }
    hash.keys = keys.digest();
    hash.values = values.digest();
    hashes.push_back(hash);
  });
  return hashes;
}

}  // namespace lapidary::kvlab
