// Numbers as people read them. Units are decimal (1 kB = 1000 bytes), as file sizes and bandwidths are.
#pragma once

#include <cstdint>
#include <string>

namespace lapidary {

std::string grouped(int64_t value);                // "4,628,283,392"
std::string bytes_text(int64_t bytes);             // "987 B", "94.6 MB"
std::string count_text(int64_t count);             // "135 M", "4.63 G"
std::string seconds_text(double seconds);          // "0.84 ms", "12.3 s", "2 min 05 s"
std::string rate_text(double per_second);          // "0.73", "41.2", "1,834"
double per_second(int64_t count, double seconds);  // 0 when no time passed

}  // namespace lapidary
