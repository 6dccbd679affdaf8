// A file descriptor that closes itself, and errors of the operating system that name their path.
#pragma once

#include <string>

namespace lapidary {

// Error(not_found) for ENOENT and ENOTDIR, else Error(io): "PATH: cannot ACTION: reason".
[[noreturn]] void fail_errno(const std::string& path, const char* action, int error);

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return fd_; }
  // 0 or errno: a network file system may report a failed write only here.
  int close();

 private:
  int fd_ = -1;
};

}  // namespace lapidary
