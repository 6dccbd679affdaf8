// The keys of --api-keys: who may call, and under which name.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lapidary {

struct ApiKey {
  std::string name, key;
};

// One key a line, NAME and KEY with blanks between; empty lines and lines from # on are skipped. Names are 1
// to 64 letters, digits, dots, underscores and hyphens, keys 16 to 512 printable characters; both are there
// once. Error(data) naming file and line, never a key; a file without keys is one too.
std::vector<ApiKey> parse_keys(std::string_view text, const std::string& file);

// Equal in a time that does not depend on where they differ.
bool same_key(std::string_view known, std::string_view given);

class KeyFile {
 public:
  using Log = std::function<void(const std::string& warning)>;
  // Error as parse_keys(), or Error(not_found, io).
  KeyFile(std::filesystem::path path, Log log);

  // The name of the key in an Authorization header, "Bearer KEY"; nothing when there is none such. Looks at
  // all keys, whichever fits. From any thread.
  std::optional<std::string> find(std::string_view authorization) const;

  // Reads the file again, always or when it has changed since. A file that is no good leaves the keys as
  // they are, and is reported. On one thread. True: the keys are new.
  bool reload();
  bool reload_if_changed();
  size_t size() const;

 private:
  using Keys = std::vector<ApiKey>;
  struct Stamp {  // what changes with a file
    int64_t device = 0, inode = 0, size = 0, seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  void read();
  Stamp stamp() const;
  void warn_of_mode() const;
  std::shared_ptr<const Keys> keys() const;

  std::filesystem::path path_;
  Log log_;
  Stamp seen_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Keys> keys_;  // guarded by mutex_
};

}  // namespace lapidary
