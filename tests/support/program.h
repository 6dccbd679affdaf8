// Runs the built program as a user would: from an empty folder, with a home of its own, and an empty model
// cache unless asked otherwise.
#pragma once

#include <boost/json/object.hpp>
#include <map>
#include <string>
#include <vector>

#include "support/temp_dir.h"

namespace lapidary::test {

struct Outcome {
  int exit_code = -1;  // 128 + signal when a signal ended it, as a shell says
  std::string out, err;
  double seconds = 0;
};

struct Invocation {
  std::vector<std::string> arguments;
  std::string input = {};                               // what stdin holds
  std::map<std::string, std::string> environment = {};  // on top of a bare one
  bool user_cache = false;     // the cache of the user who runs the tests, with the real models
  size_t interrupt_after = 0;  // SIGINT once stdout holds so many bytes; 0: never
};

class Program {
 public:
  Outcome run(const Invocation& invocation) const;
  Outcome run(const std::vector<std::string>& arguments, const std::string& input = "") const;
  // stdout as JSON. Fails the test unless the exit code is 0 and stdout is one JSON object.
  boost::json::object json(const Invocation& invocation) const;
  boost::json::object json(const std::vector<std::string>& arguments, const std::string& input = "") const;

  const TempDir& folder() const { return folder_; }
  std::vector<std::string> environment(const Invocation& invocation) const;

 private:
  TempDir folder_;
};

// The program said no: this exit code, nothing on stdout, "lapidary: error: " and `part` on stderr.
void expect_refusal(const Outcome& outcome, int exit_code, const std::string& part);

// The program on a pseudo-terminal.
class TerminalSession {
 public:
  TerminalSession(const Program& program, const Invocation& invocation);
  ~TerminalSession();
  TerminalSession(const TerminalSession&) = delete;
  void type(const std::string& keys);
  // What was printed since the last call, up to and with `part`. Fails the test when it does not come in
  // time.
  std::string wait_for(const std::string& part, double seconds = 30);
  // Types the keys, and again every half second, until `part` appears.
  void type_until(const std::string& keys, const std::string& part, double seconds = 30);
  int wait_for_exit(double seconds = 30);  // exit code as in Outcome; -1 and a failure when it goes on
  int process() const { return process_; }

 private:
  bool read_some(int milliseconds);  // false: the program closed the terminal
  int terminal_ = -1, process_ = -1;
  std::string seen_;
};

}  // namespace lapidary::test
