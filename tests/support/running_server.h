// `lapidary serve` as a process of its own, and the simplest HTTP client there is.
#pragma once

#include <sys/types.h>

#include <boost/json/object.hpp>
#include <map>
#include <string>
#include <vector>

#include "support/program.h"

namespace lapidary::test {

struct HttpResult {
  int status = 0;                    // 0: no answer
  std::string head, body;            // the body of a chunked answer is joined
  boost::json::object json() const;  // fails the test when the body is no JSON object
};

class RunningServer {
 public:
  // Starts the program with "serve", these arguments and "--port 0", in the program's folder. Fails the test
  // unless it is ready in time; what it writes is gathered meanwhile.
  RunningServer(const Program& program, std::vector<std::string> arguments,
                std::map<std::string, std::string> environment = {});
  ~RunningServer();  // SIGKILL, if it still runs
  RunningServer(const RunningServer&) = delete;

  int port() const { return port_; }
  pid_t process() const { return process_; }
  const boost::json::object& ready() const { return ready_; }  // the line on standard output

  // One request on a connection of its own.
  HttpResult request(const std::string& method, const std::string& path, const std::string& body = "",
                     const std::vector<std::string>& headers = {}) const;
  // A connection that the caller reads itself, after this request was sent; closed by the caller.
  int open_request(const std::string& method, const std::string& path, const std::string& body = "",
                   const std::vector<std::string>& headers = {}) const;

  void signal(int number) const;
  // Exit code as a shell says; fails the test when it does not come in time.
  int wait_for_exit(double seconds = 60);
  // Standard error so far; waits until it holds `part`, and fails the test when that does not come.
  std::string wait_for_log(const std::string& part, double seconds = 30);
  std::string log();

 private:
  void drain(int milliseconds);
  pid_t process_ = -1;
  int out_ = -1, err_ = -1, port_ = 0;
  std::string out_text_, err_text_;
  boost::json::object ready_;
};

}  // namespace lapidary::test
