#include "support/running_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>

namespace lapidary::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

boost::json::object parse_object(const std::string& text) {
  boost::system::error_code problem;
  const boost::json::value value = boost::json::parse(text, problem);
  EXPECT_TRUE(!problem && value.is_object()) << problem.message() << ": " << text;
  return value.is_object() ? value.get_object() : boost::json::object{};
}

std::string joined_chunks(std::string_view text) {
  std::string out;
  for (;;) {
    const size_t end = text.find("\r\n");
    if (end == std::string_view::npos) return out;
    const size_t size = std::stoul(std::string(text.substr(0, end)), nullptr, 16);
    if (size == 0) return out;
    out += text.substr(end + 2, size);
    text.remove_prefix(std::min(end + 4 + size, text.size()));
  }
}

}  // namespace

boost::json::object HttpResult::json() const {
  return parse_object(body);
}

RunningServer::RunningServer(const Program& program, std::vector<std::string> arguments,
                             std::map<std::string, std::string> environment) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  arguments.insert(arguments.begin(), {"lapidary", "serve"});
  arguments.insert(arguments.end(), {"--port", "0"});
  Invocation invocation;
  invocation.environment = std::move(environment);
  std::vector<std::string> variables = program.environment(invocation);
  std::vector<char*> argv, envp;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  process_ = fork();
  if (process_ < 0) throw std::runtime_error("fork failed");
  if (process_ == 0) {
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGPIPE, SIG_DFL);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    if (chdir(program.folder().path().c_str()) == 0) execve(LAPIDARY_BINARY, argv.data(), envp.data());
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
  const Clock::time_point start = Clock::now();
  while (out_text_.find('\n') == std::string::npos && out_ >= 0 && seconds_since(start) < 60) drain(50);
  if (out_text_.find('\n') == std::string::npos) {
    ADD_FAILURE() << "the server is not ready: " << err_text_;
    return;
  }
  ready_ = parse_object(out_text_.substr(0, out_text_.find('\n')));
  const std::string url(ready_.at("url").as_string());
  port_ = std::stoi(url.substr(url.rfind(':') + 1));
}

RunningServer::~RunningServer() {
  if (process_ > 0) {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  for (const int end : {out_, err_}) {
    if (end >= 0) close(end);
  }
}

void RunningServer::drain(int milliseconds) {
  pollfd files[] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  if (poll(files, 2, milliseconds) <= 0) return;
  int* ends[] = {&out_, &err_};
  std::string* texts[] = {&out_text_, &err_text_};
  for (int i = 0; i < 2; ++i) {
    if ((files[i].revents & (POLLIN | POLLHUP)) == 0) continue;
    char buffer[1 << 16];
    const ssize_t n = read(*ends[i], buffer, sizeof buffer);
    if (n > 0) {
      texts[i]->append(buffer, static_cast<size_t>(n));
    } else {
      close(*ends[i]);
      *ends[i] = -1;
    }
  }
}

int RunningServer::open_request(const std::string& method, const std::string& path, const std::string& body,
                                const std::vector<std::string>& headers) const {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(socket);
    return -1;
  }
  std::string text = method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n";
  if (!body.empty())
    text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  for (const std::string& header : headers) text += header + "\r\n";
  text += "\r\n" + body;
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t n = send(socket, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (n <= 0) break;
    rest.remove_prefix(static_cast<size_t>(n));
  }
  return socket;
}

HttpResult RunningServer::request(const std::string& method, const std::string& path, const std::string& body,
                                  const std::vector<std::string>& headers) const {
  HttpResult result;
  const int socket = open_request(method, path, body, headers);
  if (socket < 0) return result;
  std::string text;
  char buffer[1 << 16];
  for (ssize_t n; (n = recv(socket, buffer, sizeof buffer, 0)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(socket);
  const size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos || text.size() < 12) return result;
  result.status = std::stoi(text.substr(9, 3));
  result.head = text.substr(0, end);
  result.body = text.substr(end + 4);
  if (result.head.find("Transfer-Encoding: chunked") != std::string::npos)
    result.body = joined_chunks(result.body);
  return result;
}

void RunningServer::signal(int number) const {
  kill(process_, number);
}

int RunningServer::wait_for_exit(double seconds) {
  const Clock::time_point start = Clock::now();
  while (seconds_since(start) < seconds) {
    drain(20);
    int status = 0;
    if (waitpid(process_, &status, WNOHANG) != process_) continue;
    process_ = -1;
    while (err_ >= 0 || out_ >= 0) drain(-1);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  ADD_FAILURE() << "the server goes on; its log: " << err_text_;
  return -1;
}

std::string RunningServer::wait_for_log(const std::string& part, double seconds) {
  const Clock::time_point start = Clock::now();
  while (err_text_.find(part) == std::string::npos) {
    if (seconds_since(start) > seconds || err_ < 0) {
      ADD_FAILURE() << "waited for: " << part << "\nlog: " << err_text_;
      break;
    }
    drain(50);
  }
  return err_text_;
}

std::string RunningServer::log() {
  drain(0);
  return err_text_;
}

}  // namespace lapidary::test
