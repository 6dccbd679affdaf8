// What this machine can do at best: the measure that speeds are held against. Where a probe answers one
// number, it is the fastest of some rounds, since other load can only slow them down.
#pragma once

#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/team.h"
#include "kernels/kernels.h"

namespace lapidary::kernels {

enum class PageSize { huge, small };  // 2 MiB pages (a wish: the system may refuse them), or 4 KiB ones

// Anonymous memory to read again and again, first touched by the team that is given.
class ReadProbe {
 public:
  ReadProbe(Team& team, int64_t bytes, PageSize pages);
  // Bytes a second of each round of reading the first `bytes` (rounded down to whole pages, one at least),
  // each thread in ranges of its own, with the widest loads of `isa`. A round of few bytes reads them often
  // enough to be measured, after having read them once. Only memory far beyond the last cache says something
  // about memory. REQUIRES: bytes <= size().
  std::vector<double> rates(Team& team, Isa isa, int64_t bytes, int rounds) const;
  int64_t size() const { return static_cast<int64_t>(memory_.size()); }

 private:
  Buffer memory_;
};

// The fastest of the rounds over so many bytes.
double read_bandwidth(Team& team, Isa isa, int64_t bytes, int rounds, PageSize pages);

// Operations a second of the team on numbers that stay in registers; a multiply-add counts as two.
struct Peak {
  double float_ops = 0;    // fused multiply-adds of float32
  double integer_ops = 0;  // products of 8-bit integers, summed in 32 bits
};
Peak arithmetic_peak(Team& team, Isa isa, int rounds);

}  // namespace lapidary::kernels
