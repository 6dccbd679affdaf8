#include "cli/numbers.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace lapidary {
namespace {

// Three significant digits and the largest unit that leaves at least 1.
std::string with_unit(int64_t value, const std::array<const char*, 6>& units) {
  double scaled = static_cast<double>(value);
  size_t unit = 0;
  while (std::abs(scaled) >= 999.5 && unit + 1 < units.size()) {
    scaled /= 1000.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{}{}", value, units[0]);
  const int decimals = std::abs(scaled) < 9.995 ? 2 : std::abs(scaled) < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", scaled, decimals, units[unit]);
}

}  // namespace

std::string grouped(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t left = digits.size() - i;
    if (left % 3 == 0 && i > 0 && digits[i - 1] != '-') out += ',';
    out += digits[i];
  }
  return out;
}

std::string bytes_text(int64_t bytes) {
  return with_unit(bytes, {" B", " kB", " MB", " GB", " TB", " PB"});
}

std::string count_text(int64_t count) {
  return with_unit(count, {"", " k", " M", " G", " T", " P"});
}

std::string seconds_text(double seconds) {
  if (seconds < 0.9995)
    return fmt::format("{:.{}f} ms", seconds * 1e3, seconds < 0.00995 ? 2 : seconds < 0.0995 ? 1 : 0);
  if (seconds < 59.95) return fmt::format("{:.{}f} s", seconds, seconds < 9.995 ? 2 : 1);
  const int64_t whole = std::llround(seconds);
  return fmt::format("{} min {:02} s", whole / 60, whole % 60);
}

std::string rate_text(double value) {
  if (value >= 999.5) return grouped(std::llround(value));
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

double per_second(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

}  // namespace lapidary
