// Where tensors come from and go to. Reading is lazy: nothing is copied that a mapped file already holds.
#pragma once

#include <map>
#include <vector>

#include "base/tensor.h"
#include "spec/tensor_table.h"

namespace lapidary {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // The tensor of a slot of the spec that goes with this source, in the shape that the table states.
  // Throws Error(data) naming the slot when it is missing. The view is valid while both the result and the
  // source live.
  virtual TensorData read(const Slot& slot) const = 0;
  // Says that nobody looks at the slot's bytes for now, so that pages of a mapped file may leave memory. They
  // come back when they are read again.
  virtual void release(const Slot& slot) const { (void)slot; }
};

class TensorSink {
 public:
  virtual ~TensorSink() = default;
  virtual void write(const Slot& slot, const TensorView& tensor) = 0;
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
