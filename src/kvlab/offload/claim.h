// What the speed-up of a cache that is loaded instead of computed does not say, in this run's numbers.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lapidary::kvlab {

struct OffloadReport;

struct ClaimFact {
  char letter = 'a';
  std::string title;
  std::vector<std::string> lines;                       // sentences with the numbers in them
  std::vector<std::pair<std::string, double>> numbers;  // the same, named for machines
};
// Six facts, from the longest length of the report's curve. REQUIRES: a curve with at least one way.
std::vector<ClaimFact> claim_facts(const OffloadReport& report);

}  // namespace lapidary::kvlab
