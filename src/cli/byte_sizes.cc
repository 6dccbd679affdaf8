#include "cli/byte_sizes.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/quote.h"
#include "cli/numbers.h"

namespace lapidary {
namespace {

struct Unit {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<Unit, 9> kUnits = {{{"B", 1},
                                         {"kB", 1000},
                                         {"MB", 1000'000},
                                         {"GB", 1000'000'000},
                                         {"TB", 1000'000'000'000},
                                         {"KiB", int64_t{1} << 10},
                                         {"MiB", int64_t{1} << 20},
                                         {"GiB", int64_t{1} << 30},
                                         {"TiB", int64_t{1} << 40}}};

}  // namespace

int64_t parse_byte_size(std::string_view text, std::string_view what) {
  constexpr std::string_view kExpected = "a number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 16GiB";
  double number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = problem == std::errc{} && std::isfinite(number) && number >= 0;
  ensure(is_number, ErrorCode::usage, "{}: expected {}, got {}", what, kExpected, lapidary::quoted(text));
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const Unit& known : kUnits) {
    if (known.name != unit) continue;
    const double bytes = std::floor(number * static_cast<double>(known.bytes));
    ensure(bytes < 9.2e18, ErrorCode::usage, "{}: {} is beyond 64 bits", what, lapidary::quoted(text));
    return static_cast<int64_t>(bytes);
  }
  fail(ErrorCode::usage, "{}: expected {}, got {}", what, kExpected, lapidary::quoted(text));
}

std::string binary_text(int64_t bytes) {
  constexpr std::array<const char*, 6> kNames = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto scaled = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(scaled) >= 1023.5 && unit + 1 < kNames.size()) {
    scaled /= 1024.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  const int decimals = std::abs(scaled) < 9.995 ? 2 : std::abs(scaled) < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", scaled, decimals, kNames[unit]);
}

std::string both_units_text(int64_t bytes) {
  return std::abs(bytes) < 1000 ? binary_text(bytes)
                                : fmt::format("{} ({})", binary_text(bytes), bytes_text(bytes));
}

}  // namespace lapidary
