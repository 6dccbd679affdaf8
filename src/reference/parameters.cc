#include "reference/parameters.h"

#include <ATen/ops/embedding.h>

#include "base/error.h"
#include "reference/dequantise.h"

namespace lapidary::reference {
namespace {

at::Tensor decode(const Slot& slot, const TensorView& view, at::ScalarType type) {
  const at::Tensor out = dequantise(view).to(type);
  ensure(at::isfinite(out).all().item<bool>(), ErrorCode::data, "tensor {}: a value is NaN or infinite",
         slot_name(slot));
  return out;
}

TensorView rows_view(const TensorView& view, int64_t begin, int64_t end) {
  const size_t row_bytes = view.bytes.size() / static_cast<size_t>(view.rows());
  return {view.dtype,
          {end - begin, view.columns()},
          view.bytes.subspan(static_cast<size_t>(begin) * row_bytes,
                             static_cast<size_t>(end - begin) * row_bytes)};
}

}  // namespace

HeldParameters::HeldParameters(const ModelSpec& spec, const TensorSource& source, at::ScalarType type) {
  check_tensors(spec, source);
  for_each_tensor(spec, [&](const TensorInfo& tensor) {
    tensors_[tensor.slot] = decode(tensor.slot, source.read(tensor.slot).view, type);
  });
}

at::Tensor HeldParameters::get(const Slot& slot) const {
  const auto found = tensors_.find(slot);
  ensure(found != tensors_.end(), ErrorCode::internal, "the model has no tensor {}", slot_name(slot));
  return found->second;
}

at::Tensor HeldParameters::rows(const Slot& slot, const at::Tensor& ids) const {
  return at::embedding(get(slot), ids);
}

at::Tensor HeldParameters::row_range(const Slot& slot, int64_t begin, int64_t end) const {
  return get(slot).narrow(0, begin, end - begin);
}

void HeldParameters::require_gradients() {
  for (auto& [slot, tensor] : tensors_) tensor.requires_grad_(slot.kind != TensorKind::layer_scalar);
}

StreamedParameters::StreamedParameters(const ModelSpec& spec, const TensorSource& source, at::ScalarType type)
    : source_(source), type_(type) {
  check_tensors(spec, source);
}

at::Tensor StreamedParameters::get(const Slot& slot) const {
  return decode(slot, source_.read(slot).view, type_);
}

at::Tensor StreamedParameters::rows(const Slot& slot, const at::Tensor& ids) const {
  const TensorData data = source_.read(slot);
  std::vector<at::Tensor> out;
  for (int64_t i = 0; i < ids.size(0); ++i) {
    const auto id = ids[i].item<int64_t>();
    out.push_back(decode(slot, rows_view(data.view, id, id + 1), type_));
  }
  return at::cat(out, 0);
}

at::Tensor StreamedParameters::row_range(const Slot& slot, int64_t begin, int64_t end) const {
  const TensorData data = source_.read(slot);
  return decode(slot, rows_view(data.view, begin, end), type_);
}

}  // namespace lapidary::reference
