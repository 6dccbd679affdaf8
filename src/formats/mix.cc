#include "formats/mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace lapidary {
namespace {

constexpr Mix kMixes[] = {
    {"F32", DType::f32, 0},      {"F16", DType::f16, 1},      {"BF16", DType::bf16, 32},
    {"Q8_0", DType::q8_0, 7},    {"Q4_0", DType::q4_0, 2},    {"Q4_K_S", DType::q4_k, 14},
    {"Q4_K_M", DType::q4_k, 15}, {"Q5_K_M", DType::q5_k, 17}, {"Q6_K", DType::q6_k, 18},
};

// Files of a single format that no mix here makes.
constexpr std::pair<DType, int64_t> kOtherFileTypes[] = {
    {DType::q4_1, 3}, {DType::q5_0, 8}, {DType::q5_1, 9}, {DType::q2_k, 10}, {DType::q3_k, 12}};

// The first and last eighth of the layers, and every third between.
bool gets_more_bits(int64_t index, int64_t count) {
  const int64_t eighth = count / 8;
  return index < eighth || index >= 7 * count / 8 || (index - eighth) % 3 == 2;
}

// What stands in for a format whose blocks do not fill the rows.
DType fallback(DType dtype, int64_t columns) {
  const auto fills = [&](DType d) {
    return columns % static_cast<int64_t>(dtype_info(d).block_elements) == 0;
  };
  if (fills(dtype)) return dtype;
  DType smaller = DType::f16;
  switch (dtype) {
    case DType::q2_k:
    case DType::q3_k: smaller = DType::q4_0; break;
    case DType::q4_k: smaller = DType::q5_0; break;
    case DType::q5_k: smaller = DType::q5_1; break;
    case DType::q6_k: smaller = DType::q8_0; break;
    default: break;
  }
  return fills(smaller) ? smaller : DType::f16;
}

bool is_head(TensorKind kind, bool tied) {
  if (kind == TensorKind::output_head) return true;
  return tied && (kind == TensorKind::token_embedding || kind == TensorKind::ple_embedding);
}

// Matrices that are never quantised.
bool stays_float(TensorKind kind) {
  return kind == TensorKind::router || kind == TensorKind::ple_projection;
}

}  // namespace

const Mix* find_mix(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (const Mix& mix : kMixes) {
    if (mix.name == upper) return &mix;
  }
  return nullptr;
}

std::vector<std::string> mix_names() {
  std::vector<std::string> out;
  for (const Mix& mix : kMixes) out.emplace_back(mix.name);
  return out;
}

int64_t file_type_of(DType dtype) {
  for (const Mix& mix : kMixes) {
    if (mix.base == dtype) return mix.file_type;
  }
  for (const auto& [other, file_type] : kOtherFileTypes) {
    if (other == dtype) return file_type;
  }
  return 0;
}

MixRules::MixRules(const Mix& mix, const ModelSpec& spec) : mix_(mix), spec_(spec) {
  for_each_tensor(spec, [&](const TensorInfo& info) { values_ += info.slot.kind == TensorKind::value; });
}

DType MixRules::wanted(const TensorInfo& info) {
  const bool medium = mix_.name == "Q4_K_M" || mix_.name == "Q5_K_M", small = mix_.name == "Q4_K_S";
  const int64_t n_layers = spec_.n_layers();
  switch (info.slot.kind) {
    case TensorKind::value: {
      const int64_t index = values_seen_++;
      if (medium && gets_more_bits(index, values_)) return DType::q6_k;
      return small && index < 4 ? DType::q5_k : mix_.base;
    }
    case TensorKind::down:
    case TensorKind::expert_down:
      if (medium && gets_more_bits(info.slot.layer, n_layers)) return DType::q6_k;
      return small && info.slot.layer < n_layers / 8 ? DType::q5_k : mix_.base;
    default: break;
  }
  if (!is_head(info.slot.kind, spec_.tied_head) || mix_.base == DType::q8_0) return mix_.base;
  return DType::q6_k;
}

MixChoice MixRules::choose(const TensorInfo& info, DType stored) {
  if (info.dtype_rule == DTypeRule::float_only) return {DType::f32, ""};
  if (is_float(mix_.base)) return {info.slot.kind == TensorKind::router ? DType::f32 : mix_.base, ""};
  if (stays_float(info.slot.kind)) {
    return {info.slot.kind == TensorKind::router || is_quantised(stored) ? DType::f32 : stored, ""};
  }
  const DType dtype = wanted(info), actual = fallback(dtype, info.shape.back());
  if (actual == dtype) return {dtype, ""};
  return {actual, fmt::format("{} needs rows of a multiple of {}, these have {}", dtype_name(dtype),
                              dtype_info(dtype).block_elements, info.shape.back())};
}

}  // namespace lapidary
