#include "base/half.h"

namespace lapidary {

uint16_t float_to_f16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: keep the payload's top bits, make it quiet
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  }
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // from 65520 on the nearest is infinity
  if (magnitude >= 0x38800000u) {                       // normal: move the exponent, round away 13 bits
    const uint32_t moved = magnitude - (112u << 23);
    return static_cast<uint16_t>(sign | ((moved + 0xfffu + ((moved >> 13) & 1)) >> 13));
  }
  if (magnitude <= 0x33000000u) return sign;  // up to 2^-25: a tie with zero, which is even
  // Subnormal: a multiple of 2^-24. shift in 14..24, so that the whole mantissa counts in units of 2^-24.
  const uint32_t shift = 126 - (magnitude >> 23);
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t floor = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
  const uint32_t up = rest > half || (rest == half && (floor & 1)) ? 1 : 0;
  return static_cast<uint16_t>(sign | (floor + up));
}

}  // namespace lapidary
