// The numeric modes: the arithmetic of products with quantised weights, and whether the bits of a row may
// depend on the rows beside it. Float weights are multiplied in float32 in every arithmetic.
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

enum class NumericMode : uint8_t {
  exact,  // the bits of a row depend on its own tokens and positions alone
  fast,   // products of kFastRows rows and more round otherwise than those of fewer (docs/numerics.md)
};

// Rows from which the fast mode treats a product as prefill.
inline constexpr int64_t kFastRows = 9;

std::string_view numeric_mode_name(NumericMode mode);       // "exact"
NumericMode numeric_mode_from_name(std::string_view name);  // Error(usage) naming the known ones

}  // namespace lapidary
