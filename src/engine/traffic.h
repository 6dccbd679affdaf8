// What the kernels were given to read and what was stored, counted where they are called. Nothing here is
// estimated: a borrower's reads are its own, a page that two tiles of queries read counts twice.
#pragma once

#include <cstdint>
#include <vector>

namespace lapidary {

// Most query heads that read a KV head's positions together. Where more share one, they read in several
// passes.
inline constexpr int64_t kTileHeads = 12;
constexpr int64_t kv_passes(int64_t n_heads, int64_t n_kv_heads) {
  return (n_heads / n_kv_heads + kTileHeads - 1) / kTileHeads;
}

struct Traffic {                    // bytes, since the engine was made
  int64_t weights_read = 0;         // packed panels of every product
  int64_t table_rows_read = 0;      // rows of tables that are gathered: embeddings
  std::vector<int64_t> kv_read;     // [L] by the layer that reads: positions in sight of its tiles
  std::vector<int64_t> kv_written;  // [L] by the layer that stores

  int64_t all_kv_read() const { return sum(kv_read); }
  int64_t all_kv_written() const { return sum(kv_written); }

 private:
  static int64_t sum(const std::vector<int64_t>& bytes) {
    int64_t total = 0;
    for (const int64_t b : bytes) total += b;
    return total;
  }
};

}  // namespace lapidary
