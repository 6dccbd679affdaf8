// What this machine can read a second: the ceiling of a roofline. Read-only, since decoding is almost all
// reads; memory far beyond the last cache, and a sweep over sizes that shows where the caches end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/function_ref.h"

namespace lapidary::kvlab {

struct CacheLevel {  // as the system describes the CPUs that this process may use
  int level = 0;
  std::string type;   // "Data", "Unified"
  int64_t bytes = 0;  // of one
  int64_t instances = 0;
  int64_t all_bytes() const { return bytes * instances; }
};
// Instruction caches are left out; ascending. Empty where the system does not say.
std::vector<CacheLevel> cache_levels();
// All instances of the last level together: an upper bound of what the caches can hold. 0: unknown.
int64_t last_level_bytes(const std::vector<CacheLevel>& caches);

// Memory that the system could give without swapping, within the limit of the control group.
int64_t available_memory_bytes();

struct ReadPoint {
  int64_t bytes = 0;                                  // read again and again
  double median_per_second = 0, best_per_second = 0;  // bytes
};

struct ReadMeasure {
  int threads = 0;
  ReadPoint huge, small;         // the whole probe, in huge pages and in 4 KiB pages
  double before = 0, after = 0;  // best of memory in huge pages, when measured and when measured again
  std::vector<ReadPoint> sweep;  // ascending sizes, huge pages; the last is `huge`
  double float_ops = 0;          // a second, at the peak of this CPU
  // The largest size of the sweep that is read half as fast again as memory: where the caches end for us,
  // which may be long before their size when others use them too. 0: none.
  int64_t cached_up_to() const;
};

struct Bandwidth {
  std::vector<CacheLevel> caches;
  int64_t last_level = 0;   // bytes
  int64_t probe_bytes = 0;  // of the largest size
  std::string note;         // why the probe is smaller than four times the last level, or what is not known
  std::vector<ReadMeasure> measures;
};

// `megabytes` MiB for the largest size; 0: four times the last level (1 GiB where that is not known). Capped
// by half of the available memory, and `note` says so. Seven rounds each. For the `threads` all sizes; for
// 1, 2, 4 ... up to the most of them the largest size alone.
using OnProbe = FunctionRef<void(int64_t done, int64_t total)>;
Bandwidth measure_bandwidth(const std::vector<int>& threads, int64_t megabytes, OnProbe on_probe);

// Measures all sizes once more, in huge pages, and keeps the better rate of each: other load only slows down.
void measure_again(ReadMeasure& measure);

// Best rate at a size: between two sizes of the sweep linear in the logarithm of the size; the first and the
// last hold beyond the ends. REQUIRES: the sweep is not empty.
double rate_at(const std::vector<ReadPoint>& sweep, double bytes);

}  // namespace lapidary::kvlab
