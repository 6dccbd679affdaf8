// The AVX-512 kernels once more, their instructions emulated: see emulated_avx512.h.
#include "kernels/emulated_avx512.h"

#include <limits>
#include <type_traits>

#include "kernels/kernels.h"

namespace lapidary::kernels::avx512_emulated {
namespace {
#include "kernels/vec_avx512.h"
// The algorithms, over the type above.
#include "kernels/body.inc"
}  // namespace

extern const Kernels kTable;
const Kernels kTable{
    Isa::avx512, "avx512, emulated", matmul, quantise, matmul_quantised, rms_norm, gelu_gate, silu_gate,
    add_to,      add_scaled,         scale,  rotate,   softcap,          softmax,  attend,
    merge,       encode_kv};

}  // namespace lapidary::kernels::avx512_emulated
