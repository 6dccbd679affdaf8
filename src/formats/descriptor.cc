#include "formats/descriptor.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace lapidary {

void fail_errno(const std::string& path, const char* action, int error) {
  const ErrorCode code = error == ENOENT || error == ENOTDIR ? ErrorCode::not_found : ErrorCode::io;
  fail(code, "{}: cannot {}: {}", path, action, std::strerror(error));
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

int Descriptor::close() {
  return ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno;
}

}  // namespace lapidary
