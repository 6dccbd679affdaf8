// Time that does not count what else the machine does, for tests of how work grows.
#pragma once

#include "base/function_ref.h"

namespace lapidary::test {

// Seconds of this thread's processor time that `action` takes: the least of three runs.
double cpu_seconds(FunctionRef<void()> action);

}  // namespace lapidary::test
