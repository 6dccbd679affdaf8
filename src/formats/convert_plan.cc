#include "formats/convert_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/half.h"
#include "formats/hf_tensors.h"
#include "formats/import_gguf.h"

namespace lapidary {
namespace {

bool holds_exactly(DType dtype, const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [&](float x) {
    if (dtype == DType::bf16) return bf16_to_float(float_to_bf16(x)) == x;
    if (dtype == DType::f16) return f16_to_float(float_to_f16(x)) == x;
    return true;
  });
}

// The number format that holds most of the matrices' bytes.
DType main_dtype(const std::vector<PlannedTensor>& tensors, bool of_source) {
  std::map<DType, int64_t> bytes;
  for (const PlannedTensor& tensor : tensors) {
    if (tensor.shape.size() < 2) continue;
    bytes[of_source ? tensor.from : tensor.to] += of_source ? tensor.source_bytes() : tensor.bytes();
  }
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? DType::f32 : most->first;
}

class Planner {
 public:
  Planner(const Checkpoint& source, const ConvertOptions& options) : source_(source), options_(options) {
    if (options_.mix != nullptr) rules_.emplace(*options_.mix, source_.spec);
  }

  ConvertPlan run() {
    ensure(source_.tensors != nullptr, ErrorCode::usage, "{} holds no weights", source_.path.string());
    const bool to_blocks = options_.mix != nullptr && is_quantised(options_.mix->base);
    ensure(options_.format == ModelFormat::gguf || !to_blocks, ErrorCode::usage,
           "--type {}: a model folder holds floats: expected F32, F16 or BF16, or a GGUF file as the target",
           options_.mix == nullptr ? "" : options_.mix->name);
    plan_.format = options_.format;
    for_each_tensor(source_.spec, [&](const TensorInfo& info) { add(info); });
    if (options_.format == ModelFormat::hf) settle_folder_types();
    finish();
    return std::move(plan_);
  }

 private:
  void add(const TensorInfo& info) {
    PlannedTensor out;
    out.slot = info.slot;
    out.shape = info.shape;
    const TensorData data = source_.tensors->read(info.slot);
    out.from = data.view.dtype;
    if (options_.format == ModelFormat::gguf) {
      out.name = gguf_name(info.slot);
      out.paired_heads = gguf_paired_heads(source_.spec, info.slot, source_.family);
      choose_for_gguf(info, out);
    } else {
      out.name = hf_saved_name(info.slot, source_.family);
      out.subtract_one = hf_norm_has_offset(info.slot.kind, source_.family);
      out.to = options_.mix != nullptr ? options_.mix->base : is_quantised(out.from) ? DType::f32 : out.from;
      const bool kept_in_f32 =
          info.dtype_rule == DTypeRule::float_only || info.slot.kind == TensorKind::router;
      if (kept_in_f32) small_.push_back(plan_.tensors.size());
    }
    plan_.tensors.push_back(std::move(out));
    source_.tensors->release(info.slot);
  }

  void choose_for_gguf(const TensorInfo& info, PlannedTensor& out) {
    if (!rules_) {
      const bool as_float = info.dtype_rule == DTypeRule::float_only || info.slot.kind == TensorKind::router;
      out.to = as_float ? DType::f32 : out.from;
      return;
    }
    const MixChoice choice = rules_->choose(info, out.from);
    out.to = choice.dtype;
    out.note = choice.note;
    ensure(!is_quantised(out.from) || out.from == out.to || is_float(out.to) || options_.allow_requantize,
           ErrorCode::usage,
           "{}: tensor \"{}\" is {} already; quantising it again to {} loses more than quantising the float "
           "weights does: start from those, or insist with --allow-requantize",
           source_.path.string(), out.name, dtype_name(out.from), dtype_name(out.to));
  }

  // Norms, scalars and routers, which GGUF keeps in f32, are stored like the rest of a folder where that is
  // exact.
  void settle_folder_types() {
    const DType main = options_.mix != nullptr ? options_.mix->base : main_dtype(plan_.tensors, false);
    int64_t inexact = 0;
    for (const size_t index : small_) {
      PlannedTensor& tensor = plan_.tensors[index];
      const std::vector<float> meant = to_floats(source_.tensors->read(tensor.slot).view);
      std::vector<float> stored = meant;
      for (size_t i = 0; i < stored.size() && tensor.subtract_one; ++i) {
        stored[i] -= 1.0f;
        inexact += stored[i] + 1.0f != meant[i];
      }
      tensor.to = main;
      if (!holds_exactly(main, stored)) {
        tensor.to = DType::f32;
        tensor.note = fmt::format("{} would round it", dtype_name(main));
      }
    }
    if (inexact == 0) return;
    plan_.notes.push_back(fmt::format(
        "{} norm weights are rounded: the folder stores w, the model uses 1 + w, and no w gives them exactly",
        inexact));
  }

  void finish() {
    for (const PlannedTensor& tensor : plan_.tensors) {
      plan_.tensor_bytes += tensor.bytes();
      plan_.elements += tensor.elements();
      plan_.largest_source_bytes = std::max(plan_.largest_source_bytes, tensor.source_bytes());
    }
    plan_.main_dtype = main_dtype(plan_.tensors, false);
    plan_.file_type = options_.mix != nullptr ? options_.mix->file_type : file_type_of(plan_.main_dtype);
  }

  const Checkpoint& source_;
  const ConvertOptions& options_;
  std::optional<MixRules> rules_;
  std::vector<size_t> small_;  // norms, scalars, routers
  ConvertPlan plan_;
};

int64_t stored_bytes(DType dtype, const Shape& shape, const std::string& name) {
  return static_cast<int64_t>(row_bytes(dtype, static_cast<size_t>(element_count(shape, name))));
}

}  // namespace

int64_t PlannedTensor::bytes() const {
  return stored_bytes(to, shape, name);
}

int64_t PlannedTensor::source_bytes() const {
  return stored_bytes(from, shape, name);
}

int64_t PlannedTensor::elements() const {
  return element_count(shape, name);
}

ConvertPlan plan_conversion(const Checkpoint& source, const ConvertOptions& options) {
  return Planner(source, options).run();
}

}  // namespace lapidary
