// Files and folders that appear whole or not at all: written under a temporary name beside the target,
// flushed, renamed. A killed writer leaves its temporary; the next writer of the same target removes it, for
// a living writer holds a lock on its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "formats/descriptor.h"

namespace lapidary {

// What bears this name, links followed; not_found too when a folder above it is missing. Error(io) when the
// system does not tell.
std::filesystem::file_type type_at(const std::filesystem::path& path);

class AtomicFile {
 public:
  // Error(usage) on what cannot name a file; Error(not_found / io) naming the path when what is there is no
  // file, or nothing can be created beside it.
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();  // removes the temporary file unless committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Error(io): "PATH: cannot write: No space left on device (N bytes written, M more wanted)".
  void write(std::span<const std::byte> bytes);
  int64_t position() const { return position_; }  // bytes written so far
  // Flushes, takes the target's name (replacing what bears it), flushes the folder. Nothing may follow.
  void commit();

 private:
  std::filesystem::path path_;
  std::string temporary_;
  Descriptor file_;
  int64_t position_ = 0;
};

// A folder whose files are written with AtomicFile or otherwise, then seen all at once.
class AtomicFolder {
 public:
  enum class Existing { refuse, replace };  // a target that is there and not empty

  // Error(usage) on what cannot name a folder; Error(io) naming the path when the target is no folder or may
  // not be replaced, or nothing can be created beside it.
  AtomicFolder(const std::filesystem::path& path, Existing existing);
  ~AtomicFolder();  // removes the temporary folder unless committed
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  const std::filesystem::path& temporary() const { return temporary_; }  // write here
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  Existing existing_;
  Descriptor lock_;
};

// The whole of a file at once.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes);

}  // namespace lapidary
