#include "base/hash.h"

#include <xxhash.h>

#include <cstring>
#include <new>

namespace lapidary {
namespace {

Hash128 canonical(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  Hash128 result;
  static_assert(sizeof bytes.digest == sizeof result.bytes);
  std::memcpy(result.bytes.data(), bytes.digest, sizeof bytes.digest);
  return result;
}

}  // namespace

struct Hasher::State {
  XXH3_state_t* state = XXH3_createState();
  State() {
    if (!state) throw std::bad_alloc();
    XXH3_128bits_reset(state);
  }
  ~State() { XXH3_freeState(state); }
  State(const State&) = delete;
};

std::string hash_text(const Hash128& hash) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : hash.bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<Hash128> hash_from_text(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  Hash128 hash;
  if (text.size() != 2 * hash.bytes.size()) return {};
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) return {};
    hash.bytes[i / 2] = static_cast<uint8_t>(hash.bytes[i / 2] << 4 | digit);
  }
  return hash;
}

Hash128 hash128(std::span<const std::byte> bytes) {
  return canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

Hasher::Hasher() : state_(std::make_unique<State>()) {}
Hasher::~Hasher() = default;

Hasher& Hasher::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_->state, bytes.data(), bytes.size());
  return *this;
}

Hasher& Hasher::add(uint64_t number) {
  std::array<std::byte, 8> bytes;
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(number & 0xff);
    number >>= 8;
  }
  return add(bytes);
}

Hash128 Hasher::digest() const {
  return canonical(XXH3_128bits_digest(state_->state));
}

void Hasher::reset() {
  XXH3_128bits_reset(state_->state);
}

}  // namespace lapidary
