// Where the prefix cache outlives the server: named blobs in a place that the caller knows (a folder, for
// `serve --kv-dir`). Nobody below the commands opens files.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"

namespace lapidary::serve {

class StateStore {
 public:
  virtual ~StateStore() = default;
  using Sink = FunctionRef<void(std::span<const std::byte>)>;
  virtual std::vector<std::string> names() const = 0;  // newest first
  // The whole blob, valid while `see` runs. Error(io) when it cannot be read.
  virtual void read(const std::string& name, Sink see) const = 0;
  // Atomic and durable: after it returns the blob survives a kill and a power cut; before, there is none.
  // Error(io) leaves none. Replaces a blob of the same name.
  virtual void write(const std::string& name, FunctionRef<void(Sink)> produce) = 0;
  virtual void remove(const std::string& name) = 0;  // no error when there is none
};

}  // namespace lapidary::serve
