// Where tensors come from and go to. Reading is lazy: nothing is copied that a mapped file already holds.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "spec/tensor_table.h"

namespace lapidary {

// A weight in the form in which an engine multiplies by it: bytes that nobody else reads.
struct PackedTensor {
  DType dtype = DType::f32;  // of the weight that was packed
  Shape shape;               // as the table states it
  std::string layout;        // names the form; an engine takes its own and no other
  std::span<const std::byte> bytes;
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // The tensor of a slot of the spec that goes with this source, in the shape that the table states.
  // Throws Error(data) naming the slot when it is missing. The view is valid while both the result and the
  // source live.
  virtual TensorData read(const Slot& slot) const = 0;
  // The slot's weight as it was packed before; nothing where it has to be packed still. Slots are those of
  // for_each_matrix(): a tied head is packed in the slot of an untied one. Valid while the source lives.
  virtual std::optional<PackedTensor> packed(const Slot& slot) const {
    (void)slot;
    return {};
  }
  // Says that nobody looks at the slot's bytes for now, so that pages of a mapped file may leave memory. They
  // come back when they are read again.
  virtual void release(const Slot& slot) const { (void)slot; }
};

class TensorSink {
 public:
  virtual ~TensorSink() = default;
  virtual void write(const Slot& slot, const TensorView& tensor) = 0;
};

// Takes packed weights too. The bytes are borrowed for the call.
class PackedSink : public TensorSink {
 public:
  virtual void write_packed(const Slot& slot, const PackedTensor& tensor) = 0;
};

// Both ends in memory: for tests, and for small models.
class MemoryTensors : public TensorSource, public TensorSink {
 public:
  TensorData read(const Slot& slot) const override;
  void write(const Slot& slot, const TensorView& tensor) override;
  bool contains(const Slot& slot) const { return tensors_.count(slot) != 0; }

 private:
  std::map<Slot, TensorData> tensors_;
};

// Checks that a tensor has the shape that `info` states, an allowed dtype, whole blocks and all its bytes;
// throws Error(data) naming the slot.
void check_tensor(const TensorInfo& info, const TensorView& tensor);

// Checks that `source` holds every required tensor of `spec` with the right shape and an allowed dtype;
// throws naming the first that fails.
void check_tensors(const ModelSpec& spec, const TensorSource& source);

}  // namespace lapidary
