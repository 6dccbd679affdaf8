// What a command of the lab holds against what, and whether it held: the exit code rests on these.
#pragma once

#include <boost/json/array.hpp>
#include <string>
#include <vector>

namespace lapidary::kvlab {

struct Check {
  std::string name;
  bool passed = false;
  std::string detail;  // what was compared; of one that failed, where and by how much
};
bool all_passed(const std::vector<Check>& checks);
boost::json::array checks_json(const std::vector<Check>& checks);

}  // namespace lapidary::kvlab
