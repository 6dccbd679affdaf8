// A name for the way in which weights of a number format are packed, for files that hold packed weights.
#pragma once

#include <string>

#include "base/dtype.h"

namespace lapidary::kernels {

// "q4_1-0123456789abcdef": the digits are a checksum of what pack_panels() makes of a known weight and of the
// numbers that panel_weight() finds in it. So a layout that changes in any way changes its name by itself.
// Error(unsupported) on a number format that is not packed.
std::string panel_layout(DType dtype);

}  // namespace lapidary::kernels
