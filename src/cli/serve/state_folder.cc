#include "cli/serve/state_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/quote.h"
#include "formats/atomic_file.h"
#include "formats/mapped_file.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

// The version is of the names and of what a blob is to the server; states have one of their own inside.
constexpr std::string_view kStart = "prefix-v1-", kEnd = ".lapkv", kLock = "serve.lock";

bool is_blob_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
}

// "NAME" of "prefix-v1-NAME.lapkv"; empty when it is no such file.
std::string blob_of(const std::string& file) {
  if (file.size() <= kStart.size() + kEnd.size() || !file.starts_with(kStart) || !file.ends_with(kEnd))
    return {};
  std::string name = file.substr(kStart.size(), file.size() - kStart.size() - kEnd.size());
  return is_blob_name(name) ? name : std::string();
}

// What AtomicFile writes to before a blob has its name.
bool is_temporary(const std::string& file) {
  return file.starts_with("." + std::string(kStart)) && file.ends_with(".tmp");
}

template <typename F>
void for_each_file(const fs::path& folder, F&& f) {
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code gone;
    if (it->symlink_status(gone).type() == fs::file_type::regular) f(it->path());
  }
  if (error) fail_errno(folder.string(), "list", error.value());
}

}  // namespace

StateFolder::StateFolder(fs::path folder) : folder_(std::move(folder)) {
  ensure(!folder_.empty(), ErrorCode::usage,
         "expected the name of a folder for saved states, got an empty one");
  if (type_at(folder_) == fs::file_type::not_found && ::mkdir(folder_.c_str(), 0700) != 0)
    fail_errno(folder_.string(), "create", errno);
  ensure(type_at(folder_) == fs::file_type::directory, ErrorCode::io,
         "{}: expected a folder for saved states, got a file", folder_.string());
  const std::string lock = (folder_ / kLock).string();
  const int file = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), error = errno;
  if (file < 0) fail_errno(lock, "create", error);
  lock_ = Descriptor(file);
  while (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    ensure(errno != EWOULDBLOCK, ErrorCode::usage,
           "{}: another server keeps its states there; each needs a folder of its own", folder_.string());
    fail_errno(lock, "lock", errno);
  }
  // Under the lock nobody else writes here: what is unfinished stays so.
  std::vector<fs::path> left;
  for_each_file(folder_, [&](const fs::path& path) {
    if (is_temporary(path.filename().string())) left.push_back(path);
  });
  for (const fs::path& path : left)
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_errno(path.string(), "remove", errno);
  const AtomicFile can_be_written(path_of("probe"));  // never committed
}

fs::path StateFolder::path_of(const std::string& name) const {
  ensure(is_blob_name(name), ErrorCode::usage,
         "{}: {} cannot name a saved state: expected 1 to 128 characters of a-z, 0-9 and '-'",
         folder_.string(), lapidary::quoted(name));
  return folder_ / fmt::format("{}{}{}", kStart, name, kEnd);
}

std::vector<std::string> StateFolder::names() const {
  struct Found {
    struct timespec time;
    std::string name;
  };
  std::vector<Found> found;
  for_each_file(folder_, [&](const fs::path& path) {
    std::string name = blob_of(path.filename().string());
    struct stat status;
    if (!name.empty() && ::lstat(path.c_str(), &status) == 0)
      found.push_back({status.st_mtim, std::move(name)});
  });
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::tie(b.time.tv_sec, b.time.tv_nsec, a.name) < std::tie(a.time.tv_sec, a.time.tv_nsec, b.name);
  });
  std::vector<std::string> names;
  for (Found& f : found) names.push_back(std::move(f.name));
  return names;
}

void StateFolder::read(const std::string& name, Sink see) const {
  const std::string path = path_of(name).string();
  std::optional<MappedFile> file;
  try {
    file.emplace(path);
  } catch (const Error& error) {
    fail(ErrorCode::io, "{}", error.what());  // also when it is gone: the caller was told that it is there
  }
  see(file->bytes());
}

void StateFolder::write(const std::string& name, FunctionRef<void(Sink)> produce) {
  AtomicFile file(path_of(name));
  produce([&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.commit();
}

void StateFolder::remove(const std::string& name) {
  const fs::path path = path_of(name);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_errno(path.string(), "remove", errno);
}

}  // namespace lapidary
