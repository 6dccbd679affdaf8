// Packed models made by hand for tests, and bytes of them made consistent again after a change.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "formats/artifact.h"
#include "formats/artifact_frame.h"

namespace lapidary::test {

inline ArtifactEnd end_of(std::span<const std::byte> bytes) {
  ArtifactEnd end;
  std::memcpy(&end, bytes.data() + bytes.size() - sizeof end, sizeof end);
  return end;
}

// The bytes up to the index, with another index.
inline std::vector<std::byte> with_index(std::span<const std::byte> bytes, const std::string& index) {
  ArtifactStart start;
  std::memcpy(&start, bytes.data(), sizeof start);
  ArtifactEnd end = end_of(bytes);
  std::vector<std::byte> out(bytes.begin(), bytes.begin() + end.index_offset);
  end.index_length = static_cast<int64_t>(index.size());
  end.file_bytes = end.index_offset + end.index_length + static_cast<int64_t>(sizeof end);
  end.hash = artifact_frame_hash(start, index, end);
  const auto text = std::as_bytes(std::span(index)), last = std::as_bytes(std::span(&end, 1));
  out.insert(out.end(), text.begin(), text.end());
  out.insert(out.end(), last.begin(), last.end());
  return out;
}

inline std::string index_of(std::span<const std::byte> bytes) {
  const ArtifactEnd end = end_of(bytes);
  return {reinterpret_cast<const char*>(bytes.data()) + end.index_offset,
          static_cast<size_t>(end.index_length)};
}

// A model of one layer, small enough to damage each of its bytes in turn: its packed weights are no real
// ones.
inline ModelSpec small_spec() {
  ModelSpec spec;
  spec.vocab_size = 6;
  spec.d_model = 4;
  spec.max_position = 8;
  LayerSpec layer;
  layer.attention = AttentionSpec{.n_heads = 1, .n_kv_heads = 1, .head_dim = 4};
  layer.ffn = FfnSpec{.d_ff = 4};
  spec.layers.push_back(layer);
  spec.validate();
  return spec;
}

}  // namespace lapidary::test
