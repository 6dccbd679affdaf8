// Sizes of memory as people write them, with the unit always said: GiB is 1024 to the third, GB a thousand
// to the third.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lapidary {

// "16GiB", "16 GB", "1.5TiB", "123456B". Error(usage) naming `what`: no unit, a unit that says neither (16G),
// beyond 64 bits.
int64_t parse_byte_size(std::string_view text, std::string_view what);

std::string binary_text(int64_t bytes);      // "34.2 GiB", "987 B"
std::string both_units_text(int64_t bytes);  // "34.2 GiB (36.7 GB)"

}  // namespace lapidary
