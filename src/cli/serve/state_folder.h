// A StateStore in a folder, for `serve --kv-dir`. One server at a time: it holds a lock on a file there. Only
// files with names of its own kind and version are looked at; all else in the folder is left alone.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "formats/descriptor.h"
#include "serve/state_store.h"

namespace lapidary {

class StateFolder : public serve::StateStore {
 public:
  // Makes the folder when it is missing (not the folders above it), and removes what killed writers left.
  // Error(usage) when another server has it; Error(io / not_found) naming the path when it is no folder or
  // cannot be written to.
  explicit StateFolder(std::filesystem::path folder);

  // Names of blobs are of the characters a-z, 0-9 and '-', 1 to 128 of them: others are Error(usage).
  std::vector<std::string> names() const override;  // by time of writing, then by name
  void read(const std::string& name, Sink see) const override;
  void write(const std::string& name, FunctionRef<void(Sink)> produce) override;
  void remove(const std::string& name) override;

  std::filesystem::path path_of(const std::string& name) const;

 private:
  std::filesystem::path folder_;
  Descriptor lock_;
};

}  // namespace lapidary
