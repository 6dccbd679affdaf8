// A file as a read-only byte span (mmap). Throws Error(not_found / io) naming the path.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace lapidary {

class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& name() const { return name_; }  // for messages

 private:
  std::span<const std::byte> bytes_;
  std::string name_;
};

// Lets the pages of `bytes`, and of some bytes around, leave memory; the next look brings them back. Safe on
// bytes that are no mapped file: then nothing happens.
void forget_pages(std::span<const std::byte> bytes);

// The whole of a small text file; bounded, Error(limit) beyond max_bytes.
std::string read_text_file(const std::filesystem::path& path, size_t max_bytes = size_t{64} << 20);

}  // namespace lapidary
