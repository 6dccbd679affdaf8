#include "engine/kv_state.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/kernels.h"

namespace lapidary {

using kernels::kBlock;
using namespace kv_state;

namespace {

uint32_t dtype_code(DType dtype) {
  switch (dtype) {
    case DType::f32: return 0;
    case DType::bf16: return 1;
    case DType::f16: return 2;
    case DType::i8: return 3;
    default: fail(ErrorCode::internal, "KV dtype {} has no code", dtype_name(dtype));
  }
}

uint32_t rope_code(RopeKind kind) {
  switch (kind) {
    case RopeKind::plain: return 0;
    case RopeKind::proportional: return 1;
    case RopeKind::llama3: return 2;
    case RopeKind::divisors: return 3;
  }
  fail(ErrorCode::internal, "rope kind {} has no code", static_cast<int>(kind));
}

LayerEntry entry_of(const ModelSpec& spec, int64_t index) {
  LayerEntry entry{.layer = static_cast<uint32_t>(index)};
  const LayerSpec& layer = spec.layers[static_cast<size_t>(index)];
  if (!layer.attention) return entry;
  const AttentionSpec& a = *layer.attention;
  entry.kind = layer.owns_kv(index) ? kOwner : kBorrower;
  entry.owner = static_cast<uint32_t>(a.kv_owner);
  entry.n_kv_heads = static_cast<uint32_t>(a.n_kv_heads);
  entry.head_dim = static_cast<uint32_t>(a.head_dim);
  entry.rope_kind = rope_code(a.rope.kind);
  entry.window = static_cast<uint64_t>(a.window);
  entry.rope_theta = a.rope.theta;
  return entry;
}

}  // namespace

Hash128 kv_state::entry_hash(const Hash128& header, const LayerEntry& entry) {
  return Hasher().add(header).add(hashed_part(entry)).digest();
}

Hash128 kv_state::page_hash(const Hash128& header, int64_t layer, int64_t block,
                            std::span<const std::byte> packed) {
  Hasher hasher;
  hasher.add(header).add(static_cast<uint64_t>(layer)).add(static_cast<uint64_t>(block));
  return hasher.add(packed).digest();
}

StateFrame expected_frame(const KvCache& cache, const StateKey& key) {
  StateFrame frame;
  Header& h = frame.header;
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.version = kVersion;
  h.byte_order = kByteOrder;
  h.model = key.model;
  ensure(key.arithmetic.size() <= sizeof h.arithmetic, ErrorCode::internal,
         "arithmetic \"{}\": expected at most {} characters", key.arithmetic, sizeof h.arithmetic);
  std::copy(key.arithmetic.begin(), key.arithmetic.end(), h.arithmetic);
  h.key_dtype = dtype_code(cache.types().keys);
  h.value_dtype = dtype_code(cache.types().values);
  h.block = kBlock;
  h.n_layers = static_cast<uint32_t>(key.spec.n_layers());
  h.vocab_size = static_cast<uint32_t>(key.spec.vocab_size);
  for (int64_t i = 0; i < key.spec.n_layers(); i++) frame.layers.push_back(entry_of(key.spec, i));
  return frame;
}

void write_state(const KvCache& cache, int32_t sequence, const StateKey& key,
                 std::span<const std::byte> attachment, FunctionRef<void(std::span<const std::byte>)> sink) {
  StateFrame frame = expected_frame(cache, key);
  const std::span<const std::byte> tokens = std::as_bytes(cache.tokens(sequence));
  const int64_t length = cache.length(sequence);
  Header& h = frame.header;
  h.length = static_cast<uint64_t>(length);
  h.earliest_restart = static_cast<uint64_t>(cache.earliest_restart(sequence).length);
  h.attachment_bytes = attachment.size();
  h.tokens_hash = hash128(tokens);
  h.attachment_hash = hash128(attachment);
  h.hash = hash128(hashed_part(h));
  sink(bytes_of(h));
  size_t widest = 0;
  for (int64_t i = 0; i < cache.n_layers(); i++) {
    LayerEntry& entry = frame.layers[static_cast<size_t>(i)];
    entry.first = static_cast<uint64_t>(cache.live(i, sequence).first * kBlock);
    entry.hash = entry_hash(h.hash, entry);
    sink(bytes_of(entry));
    widest = std::max(widest, static_cast<size_t>(kBlock) * cache.geometry(i).position_bytes());
  }
  sink(tokens);
  sink(attachment);
  std::vector<std::byte> packed(widest + sizeof(Hash128));  // one page and its checksum, one write
  for (int64_t i = 0; i < cache.n_layers(); i++) {
    const KvCache::Blocks blocks = cache.live(i, sequence);
    for (int64_t b = blocks.first; b < blocks.end; b++) {
      const int64_t n = std::min(kBlock, length - b * kBlock);
      const size_t size = static_cast<size_t>(n) * cache.geometry(i).position_bytes();
      cache.copy_out(i, sequence, b, n, packed.data());
      const Hash128 hash = page_hash(h.hash, i, b, std::span(packed).first(size));
      std::memcpy(packed.data() + size, &hash, sizeof hash);
      sink(std::span(packed).first(size + sizeof hash));
    }
  }
}

}  // namespace lapidary
