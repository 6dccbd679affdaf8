#include "support/temp_dir.h"

#include <stdlib.h>

#include <fstream>
#include <string>

#include "base/error.h"

namespace lapidary::test {

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "lapidary-test-XXXXXX").string();
  ensure(::mkdtemp(pattern.data()) != nullptr, ErrorCode::io, "cannot create {}", pattern);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TempDir::write(const std::filesystem::path& name, std::string_view text) const {
  std::filesystem::path path = path_ / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  ensure(!out.fail(), ErrorCode::io, "cannot write {}", path.string());
  return path;
}

std::filesystem::path TempDir::write(const std::filesystem::path& name,
                                     std::span<const std::byte> bytes) const {
  return write(name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace lapidary::test
