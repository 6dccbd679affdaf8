// Numbers that a GGUF file holds, shared by the parser and by what writes files in tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/dtype.h"

namespace lapidary {

enum class GgufType : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

inline constexpr uint32_t kGgufMagic = 0x46554747;  // "GGUF"
inline constexpr uint32_t kGgufDefaultAlignment = 32;
inline constexpr uint32_t kGgufMaxDimensions = 4;

// The number format of a tensor type number; empty for types that we do not read.
std::optional<DType> dtype_of_ggml(uint32_t type);
// The type number of a number format; empty where GGUF has none.
std::optional<uint32_t> ggml_number_of(DType dtype);
// Its name as other tools spell it, known to us or not: "Q4_K", "IQ2_XS"; empty for numbers that name
// nothing.
std::string_view ggml_type_name(uint32_t type);

}  // namespace lapidary
