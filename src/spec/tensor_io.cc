#include "spec/tensor_io.h"

#include <algorithm>

#include "base/error.h"

namespace lapidary {

void check_tensor(const TensorInfo& info, const TensorView& tensor) {
  const std::string name = slot_name(info.slot);
  ensure(tensor.shape == info.shape, ErrorCode::data, "{}: shape: expected {}, got {}", name,
         shape_text(info.shape), shape_text(tensor.shape));
  const bool quantised = is_quantised(tensor.dtype) && info.dtype_rule == DTypeRule::any_weight;
  ensure(is_float(tensor.dtype) || quantised, ErrorCode::data, "{}: dtype: expected {}, got {}", name,
         info.dtype_rule == DTypeRule::float_only ? "f32, f16 or bf16" : "f32, f16, bf16 or a block format",
         dtype_name(tensor.dtype));
  const size_t columns = static_cast<size_t>(info.shape.back()),
               block = dtype_info(tensor.dtype).block_elements;
  ensure(columns % block == 0, ErrorCode::data, "{}: row length: expected a multiple of {} for {}, got {}",
         name, block, dtype_name(tensor.dtype), columns);
  const int64_t rows = element_count(info.shape, name) / info.shape.back();
  const size_t expected = static_cast<size_t>(rows) * row_bytes(tensor.dtype, columns);
  ensure(tensor.bytes.size() == expected, ErrorCode::data, "{}: expected {} bytes of {}, got {}", name,
         expected, dtype_name(tensor.dtype), tensor.bytes.size());
}

TensorData MemoryTensors::read(const Slot& slot) const {
  const auto it = tensors_.find(slot);
  ensure(it != tensors_.end(), ErrorCode::data, "{}: expected a tensor, got none", slot_name(slot));
  return it->second;
}

void MemoryTensors::write(const Slot& slot, const TensorView& tensor) {
  auto bytes = std::make_shared<std::vector<std::byte>>(tensor.bytes.begin(), tensor.bytes.end());
  TensorData data{{tensor.dtype, tensor.shape, *bytes}, bytes};
  tensors_[slot] = std::move(data);
}

void check_tensors(const ModelSpec& spec, const TensorSource& source) {
  for_each_tensor(spec, [&](const TensorInfo& info) {
    if (info.required) check_tensor(info, source.read(info.slot).view);
  });
}

}  // namespace lapidary
