#include "formats/gguf_types.h"

#include <array>

namespace lapidary {
namespace {

struct GgmlType {
  std::string_view name;
  std::optional<DType> dtype;
};

// Indexed by type number; gaps are numbers that were withdrawn.
constexpr std::array<GgmlType, 41> kGgmlTypes = {{
    {"F32", DType::f32},   {"F16", DType::f16},   {"Q4_0", DType::q4_0}, {"Q4_1", DType::q4_1},
    {"Q4_2", {}},          {"Q4_3", {}},          {"Q5_0", DType::q5_0}, {"Q5_1", DType::q5_1},
    {"Q8_0", DType::q8_0}, {"Q8_1", {}},          {"Q2_K", DType::q2_k}, {"Q3_K", DType::q3_k},
    {"Q4_K", DType::q4_k}, {"Q5_K", DType::q5_k}, {"Q6_K", DType::q6_k}, {"Q8_K", {}},
    {"IQ2_XXS", {}},       {"IQ2_XS", {}},        {"IQ3_XXS", {}},       {"IQ1_S", {}},
    {"IQ4_NL", {}},        {"IQ3_S", {}},         {"IQ2_S", {}},         {"IQ4_XS", {}},
    {"I8", DType::i8},     {"I16", DType::i16},   {"I32", DType::i32},   {"I64", DType::i64},
    {"F64", DType::f64},   {"IQ1_M", {}},         {"BF16", DType::bf16}, {"Q4_0_4_4", {}},
    {"Q4_0_4_8", {}},      {"Q4_0_8_8", {}},      {"TQ1_0", {}},         {"TQ2_0", {}},
    {"IQ4_NL_4_4", {}},    {"IQ4_NL_4_8", {}},    {"IQ4_NL_8_8", {}},    {"MXFP4", {}},
    {"NVFP4", {}},
}};

}  // namespace

std::optional<DType> dtype_of_ggml(uint32_t type) {
  return type < kGgmlTypes.size() ? kGgmlTypes[type].dtype : std::nullopt;
}

std::optional<uint32_t> ggml_number_of(DType dtype) {
  for (uint32_t type = 0; type < kGgmlTypes.size(); ++type) {
    if (kGgmlTypes[type].dtype == dtype) return type;
  }
  return std::nullopt;
}

std::string_view ggml_type_name(uint32_t type) {
  return type < kGgmlTypes.size() ? kGgmlTypes[type].name : std::string_view{};
}

}  // namespace lapidary
