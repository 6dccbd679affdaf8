// Counts what the whole process allocates, on every thread.
#pragma once

#include <cstdint>

namespace lapidary {

// Allocations since the start: all of malloc's family; in sanitised builds, which bring their own malloc,
// those of operator new.
int64_t allocation_count();

}  // namespace lapidary
