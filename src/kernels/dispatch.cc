#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <string>

#include "base/error.h"
#include "kernels/kernels.h"

namespace lapidary::kernels {
namespace {

#if defined(__x86_64__)
bool has_f16c() {  // clang 16 has no name for it
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 1u << 4) != 0;
}

// The CPU has tiles, and the kernel lets this process use them: their registers are saved for those only who
// have asked.
bool has_amx() {
  static const bool has = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTile) == 0 || (edx & kInt8) == 0)
      return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
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
  fail(ErrorCode::unsupported, "LAPIDARY_ISA: expected scalar, avx2, avx2_vnni, avx512 or amx, got \"{}\"",
       forced);
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::scalar: return "scalar";
    case Isa::avx2: return "avx2";
    case Isa::avx2_vnni: return "avx2_vnni";
    case Isa::avx512: return "avx512";
    case Isa::amx: return "amx";
  }
  fail(ErrorCode::internal, "unknown ISA {}", static_cast<int>(isa));
}

bool isa_available(Isa isa) {
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  switch (isa) {
    case Isa::scalar: return true;
    case Isa::avx2: return has_avx2;
    case Isa::avx2_vnni: return has_avx2 && has_avx_vnni();
    case Isa::avx512: return has_avx512;
    case Isa::amx: return has_avx512 && has_amx();
  }
#endif
  return isa == Isa::scalar;
}

const Kernels& kernels(Isa isa) {
  ensure(isa_available(isa), ErrorCode::unsupported, "this CPU lacks {}", isa_name(isa));
#if defined(__x86_64__)
  switch (isa) {
    case Isa::scalar: break;
    case Isa::avx2: return avx2::kTable;
    case Isa::avx2_vnni: return avx2_vnni::table();
    case Isa::avx512: return avx512::kTable;
    case Isa::amx: return amx::table();
  }
#endif
  return scalar::kTable;
}

const Kernels& kernels() {
  return kernels(choose());
}

}  // namespace lapidary::kernels
