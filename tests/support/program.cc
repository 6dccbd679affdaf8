#include "support/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

namespace lapidary::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int shell_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Never returns.
void become_program(const Program& program, const Invocation& invocation) {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGPIPE, SIG_DFL);
  std::vector<std::string> arguments{"lapidary"}, environment = program.environment(invocation);
  arguments.insert(arguments.end(), invocation.arguments.begin(), invocation.arguments.end());
  std::vector<char*> argv, envp;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  for (std::string& variable : environment) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  if (chdir(program.folder().path().c_str()) == 0) execve(LAPIDARY_BINARY, argv.data(), envp.data());
  _exit(127);
}

struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() {
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  }
  ~Pipe() {
    for (const int end : ends) {
      if (end >= 0) close(end);
    }
  }
  void close_end(int which) {
    close(ends[which]);
    ends[which] = -1;
  }
};

// Feeds stdin and gathers both outputs until they are closed.
void communicate(Pipe& in, Pipe& out, Pipe& err, const Invocation& invocation, int process,
                 Outcome& outcome) {
  fcntl(in.ends[1], F_SETFL, O_NONBLOCK);
  std::string_view input = invocation.input;
  bool interrupted = false;
  while (out.ends[0] >= 0 || err.ends[0] >= 0) {
    if (input.empty() && in.ends[1] >= 0) in.close_end(1);
    pollfd files[] = {{in.ends[1], POLLOUT, 0}, {out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
    if (poll(files, 3, -1) < 0) continue;
    if ((files[0].revents & (POLLOUT | POLLERR)) != 0) {
      const ssize_t n = write(in.ends[1], input.data(), input.size());
      input = n > 0 ? input.substr(static_cast<size_t>(n)) : std::string_view();
    }
    Pipe* pipes[] = {nullptr, &out, &err};
    std::string* texts[] = {nullptr, &outcome.out, &outcome.err};
    for (int i = 1; i <= 2; ++i) {
      if ((files[i].revents & (POLLIN | POLLHUP)) == 0) continue;
      char buffer[1 << 16];
      const ssize_t n = read(pipes[i]->ends[0], buffer, sizeof buffer);
      if (n > 0) texts[i]->append(buffer, static_cast<size_t>(n));
      if (n == 0) pipes[i]->close_end(0);
    }
    if (!interrupted && invocation.interrupt_after > 0 && outcome.out.size() >= invocation.interrupt_after) {
      interrupted = true;
      kill(process, SIGINT);
    }
  }
}

}  // namespace

std::vector<std::string> Program::environment(const Invocation& invocation) const {
  std::map<std::string, std::string> variables{
      {"PATH", "/usr/bin:/bin"}, {"TERM", "xterm"}, {"LANG", "C.UTF-8"}};
  for (const char* name : {"ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS", "LAPIDARY_ISA"}) {
    if (const char* value = std::getenv(name)) variables[name] = value;
  }
  if (invocation.user_cache) {
    for (const char* name : {"HOME", "XDG_CACHE_HOME", "LAPIDARY_CACHE"}) {
      if (const char* value = std::getenv(name)) variables[name] = value;
    }
    variables["XDG_STATE_HOME"] = (folder_.path() / ".state").string();
  } else {
    variables["HOME"] = folder_.path().string();
  }
  for (const auto& [name, value] : invocation.environment) variables[name] = value;
  std::vector<std::string> list;
  for (const auto& [name, value] : variables) list.push_back(name + "=" + value);
  return list;
}

Outcome Program::run(const Invocation& invocation) const {
  Pipe in, out, err;
  Outcome outcome;
  std::signal(SIGPIPE, SIG_IGN);  // a program that does not read its input is no reason to die
  const Clock::time_point start = Clock::now();
  const pid_t process = fork();
  if (process < 0) throw std::runtime_error("fork failed");
  if (process == 0) {
    dup2(in.ends[0], STDIN_FILENO);
    dup2(out.ends[1], STDOUT_FILENO);
    dup2(err.ends[1], STDERR_FILENO);
    become_program(*this, invocation);
  }
  in.close_end(0);
  out.close_end(1);
  err.close_end(1);
  communicate(in, out, err, invocation, process, outcome);
  int status = 0;
  waitpid(process, &status, 0);
  outcome.exit_code = shell_code(status);
  outcome.seconds = seconds_since(start);
  return outcome;
}

Outcome Program::run(const std::vector<std::string>& arguments, const std::string& input) const {
  return run(Invocation{.arguments = arguments, .input = input});
}

boost::json::object Program::json(const Invocation& invocation) const {
  const Outcome outcome = run(invocation);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  boost::system::error_code problem;
  const boost::json::value value = boost::json::parse(outcome.out, problem);
  EXPECT_TRUE(!problem && value.is_object()) << problem.message() << "\n" << outcome.out << outcome.err;
  return value.is_object() ? value.get_object() : boost::json::object{};
}

boost::json::object Program::json(const std::vector<std::string>& arguments, const std::string& input) const {
  return json(Invocation{.arguments = arguments, .input = input});
}

void expect_refusal(const Outcome& outcome, int exit_code, const std::string& part) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.find("lapidary: error: "), 0u) << outcome.err;
  EXPECT_NE(outcome.err.find(part), std::string::npos) << "expected: " << part << "\ngot: " << outcome.err;
}

