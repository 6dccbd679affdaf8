// A folder of one test's own, removed with all that is in it.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

namespace lapidary::test {

class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // Write a file in it (folders are made as needed) and return its path.
  std::filesystem::path write(const std::filesystem::path& name, std::span<const std::byte> bytes) const;
  std::filesystem::path write(const std::filesystem::path& name, std::string_view text) const;

 private:
  std::filesystem::path path_;
};

}  // namespace lapidary::test
