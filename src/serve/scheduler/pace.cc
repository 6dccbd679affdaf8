#include "serve/scheduler/pace.h"

#include <algorithm>

namespace lapidary::serve {

Pace::Pace(double step_seconds, int64_t most_rows)
    : step_seconds_(step_seconds), most_rows_(most_rows), rows_(std::min(kLeastRows, most_rows)) {}

void Pace::measured(int64_t prompt_rows, double seconds) {
  if (prompt_rows <= 0 || seconds <= 0) return;
  const double wanted = static_cast<double>(prompt_rows) * step_seconds_ / seconds;
  const bool used_up = prompt_rows >= rows_;
  if (wanted >= static_cast<double>(rows_) && !used_up) return;
  const auto most = static_cast<double>(std::max(2 * rows_, prompt_rows));
  rows_ =
      std::clamp(static_cast<int64_t>(std::min(wanted, most)), std::min(kLeastRows, most_rows_), most_rows_);
}

}  // namespace lapidary::serve
