#include "kvlab/check.h"

#include <algorithm>
#include <boost/json/object.hpp>

namespace lapidary::kvlab {

bool all_passed(const std::vector<Check>& checks) {
  return std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.passed; });
}

boost::json::array checks_json(const std::vector<Check>& checks) {
  boost::json::array out;
  for (const Check& check : checks)
    out.push_back(
        boost::json::object{{"name", check.name}, {"passed", check.passed}, {"detail", check.detail}});
  return out;
}

}  // namespace lapidary::kvlab
