// The kernels for this ISA: one vector type, one algorithm text. Compiled with this ISA's flags (see
// CMakeLists.txt).
#if defined(__x86_64__)
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/kernels.h"

namespace lapidary::kernels::avx512 {
namespace {
#include "kernels/vec_avx512.h"
// The algorithms, over the type above.
#include "kernels/body.inc"
}  // namespace

const Kernels kTable{Isa::avx512, "avx512",  matmul,    quantise, matmul_quantised,
                     rms_norm,    gelu_gate, silu_gate, add_to,   add_scaled,
                     scale,       rotate,    softcap,   softmax,  attend,
                     merge,     encode_kv};

}  // namespace lapidary::kernels::avx512
#endif
