// The tensors of a checkpoint by slot: views into mapped files, and the few that an importer has to rewrite,
// made when they are read.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/tensor.h"
#include "spec/tensor_io.h"
#include "spec/tensor_table.h"

namespace lapidary {

// A tensor that the model does not use, and why.
struct SkippedTensor {
  std::string name;
  std::string reason;  // "k/v of a layer that borrows KV", "vision tower", ...
};

// What stands between the stored bytes and the tensor that the table means.
enum class Remake {
  none,
  add_one,       // a norm stored as w that means 1 + w: as f32
  unpermute,     // rows of rotary pairs (2i, 2i+1) put back to (i, i + Hd/2): as whole rows, so block formats
                 // stay as they are
  join_experts,  // separate gate [E, Fe, D] and up [E, Fe, D] become [E, 2*Fe, D]
};

struct Binding {
  std::string name;  // in the file
  TensorView view;   // in the shape of the table, but for join_experts: the gate half
  Remake remake = Remake::none;
  int64_t heads = 0;  // unpermute
  TensorView second;  // join_experts: the up half
};

class BoundTensors : public TensorSource {
 public:
  // `keep_alive` holds the mapped files that the views point into.
  explicit BoundTensors(std::shared_ptr<const void> keep_alive) : keep_alive_(std::move(keep_alive)) {}

  // Takes a tensor for a slot after checking its shape and number format: Error(data) with file, name,
  // expected, got.
  void bind(const std::string& file, const TensorInfo& info, Binding binding);
  bool bound(const Slot& slot) const { return bindings_.count(slot) != 0; }
  const Binding& binding(const Slot& slot) const { return bindings_.at(slot); }

  std::map<std::string, int64_t> bytes_by_dtype() const;  // stored bytes by the name of their format

  TensorData read(const Slot& slot) const override;
  void release(const Slot& slot) const override;

 private:
  std::map<Slot, Binding> bindings_;
  std::shared_ptr<const void> keep_alive_;
};

// Error(data) unless a tensor of `info`'s slot may have this shape and number format.
void check_stored(const std::string& file, const std::string& name, const TensorInfo& info,
                  const TensorView& view, const Shape& expected);

}  // namespace lapidary
