// Distances between numbers of one format, counted in units of its last place.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace lapidary::kvlab {

// How many numbers of the format f64, f32, f16 or bf16 lie from a to b: 0 for the same, -0 and +0 included.
// REQUIRES: a and b are finite numbers of that format. Error(internal) on another format.
uint64_t ulps_between(double a, double b, DType type);

}  // namespace lapidary::kvlab
