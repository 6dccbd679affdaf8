// What this machine can do at best: the measure that speeds are held against. Both probes answer the fastest
// of some rounds, since other load can only slow them down.
#pragma once

#include <cstdint>

#include "base/team.h"
#include "kernels/kernels.h"

namespace lapidary::kernels {

enum class PageSize { huge, small };  // 2 MiB pages (a wish: the system may refuse them), or 4 KiB ones

// Bytes a second that the team reads from `bytes` of anonymous memory, each thread in ranges of its own, with
// the widest loads of `isa`. Only memory far beyond the last cache says something about memory.
double read_bandwidth(Team& team, Isa isa, int64_t bytes, int rounds, PageSize pages);

// Operations a second of the team on numbers that stay in registers; a multiply-add counts as two.
struct Peak {
  double float_ops = 0;    // fused multiply-adds of float32
  double integer_ops = 0;  // products of 8-bit integers, summed in 32 bits
};
Peak arithmetic_peak(Team& team, Isa isa, int rounds);

}  // namespace lapidary::kernels
