// How many rows of prompts a step may take while texts are being generated: as many as keep the step about as
// long as wished, by what the steps before took.
#pragma once

#include <cstdint>

namespace lapidary::serve {

class Pace {
 public:
  static constexpr int64_t kLeastRows = 16;  // so that prompts always move

  // most_rows: the engine's step.
  Pace(double step_seconds, int64_t most_rows);
  int64_t prompt_rows() const { return rows_; }
  // A step with this many prompt rows took so long, everything in it included. Fewer rows follow at once;
  // more follow only a step that used up what it was allowed, twice as many at most.
  void measured(int64_t prompt_rows, double seconds);

 private:
  double step_seconds_;
  int64_t most_rows_, rows_;
};

}  // namespace lapidary::serve
