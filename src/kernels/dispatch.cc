#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "kernels/kernels.h"

namespace lapidary::kernels {
namespace {

constexpr std::array kIsas{Isa::scalar, Isa::avx2, Isa::avx512};

#if defined(__x86_64__)
bool has_f16c() {  // clang 16 has no name for it
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

Isa best() {
  Isa found = Isa::scalar;
  for (Isa isa : kIsas)
    if (isa_available(isa)) found = isa;
  return found;
}

Isa choose() {
  const char* forced = std::getenv("LAPIDARY_ISA");
  if (!forced || !*forced) return best();
  for (Isa isa : kIsas)
    if (isa_name(isa) == forced) {
      ensure(isa_available(isa), ErrorCode::unsupported, "LAPIDARY_ISA={}: this CPU lacks it (best here: {})",
             forced, isa_name(best()));
      return isa;
    }
  fail(ErrorCode::unsupported, "LAPIDARY_ISA: expected scalar, avx2 or avx512, got \"{}\"", forced);
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar: return "scalar";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
  }
  fail(ErrorCode::internal, "unknown ISA {}", static_cast<int>(isa));
}

bool isa_available(Isa isa) {
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  switch (isa) {
    case Isa::scalar: return true;
    case Isa::avx2: return has_avx2;
    case Isa::avx512:
      return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vnni");
  }
#endif
  return isa == Isa::scalar;
}

const Kernels& kernels(Isa isa) {
  ensure(isa_available(isa), ErrorCode::unsupported, "this CPU lacks {}", isa_name(isa));
#if defined(__x86_64__)
  if (isa == Isa::avx512) return avx512::kTable;
  if (isa == Isa::avx2) return avx2::kTable;
#endif
  return scalar::kTable;
}

const Kernels& kernels() {
  return kernels(choose());
}

}  // namespace lapidary::kernels
