// Holds a value to a schema of the OpenAPI document: the keywords that the document uses, and no others.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <vector>

namespace lapidary::serve::test {

class SchemaChecker {
 public:
  explicit SchemaChecker(const boost::json::object& document) : document_(document) {}
  // What is wrong, place by place; empty: nothing.
  std::vector<std::string> problems(const boost::json::value& value, const boost::json::value& schema,
                                    const std::string& place = "$") const;
  const boost::json::value& resolve(const boost::json::value& schema) const;  // follows $ref

 private:
  void object_problems(const boost::json::object& value, const boost::json::object& schema,
                       const std::string& place, std::vector<std::string>& out) const;
  const boost::json::object& document_;
};

}  // namespace lapidary::serve::test
