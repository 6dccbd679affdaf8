// AVX2 with the integer dot products of AVX-VNNI.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"

namespace lapidary::kernels::avx2_vnni {
namespace {
#include "kernels/vec_avx2.h"
// The algorithms, over the type above.
#include "kernels/integer_products.inc"
}  // namespace

const Kernels& table() {
  static const Kernels kTable = [] {
    Kernels k = avx2::kTable;
    k.isa = Isa::avx2_vnni;
    k.name = "avx2_vnni";
    k.quantise = quantise;
    k.matmul_quantised = matmul_quantised;
    return k;
  }();
  return kTable;
}

}  // namespace lapidary::kernels::avx2_vnni
#endif
