// Float weights quantised while they are read: a model folder run in 4 or 8 bits without a conversion first.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/team.h"
#include "formats/checkpoint.h"
#include "formats/mix.h"

namespace lapidary {

// `source` with its matrices in the formats that the mix gives them: the bytes that convert would write. Each
// is encoded when it is read, and no copy is kept but of a tied head, which is a table too. Other tables stay
// as they are: they are read by row, from where they lie.
class QuantisedTensors : public TensorSource {
 public:
  // Error(usage) naming the first tensor that is quantised already.
  QuantisedTensors(const ModelSpec& spec, std::shared_ptr<const TensorSource> source, const Mix& mix,
                   int threads);

  // Error(data) naming tensor, row and column of a number that the format cannot hold.
  TensorData read(const Slot& slot) const override;
  void release(const Slot& slot) const override { source_->release(slot); }
  std::map<std::string, int64_t> bytes_by_dtype() const;  // as Checkpoint::dtype_bytes has it

 private:
  struct Plan {
    DType dtype;
    Shape shape;
    bool kept;  // once encoded: read more than once
  };
  TensorData encoded(const Slot& slot, const Plan& plan) const;

  std::shared_ptr<const TensorSource> source_;
  std::map<Slot, Plan> plans_;
  std::map<std::string, int64_t> bytes_by_dtype_;
  mutable std::mutex mutex_;
  mutable Team team_;
  mutable std::map<Slot, TensorData> kept_;
};

// The checkpoint's weights quantised as they are read. Error(usage) on an unknown mix (naming the known
// ones), on a float one, and on weights that are quantised already.
void quantise_weights(Checkpoint& checkpoint, const std::string& mix, int threads);

}  // namespace lapidary
