// Writing one planned tensor: a stretch of rows at a time, encoded by all threads, in the same bytes for any
// number of them.
#pragma once

#include "base/function_ref.h"
#include "base/team.h"
#include "formats/convert_plan.h"

namespace lapidary {

using ByteSink = FunctionRef<void(std::span<const std::byte>)>;

// Error(data) naming tensor, row and column of a number that is not finite or does not fit the target's
// number format.
void stream_tensor(const PlannedTensor& plan, const TensorView& source, Team& team, ByteSink sink);

}  // namespace lapidary
