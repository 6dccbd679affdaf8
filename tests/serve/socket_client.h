// A blocking HTTP client on a bare socket, for tests: says what was sent byte by byte, and may misbehave.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace lapidary::serve {

struct SocketAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without the chunked coding
  bool whole = false;                          // the body ended as its framing says
  std::string header(const std::string& name) const {
    const auto at = headers.find(name);
    return at == headers.end() ? "" : at->second;
  }
};

class SocketClient {
 public:
  explicit SocketClient(uint16_t port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (fd_ < 0) throw std::runtime_error("socket: " + std::string(std::strerror(errno)));
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
      const std::string why = std::strerror(errno);
      close();
      throw std::runtime_error("connect: " + why);
    }
  }
  SocketClient(SocketClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), in_(std::move(other.in_)), ended_(other.ended_) {}
  SocketClient(const SocketClient&) = delete;
  ~SocketClient() { close(); }

  // False when the peer has closed: what was sent of it is unknown.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void end_sending() { shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void reset() {  // the peer sees RST instead of FIN
    const linger hard{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }

  // More bytes into in(); false at the end of the stream (or a reset). Throws when nothing comes for `ms`.
  bool receive(int ms = 20'000) {
    if (ended_) return false;
    pollfd poll_fd{fd_, POLLIN, 0};
    int ready = 0;
    do ready = poll(&poll_fd, 1, ms);
    while (ready < 0 && errno == EINTR);
    if (ready == 0) throw std::runtime_error("the server sent nothing for too long; so far: " + in_);
    char block[16384];
    const ssize_t n = recv(fd_, block, sizeof block, 0);
    if (n <= 0) {
      ended_ = true;
      was_reset_ = n < 0;
      return false;
    }
    in_.append(block, static_cast<size_t>(n));
    return true;
  }
  bool was_reset() const { return was_reset_; }
  const std::string& in() const { return in_; }
  std::string read_to_end() {
    while (receive()) {
    }
    return std::exchange(in_, {});
  }

  std::string read_head() {
    size_t end = 0;
    while ((end = in_.find("\r\n\r\n")) == std::string::npos)
      if (!receive()) throw std::runtime_error("the connection ended within a header: '" + in_ + "'");
    std::string head = in_.substr(0, end + 4);
    in_.erase(0, end + 4);
    return head;
  }
  // `no_body`: of an answer to HEAD.
  SocketAnswer read_answer(bool no_body = false) {
    SocketAnswer answer;
    const std::string head = read_head();
    if (head.compare(0, 7, "HTTP/1.") != 0) throw std::runtime_error("no status line: " + head);
    answer.status = std::atoi(head.c_str() + 9);
    size_t at = head.find("\r\n") + 2;
    while (head.compare(at, 2, "\r\n") != 0) {
      const size_t end = head.find("\r\n", at), colon = head.find(": ", at);
      if (colon == std::string::npos || colon > end) throw std::runtime_error("no header: " + head);
      std::string name = head.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      if (!answer.headers.emplace(name, head.substr(colon + 2, end - colon - 2)).second)
        throw std::runtime_error("twice the header " + name);
      at = end + 2;
    }
    if (no_body || answer.status == 204 || answer.status / 100 == 1) {
      answer.whole = true;
    } else if (answer.headers.count("content-length")) {
      const size_t length = std::stoul(answer.header("content-length"));
      while (in_.size() < length && receive()) {
      }
      answer.whole = in_.size() >= length;
      answer.body = in_.substr(0, length);
      in_.erase(0, length);
    } else if (answer.header("transfer-encoding") == "chunked") {
      read_chunks(answer);
    } else {
      answer.body = read_to_end();
      answer.whole = true;
    }
    return answer;
  }
  SocketAnswer ask(std::string_view request, bool no_body = false) {
    send(request);
    return read_answer(no_body);
  }

 private:
  bool line(std::string& out, size_t& at) {
    size_t end = 0;
    while ((end = in_.find("\r\n", at)) == std::string::npos)
      if (!receive()) return false;
    out = in_.substr(at, end - at);
    at = end + 2;
    return true;
  }
  void read_chunks(SocketAnswer& answer) {
    std::string text;
    size_t at = 0;
    while (line(text, at)) {
      const size_t size = std::stoul(text, nullptr, 16);
      while (in_.size() < at + size + 2 && receive()) {
      }
      if (in_.size() < at + size + 2) break;
      answer.body.append(in_, at, size);
      at += size + 2;
      if (size == 0) {
        answer.whole = true;
        break;
      }
      if (at > 1 << 20) {
        in_.erase(0, at);
        at = 0;
      }
    }
    in_.erase(0, at);
  }

  int fd_;
  std::string in_;
  bool ended_ = false, was_reset_ = false;
};

// "METHOD PATH" with the headers that every request needs; `more` are whole lines, each with its CR LF.
inline std::string http_request(std::string_view method_and_path, std::string_view body = "",
                                std::string_view more = "") {
  std::string out = std::string(method_and_path) + " HTTP/1.1\r\nHost: localhost\r\n";
  if (!body.empty()) out += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return out.append(more).append("\r\n").append(body);
}

}  // namespace lapidary::serve
