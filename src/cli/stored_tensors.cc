#include "cli/stored_tensors.h"

#include "formats/bound_tensors.h"

namespace lapidary {

std::optional<kvlab::StoredTensor> stored_tensor(const Checkpoint& checkpoint, const Slot& slot) {
  if (const auto packed = checkpoint.tensors->packed(slot))
    return kvlab::StoredTensor{packed->dtype, static_cast<int64_t>(packed->bytes.size()), "packed "};
  if (slot.kind == TensorKind::output_head && checkpoint.spec.tied_head) return {};
  if (const auto* bound = dynamic_cast<const BoundTensors*>(checkpoint.tensors.get())) {
    const Binding& binding = bound->binding(slot);
    return kvlab::StoredTensor{binding.view.dtype,
                               static_cast<int64_t>(binding.view.bytes.size() + binding.second.bytes.size()),
                               ""};
  }
  const TensorData tensor = checkpoint.tensors->read(slot);
  return kvlab::StoredTensor{tensor.view.dtype, static_cast<int64_t>(tensor.view.bytes.size()), ""};
}

}  // namespace lapidary