TerminalSession::TerminalSession(const Program& program, const Invocation& invocation) {
  winsize size{40, 120, 0, 0};
  process_ = forkpty(&terminal_, nullptr, nullptr, &size);
  if (process_ < 0) throw std::runtime_error("forkpty failed");
  if (process_ == 0) become_program(program, invocation);
}

TerminalSession::~TerminalSession() {
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  close(terminal_);
}

void TerminalSession::type(const std::string& keys) {
  if (write(terminal_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size()))
    ADD_FAILURE() << "cannot type";
}

bool TerminalSession::read_some(int milliseconds) {
  pollfd file{terminal_, POLLIN, 0};
  if (poll(&file, 1, milliseconds) <= 0) return true;
  char buffer[4096];
  const ssize_t n = read(terminal_, buffer, sizeof buffer);
  if (n > 0) seen_.append(buffer, static_cast<size_t>(n));
  return n > 0;
}

std::string TerminalSession::wait_for(const std::string& part, double seconds) {
  const Clock::time_point start = Clock::now();
  for (;;) {
    if (const size_t at = seen_.find(part); at != std::string::npos) {
      std::string text = seen_.substr(0, at + part.size());
      seen_.erase(0, text.size());
      return text;
    }
    if (seconds_since(start) > seconds || !read_some(50)) {
      ADD_FAILURE() << "waited for: " << part << "\nsaw: " << seen_;
      return seen_;
    }
  }
}

void TerminalSession::type_until(const std::string& keys, const std::string& part, double seconds) {
  const Clock::time_point start = Clock::now();
  while (seconds_since(start) < seconds) {
    type(keys);
    const Clock::time_point typed = Clock::now();
    while (seconds_since(typed) < 0.5 && read_some(50)) {
      if (const size_t at = seen_.find(part); at != std::string::npos) {
        seen_.erase(0, at + part.size());
        return;
      }
    }
  }
  ADD_FAILURE() << "typed in vain for: " << part << "\nsaw: " << seen_;
}

int TerminalSession::wait_for_exit(double seconds) {
  const Clock::time_point start = Clock::now();
  while (seconds_since(start) < seconds) {
    read_some(20);
    int status = 0;
    if (waitpid(process_, &status, WNOHANG) == process_) {
      process_ = -1;
      return shell_code(status);
    }
  }
  ADD_FAILURE() << "the program goes on; saw: " << seen_;
  return -1;
}

}  // namespace lapidary::test
