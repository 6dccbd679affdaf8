// A straight line through measured points, and the order statistics of repeated measurements.
#pragma once

#include <span>
#include <vector>

namespace lapidary::kvlab {

struct Line {  // y = intercept + slope * x
  double intercept = 0, slope = 0;
  double r2 = 0;                  // share of the variance of y that the line explains; 1 where y is constant
  double slope_error = 0;         // standard error of the slope; 0 with two points
  std::vector<double> residuals;  // y - line, [points]
  double at(double x) const { return intercept + slope * x; }
};

// By least squares. Error(usage) unless there are as many x as y, two different x at least, and all numbers
// are finite.
Line fit_line(std::span<const double> x, std::span<const double> y);

// The value below which a share of the values lies, linearly between neighbours: 0.5 is the median.
// REQUIRES: values is not empty, 0 <= share <= 1.
double quantile(std::span<const double> values, double share);

}  // namespace lapidary::kvlab
