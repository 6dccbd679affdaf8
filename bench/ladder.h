// What the ladders of bench/ share: their flags, and the times of several rounds.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace lapidary {

struct LadderOptions {
  int64_t megabytes;  // of what is read
  int threads = 1, rounds;
};

// Reads [--smoke] [--mb N] [--threads N] over `options`; false, with a line on stderr, when there is
// something else. A smoke run is small and has one round.
inline bool read_ladder_flags(int argc, char** argv, std::string_view name, LadderOptions& options) {
  for (int i = 1; i < argc; i++) {
    const std::string_view flag = argv[i];
    if (flag == "--smoke") {
      options.megabytes = 4;
      options.rounds = 1;
    } else if (flag == "--mb" && i + 1 < argc) {
      options.megabytes = std::atol(argv[++i]);
    } else if (flag == "--threads" && i + 1 < argc) {
      options.threads = std::atoi(argv[++i]);
    } else {
      fmt::print(stderr, "usage: {} [--smoke] [--mb N] [--threads N]\n", name);
      return false;
    }
  }
  return true;
}

// Seconds of each round, in ascending order.
template <typename Run>
std::vector<double> seconds_of_rounds(int rounds, Run&& run) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  for (int i = 0; i < rounds; i++) {
    const Clock::time_point start = Clock::now();
    run();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

}  // namespace lapidary
