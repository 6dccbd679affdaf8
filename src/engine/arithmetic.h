// The numeric modes of products with quantised weights. Float weights are multiplied in float32 in every
// mode.
#pragma once

#include <cstdint>
#include <string_view>

namespace lapidary {

enum class Arithmetic : uint8_t {
  f32,  // weights are decoded, products and sums in float32
  a16,  // activations in two int8 terms (15 bits), integer sums over each group of 32, float32 between groups
  a8,   // the same with one int8 term
};

inline constexpr Arithmetic kDefaultArithmetic = Arithmetic::a16;  // what ships

std::string_view arithmetic_name(Arithmetic arithmetic);  // "f32"
Arithmetic arithmetic_from_name(std::string_view name);   // Error(usage) naming the known ones

}  // namespace lapidary
