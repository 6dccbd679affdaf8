#include "formats/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// "dir/" names what "dir" does.
fs::path without_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

// A target gets its name by a rename, which neither "" nor "." nor ".." can be the end of.
void check_name(const fs::path& path, const char* kind) {
  ensure(!path.empty(), ErrorCode::usage, "expected the name of a {} to write, got an empty one", kind);
  const fs::path last = path.filename();
  ensure(last != "." && last != "..", ErrorCode::usage,
         "{}: expected the name of a {} to write, got one that ends in \"{}\"", path.string(), kind,
         last.string());
}

constexpr std::string_view kSuffix = ".tmp";

std::string temporary_start(const fs::path& path) {
  return fmt::format(".{}.", path.filename().string());
}

fs::path fresh_temporary(const fs::path& path) {
  static std::atomic<uint64_t> counter{0};
  return folder_of(path) / fmt::format("{}{}.{}{}", temporary_start(path), ::getpid(), counter++, kSuffix);
}

// ".model.gguf.4711.0.tmp" for "model.gguf"; not a user's ".model.gguf.old.tmp".
bool is_temporary_of(const std::string& name, const std::string& start) {
  if (!name.starts_with(start) || !name.ends_with(kSuffix)) return false;
  if (name.size() <= start.size() + kSuffix.size()) return false;
  const std::string middle = name.substr(start.size(), name.size() - start.size() - kSuffix.size());
  const size_t dot = middle.find('.');
  return dot != std::string::npos && dot != 0 && dot + 1 != middle.size() &&
         middle.find_first_not_of("0123456789.") == std::string::npos &&
         middle.find('.', dot + 1) == std::string::npos;
}

// Removes what killed writers of `path` left: temporaries that nobody holds a lock on. Never an error: the
// writer that follows says what is wrong with the folder.
void remove_leftovers(const fs::path& path) {
  const std::string start = temporary_start(path);
  std::error_code ignored;
  for (fs::directory_iterator it(folder_of(path), ignored), end; it != end; it.increment(ignored)) {
    if (ignored) return;
    if (!is_temporary_of(it->path().filename().string(), start)) continue;
    const Descriptor left(::open(it->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (left.get() < 0 || ::flock(left.get(), LOCK_EX | LOCK_NB) != 0) continue;
    fs::remove_all(it->path(), ignored);
  }
}

// Holds the lock of a new temporary; false only when another writer took it for a leftover in between. File
// systems without locks are written to as well, only that nobody cleans up there.
bool lock_fresh(const Descriptor& file, const std::string& name) {
  while (::flock(file.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return true;
  }
  struct stat status, named;
  if (::stat(name.c_str(), &named) != 0) return errno != ENOENT;
  return ::fstat(file.get(), &status) != 0 || status.st_ino == named.st_ino;
}

void flush_folder(const fs::path& folder) {
  const Descriptor parent(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent.get() < 0 || ::fsync(parent.get()) != 0) fail_errno(folder.string(), "flush", errno);
}

bool is_filled(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return false;
  if (!fs::is_directory(path, error)) return true;
  return !fs::is_empty(path, error) || error;
}

}  // namespace

fs::file_type type_at(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::none) fail_errno(path.string(), "look at", error.value());
  return type;
}

AtomicFile::AtomicFile(const fs::path& path) : path_(path) {
  check_name(path_, "file");
  ensure(path_.has_filename(), ErrorCode::usage,
         "{}: expected the name of a file to write, got one that ends in a slash", path_.string());
  const fs::file_type there = type_at(path_);
  ensure(there == fs::file_type::not_found || there == fs::file_type::regular, ErrorCode::io,
         "{}: expected a file or nothing there, got {}", path_.string(),
         there == fs::file_type::directory ? "a folder" : "what is neither a file nor a folder");
  remove_leftovers(path_);
  do {
    temporary_ = fresh_temporary(path_).string();
    file_ = Descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file_.get() < 0) fail_errno(path_.string(), "create", errno);
  } while (!lock_fresh(file_, temporary_));
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(file_.get(), bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      fail(ErrorCode::io, "{}: cannot write: {} ({} bytes written, {} more wanted)", path_.string(),
           std::strerror(errno), position_, bytes.size());
    }
    position_ += wrote;
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
}

void AtomicFile::commit() {
  const std::string path = path_.string();
  if (::fsync(file_.get()) != 0) fail_errno(path, "flush", errno);
  if (::rename(temporary_.c_str(), path.c_str()) != 0) fail_errno(path, "rename to", errno);
  temporary_.clear();
  if (const int error = file_.close(); error != 0) fail_errno(path, "close", error);
  flush_folder(folder_of(path_));  // the rename itself is durable once the folder is
}

AtomicFolder::AtomicFolder(const fs::path& path, Existing existing)
    : path_(without_slash(path)), existing_(existing) {
  check_name(path_, "folder");
  const fs::file_type there = type_at(path_);
  ensure(there == fs::file_type::not_found || there == fs::file_type::directory, ErrorCode::io,
         "{}: expected a folder or nothing there, got {}", path_.string(),
         there == fs::file_type::regular ? "a file" : "what is neither a file nor a folder");
  ensure(existing_ == Existing::replace || !is_filled(path_), ErrorCode::io,
         "{}: expected nothing there or an empty folder, got something that would be replaced",
         path_.string());
  remove_leftovers(path_);
  do {
    temporary_ = fresh_temporary(path_);
    if (::mkdir(temporary_.c_str(), 0777) != 0) fail_errno(path_.string(), "create", errno);
    const int opened = ::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = errno;
    lock_ = Descriptor(opened);
    if (opened < 0) {
      if (::rmdir(temporary_.c_str()) != 0 && errno == ENOENT) continue;  // taken for a leftover
      fail_errno(path_.string(), "open the new folder beside", error);
    }
  } while (lock_.get() < 0 || !lock_fresh(lock_, temporary_.string()));
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  flush_folder(temporary_);
  if (existing_ == Existing::replace && is_filled(path_)) {
    // The two change names in one step; the old one then goes as the temporary that it has become.
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) != 0) {
      fail_errno(path_.string(), "take the place of", errno);
    }
    std::error_code error;
    fs::remove_all(temporary_, error);
    if (error) fail_errno(temporary_.string(), "remove what was replaced, now", error.value());
  } else if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail_errno(path_.string(), "rename to", errno);
  }
  temporary_.clear();
  lock_.close();
  flush_folder(folder_of(path_));
}

void write_file_atomically(const fs::path& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace lapidary
