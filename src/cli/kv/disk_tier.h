// A file as a place for a saved state (kvlab/tiers.h).
#pragma once

#include <filesystem>
#include <string>

#include "kvlab/offload/tiers.h"

namespace lapidary {

// A folder of the program's own below the system's temporary folder, removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();  // Error(io)
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Written beside its name, flushed and renamed: the file is whole or not there. Read in one go into memory.
class DiskTier : public kvlab::Tier {
 public:
  enum class Keep { no, yes };  // the file, when the tier goes
  DiskTier(std::filesystem::path path, Keep keep) : path_(std::move(path)), keep_(keep) {}
  ~DiskTier() override;
  std::string name() const override { return "disk"; }
  std::string what() const override { return "a file, flushed (fsync) before it takes its name"; }
  void store(std::span<const std::byte> bytes) override;
  kvlab::Bytes load() const override;
  int64_t stored_bytes() const override { return bytes_; }
  std::optional<double> cached_share() const override;  // of the file's pages (mincore)
  bool cool() override;                                 // posix_fadvise

 private:
  std::filesystem::path path_;
  Keep keep_;
  int64_t bytes_ = 0;
};

}  // namespace lapidary
