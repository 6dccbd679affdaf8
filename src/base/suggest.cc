#include "base/suggest.h"

#include <algorithm>

namespace lapidary {

int edit_distance(std::string_view a, std::string_view b) {
  const size_t width = b.size() + 1;
  std::vector<int> cost((a.size() + 1) * width);
  const auto at = [&](size_t i, size_t j) -> int& { return cost[i * width + j]; };
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = static_cast<int>(i + j);
        continue;
      }
      const int replaced = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return at(a.size(), b.size());
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr size_t kLongest = 200;  // longer words are no misspelt names, and the table above is quadratic
  constexpr size_t kBeginning = 4;  // so much may stand for the beginning of a longer name
  if (word.empty() || word.size() > kLongest) return {};
  std::optional<std::string> best;
  int best_cost = std::max(1, static_cast<int>(word.size() + 1) / 3) + 1;
  for (const std::string& candidate : known) {
    if (candidate.size() > kLongest) continue;
    int cost = edit_distance(word, candidate);
    if (word.size() >= kBeginning) {
      cost = std::min(cost, 1 + edit_distance(word, std::string_view(candidate).substr(0, word.size())));
    }
    if (cost < best_cost) {
      best_cost = cost;
      best = candidate;
    }
  }
  return best;
}

}  // namespace lapidary
