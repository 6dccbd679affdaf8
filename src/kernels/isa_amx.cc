// AVX-512 with the tile registers of AMX for integer products of several rows.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"

namespace lapidary::kernels::amx {
namespace {
#include "kernels/tiles_amx.h"
#include "kernels/vec_avx512.h"
// The algorithms, over the types above.
#include "kernels/tile_products.inc"

constexpr int64_t kRowsWorthTiles = 9;  // below, unpacking weights to memory costs more than it saves

void matmul_quantised(const Panels& w, int64_t first, int64_t last, const QuantisedRows& x, int64_t m,
                      float* y, int64_t ldy) {
  if (m < kRowsWorthTiles) avx512::kTable.matmul_quantised(w, first, last, x, m, y, ldy);
  else tile_matmul(w, first, last, x, m, y, ldy);
}
}  // namespace

const Kernels& table() {
  static const Kernels kTable = [] {
    Kernels k = avx512::kTable;
    k.isa = Isa::amx;
    k.name = "amx";
    k.matmul_quantised = matmul_quantised;
    return k;
  }();
  return kTable;
}

}  // namespace lapidary::kernels::amx
#endif
