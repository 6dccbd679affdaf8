#include "cli/kv/disk_tier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/error.h"
#include "formats/atomic_file.h"
#include "formats/descriptor.h"

namespace lapidary {
namespace {

Descriptor opened(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_errno(path, "open", errno);
  return Descriptor(fd);
}

size_t size_of(const Descriptor& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_errno(path, "read", errno);
  return static_cast<size_t>(status.st_size);
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::error_code problem;
  const std::filesystem::path below = std::filesystem::temp_directory_path(problem);
  ensure(!problem, ErrorCode::io, "the folder for temporary files (TMPDIR, else /tmp): {}",
         problem.message());
  std::string name = (below / "lapidary-kv-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) fail_errno(name, "create", errno);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

DiskTier::~DiskTier() {
  if (keep_ == Keep::yes || bytes_ == 0) return;
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void DiskTier::store(std::span<const std::byte> bytes) {
  AtomicFile file(path_);
  file.write(bytes);
  file.commit();
  bytes_ = static_cast<int64_t>(bytes.size());
}

kvlab::Bytes DiskTier::load() const {
  const std::string path = path_.string();
  const Descriptor file = opened(path);
  kvlab::Bytes bytes(size_of(file, path));
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(path, "read", errno);
    ensure(got > 0, ErrorCode::io, "{}: became shorter while it was read: expected {} bytes, got {}", path,
           bytes.size(), done);
    done += static_cast<size_t>(got);
  }
  return bytes;
}

bool DiskTier::cool() {
  const std::string path = path_.string();
  const Descriptor file = opened(path);
  const int problem = ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (problem != 0) fail_errno(path, "drop from memory", problem);
  return true;
}

std::optional<double> DiskTier::cached_share() const {
  const std::string path = path_.string();
  const Descriptor file = opened(path);
  const size_t size = size_of(file, path);
  if (size == 0) return {};
  void* map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (map == MAP_FAILED) fail_errno(path, "map", errno);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> there((size + page - 1) / page);
  const int looked = ::mincore(map, size, there.data());
  const int error = errno;
  ::munmap(map, size);
  if (looked != 0) fail_errno(path, "look at the pages of", error);
  const auto in_memory =
      std::count_if(there.begin(), there.end(), [](unsigned char p) { return (p & 1) != 0; });
  return static_cast<double>(in_memory) / static_cast<double>(there.size());
}

}  // namespace lapidary
