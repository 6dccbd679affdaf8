// A StateStore in memory, whose blobs a test can see, damage and count.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "serve/state_store.h"

namespace lapidary::test {

class MemoryStore : public serve::StateStore {
 public:
  struct Blob {
    std::vector<std::byte> bytes;
    int64_t time = 0;
  };
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, blob] : blobs) all.push_back(name);
    std::sort(all.begin(), all.end(),
              [&](const auto& a, const auto& b) { return blobs.at(a).time > blobs.at(b).time; });
    return all;
  }
  void read(const std::string& name, Sink see) const override {
    reads++;
    if (!blobs.contains(name)) fail(ErrorCode::io, "{}: cannot read", name);
    see(blobs.at(name).bytes);
  }
  void write(const std::string& name, FunctionRef<void(Sink)> produce) override {
    if (writes >= writes_allowed) fail(ErrorCode::io, "{}: cannot write: No space left on device", name);
    Blob blob{{}, ++writes};
    produce([&](std::span<const std::byte> part) {
      blob.bytes.insert(blob.bytes.end(), part.begin(), part.end());
    });
    blobs[name] = std::move(blob);
  }
  void remove(const std::string& name) override { blobs.erase(name); }

  std::map<std::string, Blob> blobs;
  int64_t writes = 0, writes_allowed = 1 << 20;
  mutable int64_t reads = 0;
};

}  // namespace lapidary::test
