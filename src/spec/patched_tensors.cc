#include "spec/patched_tensors.h"

#include <algorithm>

namespace lapidary {

const Slot& PatchedTensors::in_base(const Slot& slot) const {
  const auto other = swapped_.find(slot);
  return other == swapped_.end() ? slot : other->second;
}

TensorData PatchedTensors::read(const Slot& slot) const {
  return patches_.contains(slot) ? patches_.read(slot) : base_.read(in_base(slot));
}

void PatchedTensors::release(const Slot& slot) const {
  if (!patches_.contains(slot)) base_.release(in_base(slot));
}

void PatchedTensors::set(const Slot& slot, const TensorView& tensor) {
  patches_.write(slot, tensor);
}

void PatchedTensors::set(const Slot& slot, const Shape& shape, const std::vector<float>& values) {
  patches_.write(slot, {DType::f32, shape, std::as_bytes(std::span(values))});
}

void PatchedTensors::change(const Slot& slot, const std::function<void(std::vector<float>&)>& change) {
  const TensorData data = read(slot);
  std::vector<float> values = to_floats(data.view);
  change(values);
  set(slot, data.view.shape, values);
}

void PatchedTensors::fill(const Slot& slot, float value) {
  change(slot, [&](std::vector<float>& values) { std::fill(values.begin(), values.end(), value); });
}

void PatchedTensors::change_bytes(const Slot& slot,
                                  const std::function<void(DType, std::span<std::byte>)>& change) {
  const TensorData data = read(slot);
  std::vector<std::byte> bytes(data.view.bytes.begin(), data.view.bytes.end());
  change(data.view.dtype, bytes);
  patches_.write(slot, {data.view.dtype, data.view.shape, bytes});
}

void PatchedTensors::swap(const Slot& a, const Slot& b) {
  swapped_.insert_or_assign(a, b);
  swapped_.insert_or_assign(b, a);
}

}  // namespace lapidary
