// How a checkpoint's file has its tensors, from headers alone.
#pragma once

#include <optional>

#include "formats/checkpoint.h"
#include "kvlab/plan/weights.h"

namespace lapidary {

// Nothing for the head of a model that has none of its own.
std::optional<kvlab::StoredTensor> stored_tensor(const Checkpoint& checkpoint, const Slot& slot);

}  // namespace lapidary
