#include "formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "formats/descriptor.h"

namespace lapidary {
namespace {

int open_for_reading(const std::string& path, int flags = 0) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (fd < 0) fail_errno(path, "open", errno);
  return fd;
}

// What is mapped: address → size.
struct MappedFiles {
  std::mutex mutex;
  std::map<uintptr_t, size_t> sizes;
};

MappedFiles& mapped_files() {
  static MappedFiles files;
  return files;
}

struct stat status_of(int fd, const std::string& path) {
  struct stat status;
  if (::fstat(fd, &status) != 0) fail_errno(path, "stat", errno);
  return status;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : name_(path.string()) {
  const Descriptor file(open_for_reading(name_, O_NONBLOCK));  // a pipe is refused below, not waited for
  const struct stat status = status_of(file.get(), name_);
  ensure(S_ISREG(status.st_mode), ErrorCode::io, "{}: expected a regular file, got {}", name_,
         S_ISDIR(status.st_mode) ? "a directory" : "a special file");
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) fail_errno(name_, "map", errno);
  bytes_ = {static_cast<const std::byte*>(address), size};
  const std::scoped_lock lock(mapped_files().mutex);
  mapped_files().sizes[reinterpret_cast<uintptr_t>(address)] = size;
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  const std::scoped_lock lock(mapped_files().mutex);
  mapped_files().sizes.erase(reinterpret_cast<uintptr_t>(bytes_.data()));
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), name_(std::move(other.name_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(name_, other.name_);
  return *this;
}

void forget_pages(std::span<const std::byte> bytes) {
  const std::scoped_lock lock(mapped_files().mutex);
  const auto& starts = mapped_files().sizes;
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  auto file = starts.upper_bound(begin);
  if (file == starts.begin()) return;
  --file;
  if (begin + bytes.size() > file->first + file->second) return;  // elsewhere: dropping it would lose data
  // Outwards to whole windows: a look at a byte maps the pages around it too (up to the largest folio), and
  // what the neighbours lose comes back when they are read.
  constexpr uintptr_t kWindow = uintptr_t{2} << 20;
  const uintptr_t first = std::max(file->first, begin / kWindow * kWindow),
                  last = (begin + bytes.size() + kWindow - 1) / kWindow * kWindow;
  const uintptr_t end = std::min(file->first + file->second, last);
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

std::string read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  const std::string name = path.string();
  const Descriptor file(open_for_reading(name));
  std::string text;
  size_t used = 0;
  while (true) {
    ensure(used <= max_bytes, ErrorCode::limit, "{}: expected a text file of at most {} bytes, got more",
           name, max_bytes);
    text.resize(used + (size_t{64} << 10));
    const ssize_t got = ::read(file.get(), text.data() + used, text.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(name, "read", errno);
    if (got == 0) break;
    used += static_cast<size_t>(got);
  }
  text.resize(used);
  return text;
}

}  // namespace lapidary
