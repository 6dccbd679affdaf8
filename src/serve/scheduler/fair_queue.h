// Whose turn it is. Every client has an account of the rows computed for it; the one with the least goes
// first. A client that comes (back) begins with the least of those who are there: idleness earns nothing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "serve/scheduler/task.h"

namespace lapidary::serve {

class FairQueue {
 public:
  void arrive(const std::string& client);  // once for each of its tasks
  void leave(const std::string& client);
  void charge(const std::string& client, int64_t rows);
  // The waiting tasks in the order in which they should begin: those that had begun before (oldest first),
  // then client by client as if each were charged its rows; within a client by priority, then by arrival.
  std::vector<Task*> order(std::vector<Task*> waiting) const;

 private:
  struct Account {
    int64_t tasks = 0;
    double rows = 0;
  };
  std::map<std::string, Account> accounts_;  // of clients with a task
};

}  // namespace lapidary::serve
