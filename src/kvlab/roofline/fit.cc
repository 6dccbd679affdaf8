#include "kvlab/roofline/fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace lapidary::kvlab {

Line fit_line(std::span<const double> x, std::span<const double> y) {
  ensure(x.size() == y.size(), ErrorCode::usage, "a line: expected as many x as y, got {} and {}", x.size(),
         y.size());
  ensure(x.size() >= 2, ErrorCode::usage, "a line: expected two points or more, got {}", x.size());
  const auto finite = [](double v) { return std::isfinite(v); };
  ensure(std::all_of(x.begin(), x.end(), finite) && std::all_of(y.begin(), y.end(), finite), ErrorCode::usage,
         "a line: expected finite numbers");
  const auto n = static_cast<double>(x.size());
  // Around the means: sums of squares of bytes would lose what the differences say.
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / n,
               mean_y = std::accumulate(y.begin(), y.end(), 0.0) / n;
  double xx = 0, xy = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    xy += (x[i] - mean_x) * (y[i] - mean_y);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  ensure(xx > 0, ErrorCode::usage, "a line: expected two different x at least, got {} alone", x[0]);
  Line line;
  line.slope = xy / xx;
  line.intercept = mean_y - line.slope * mean_x;
  double rest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    line.residuals.push_back(y[i] - line.at(x[i]));
    rest += line.residuals[i] * line.residuals[i];
  }
  line.r2 = yy > 0 ? 1 - rest / yy : 1;
  line.slope_error = x.size() > 2 ? std::sqrt(rest / (n - 2) / xx) : 0;
  return line;
}

double quantile(std::span<const double> values, double share) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace lapidary::kvlab
