#include "engine/plain_weights.h"

#include <mutex>
#include <vector>

#include "engine/pack.h"

namespace lapidary {
namespace {

std::shared_ptr<std::vector<float>> decode(const PackedTensor& packed, const Slot& slot) {
  auto out = std::make_shared<std::vector<float>>();
  out->reserve(static_cast<size_t>(element_count(packed.shape, slot_name(slot))));
  for (const Panels& panels : panels_of(packed, {slot, packed.shape})) {
    for (int64_t row = 0; row < panels.n_outputs; ++row) {
      for (int64_t column = 0; column < panels.n_inputs; ++column)
        out->push_back(kernels::panel_weight(panels, row, column));
    }
  }
  return out;
}

class PlainWeights : public TensorSource {
 public:
  explicit PlainWeights(std::shared_ptr<const TensorSource> source) : source_(std::move(source)) {}

  TensorData read(const Slot& slot) const override {
    const std::optional<PackedTensor> packed = source_->packed(slot);
    if (!packed) return source_->read(slot);
    const std::scoped_lock lock(mutex_);
    if (!last_ || last_slot_ != slot) {
      last_.reset();  // one at a time
      last_ = decode(*packed, slot);
      last_slot_ = slot;
    }
    return {{DType::f32, packed->shape, std::as_bytes(std::span(*last_))}, last_};
  }

  std::optional<PackedTensor> packed(const Slot& slot) const override { return source_->packed(slot); }

  void release(const Slot& slot) const override {
    source_->release(slot);
    const std::scoped_lock lock(mutex_);
    if (last_slot_ == slot) last_.reset();
  }

 private:
  std::shared_ptr<const TensorSource> source_;
  mutable std::mutex mutex_;
  mutable Slot last_slot_;
  mutable std::shared_ptr<const std::vector<float>> last_;
};

}  // namespace

std::shared_ptr<const TensorSource> with_plain_weights(std::shared_ptr<const TensorSource> source) {
  return std::make_shared<PlainWeights>(std::move(source));
}

}  // namespace lapidary
