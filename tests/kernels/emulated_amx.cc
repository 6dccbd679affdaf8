// The tile products of AMX once more, their instructions and those of AVX-512 emulated: each does what the
// instruction set reference says. So they are held to the scalar bits on machines that lack AMX.
#include <limits>

#include "kernels/emulated_avx512.h"
#include "kernels/kernels.h"

namespace lapidary::kernels::amx_emulated {
namespace {

struct Tile {
  int rows = 0, row_bytes = 0;
  int8_t bytes[16][64] = {};
  int32_t& word(int row, int i) { return reinterpret_cast<int32_t*>(bytes[row])[i]; }
};
thread_local Tile tiles[8];

void tiles_begin(int rows, int words) {
  for (int t = 0; t < 8; t++) {
    tiles[t] = Tile{};
    tiles[t].rows = t >= 6 ? words : rows;
    tiles[t].row_bytes = t >= 4 && t < 6 ? 4 * words : 64;
  }
}
void tiles_end() {
  for (Tile& t : tiles) t = Tile{};
}
template <int kTile>
void tile_zero() {
  std::memset(tiles[kTile].bytes, 0, sizeof tiles[kTile].bytes);
}
template <int kTile>
void tile_load(const void* from, int64_t stride) {
  Tile& t = tiles[kTile];
  for (int r = 0; r < t.rows; r++)
    std::memcpy(t.bytes[r], static_cast<const char*>(from) + r * stride, static_cast<size_t>(t.row_bytes));
}
template <int kTile>
void tile_store(void* to) {
  for (int r = 0; r < tiles[kTile].rows; r++)
    std::memcpy(static_cast<char*>(to) + 64 * r, tiles[kTile].bytes[r], 64);
}
template <int kSums, int kActivations, int kWeights>
void tile_dot() {
  Tile &sums = tiles[kSums], &x = tiles[kActivations], &w = tiles[kWeights];
  for (int r = 0; r < sums.rows; r++)
    for (int k = 0; k < x.row_bytes; k++)
      for (int n = 0; n < 16; n++) sums.word(r, n) += x.bytes[r][k] * w.bytes[k / 4][4 * n + k % 4];
}

#include "kernels/vec_avx512.h"
// The algorithms, over the types above.
#include "kernels/tile_products.inc"

}  // namespace

extern const Kernels kTable;
const Kernels kTable = [] {
  Kernels k;
  k.isa = Isa::amx;
  k.name = "amx, emulated";
  k.matmul_quantised = tile_matmul;
  return k;
}();

}  // namespace lapidary::kernels::amx_emulated
