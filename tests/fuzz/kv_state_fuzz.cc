// Any bytes as the saved state of a small hybrid model. The first byte says whether the checksums are made
// right first: then the reader has to find by itself what is wrong. What is refused leaves the sequence as it
// was; what is accepted comes out again as it went in.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/kv_state.h"
#include "engine/state_bytes.h"

namespace lapidary {
namespace {

void demand(bool condition) {
  if (!condition) std::abort();
}

// A window, a global layer, a borrower of the first, and one without attention.
ModelSpec small_hybrid() {
  ModelSpec spec;
  spec.vocab_size = 16;
  spec.d_model = 8;
  spec.max_position = 96;
  for (const int64_t window : {5, 0, 5, 0}) {
    const auto index = static_cast<int64_t>(spec.layers.size());
    LayerSpec layer;
    layer.ffn = FfnSpec{.d_ff = 8};
    layer.attention = AttentionSpec{
        .n_heads = 2, .n_kv_heads = window ? 2 : 1, .head_dim = window ? 2 : 4, .window = window};
    layer.attention->kv_owner = index == 2 ? 0 : index;
    if (index == 3) layer.attention.reset();
    spec.layers.push_back(layer);
  }
  spec.validate();
  return spec;
}

std::vector<std::byte> saved(const KvCache& cache, int32_t sequence, const StateKey& key) {
  std::vector<std::byte> bytes;
  write_state(cache, sequence, key, {},
              [&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
  return bytes;
}

void check(std::span<const std::byte> state) {
  static const ModelSpec spec = small_hybrid();
  const StateKey key{spec, {}, "fuzz"};
  KvCache cache(spec, {.max_sequences = 2, .context = 96, .step_rows = 4, .keep_behind = 8});
  const int32_t sequence = cache.open(), other = cache.open();
  const std::vector<int32_t> tokens{1, 2, 3};
  cache.grow(sequence, tokens);
  cache.commit(sequence, 3);
  const std::vector<std::byte> before = saved(cache, sequence, key);
  const auto accept = [](std::span<const std::byte>) {};
  try {
    read_state(cache, sequence, key, state, "fuzz", accept);
  } catch (const Error&) {  // refused, which is an answer
    demand(saved(cache, sequence, key) == before);
    return;
  }
  const std::vector<std::byte> again = saved(cache, sequence, key);
  read_state(cache, other, key, again, "again", accept);
  demand(saved(cache, other, key) == again);
  const int64_t earliest = cache.earliest_restart(sequence).length, length = cache.length(sequence);
  demand(earliest <= length && length <= 96);
  for (int64_t to = length; to >= earliest; --to) cache.trim(sequence, to);
  cache.close(sequence);
  cache.close(other);
  demand(cache.bytes_in_use() == 0);
}

}  // namespace
}  // namespace lapidary

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data + 1, size - 1));
  std::vector<std::byte> state(input.begin(), input.end());
  if (data[0] & 1) lapidary::test::reseal(state);
  lapidary::check(state);
  return 0;
}
