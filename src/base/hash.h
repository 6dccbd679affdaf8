// Checksums of 128 bits (XXH3), the same on every machine. They find damage and tell models apart; they are
// no defence against a forger.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lapidary {

struct Hash128 {
  std::array<uint8_t, 16> bytes{};  // in the library's canonical order
  bool operator==(const Hash128&) const = default;
};

std::string hash_text(const Hash128& hash);                    // 32 hexadecimal digits
std::optional<Hash128> hash_from_text(std::string_view text);  // nothing when it is no such text
Hash128 hash128(std::span<const std::byte> bytes);

// The same in pieces.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& add(std::span<const std::byte> bytes);
  Hasher& add(std::string_view text) { return add(std::as_bytes(std::span(text))); }
  Hasher& add(const Hash128& hash) { return add(std::as_bytes(std::span(hash.bytes))); }
  Hasher& add(uint64_t number);  // as eight bytes, the low one first
  Hash128 digest() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lapidary
