#include "support/cpu_time.h"

#include <time.h>

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace lapidary::test {
namespace {

double thread_seconds() {
  struct timespec now;
  ensure(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0, ErrorCode::io, "no processor clock");
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double cpu_seconds(FunctionRef<void()> action) {
  double least = std::numeric_limits<double>::infinity();
  for (int run = 0; run < 3; ++run) {
    const double start = thread_seconds();
    action();
    least = std::min(least, thread_seconds() - start);
  }
  return least;
}

}  // namespace lapidary::test
