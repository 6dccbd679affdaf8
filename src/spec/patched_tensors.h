// A source with some of its tensors replaced; what is not replaced is passed on. For damage on purpose, and
// for models that differ from another in a few tensors.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "spec/tensor_io.h"

namespace lapidary {

class PatchedTensors : public TensorSource {
 public:
  // REQUIRES: base outlives this.
  explicit PatchedTensors(const TensorSource& base) : base_(base) {}

  TensorData read(const Slot& slot) const override;
  void release(const Slot& slot) const override;

  // Replaces a tensor. The bytes are copied; nobody checks here that they fit the spec.
  void set(const Slot& slot, const TensorView& tensor);
  void set(const Slot& slot, const Shape& shape, const std::vector<float>& values);
  // Replaces a tensor by floats: what `change` makes of its present elements, in its present shape.
  void change(const Slot& slot, const std::function<void(std::vector<float>&)>& change);
  void fill(const Slot& slot, float value);
  // Replaces a tensor by one of the same type and shape: what `change` makes of its present bytes.
  void change_bytes(const Slot& slot, const std::function<void(DType, std::span<std::byte>)>& change);
  // Each of the two slots answers what the base holds in the other.
  void swap(const Slot& a, const Slot& b);

 private:
  const Slot& in_base(const Slot& slot) const;
  const TensorSource& base_;
  MemoryTensors patches_;
  std::map<Slot, Slot> swapped_;
};

}  // namespace lapidary
