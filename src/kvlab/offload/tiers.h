// Places where a saved state may be kept: memory, and any other place behind zstd. Files belong to the
// caller, who brings a Tier of his own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lapidary::kvlab {

using Bytes = std::vector<std::byte>;

class Tier {
 public:
  virtual ~Tier() = default;
  virtual std::string name() const = 0;                      // "ram", "disk", "zstd"
  virtual std::string what() const = 0;                      // the place and how it is written, in words
  virtual void store(std::span<const std::byte> bytes) = 0;  // replaces what it held
  virtual Bytes load() const = 0;                            // REQUIRES: store() was called
  virtual int64_t stored_bytes() const = 0;                  // what the place holds
  // The share (0 to 1) of the stored bytes that the system has in memory; nothing where that means nothing.
  virtual std::optional<double> cached_share() const { return {}; }
  // Asks the system to forget those copies; false where there are none to forget. cached_share() says what
  // came of it.
  virtual bool cool() { return false; }
};

class RamTier : public Tier {
 public:
  std::string name() const override { return "ram"; }
  std::string what() const override { return "a copy in this process's memory"; }
  void store(std::span<const std::byte> bytes) override { held_.assign(bytes.begin(), bytes.end()); }
  Bytes load() const override { return held_; }
  int64_t stored_bytes() const override { return static_cast<int64_t>(held_.size()); }

 private:
  Bytes held_;
};

// One zstd frame with its size and checksum in `inner`.
class ZstdTier : public Tier {
 public:
  // `most`: bytes that a state may have; a frame that claims or holds more is refused.
  ZstdTier(std::unique_ptr<Tier> inner, int level, size_t most);
  std::string name() const override { return "zstd"; }
  std::string what() const override;
  void store(std::span<const std::byte> bytes) override;
  Bytes load() const override;
  int64_t stored_bytes() const override { return inner_->stored_bytes(); }
  std::optional<double> cached_share() const override { return inner_->cached_share(); }
  bool cool() override { return inner_->cool(); }

 private:
  std::unique_ptr<Tier> inner_;
  int level_;
  size_t most_;
};

int zstd_most_level();
// A frame with content size and checksum. REQUIRES: 1 <= level <= zstd_most_level().
Bytes zstd_compressed(std::span<const std::byte> bytes, int level);
// The contents of exactly one such frame. Error(data) on damage, on what is no frame and on one that does not
// state its size; Error(limit) on one that states more than `most` bytes. `name` is for messages.
Bytes zstd_decompressed(std::span<const std::byte> frame, size_t most, std::string_view name);

}  // namespace lapidary::kvlab
