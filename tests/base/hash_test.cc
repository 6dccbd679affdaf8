#include "base/hash.h"

#include <gtest/gtest.h>

#include <string>

namespace lapidary {
namespace {

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Files hold these: another value would make them unreadable.
TEST(Hash, IsTheXxh3OfTheSpecification) {
  EXPECT_EQ(hash_text(hash128({})), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_text(hash128(bytes("a"))), "a96faf705af16834e6c632b61e964e1f");
}

TEST(Hash, InPiecesIsTheSame) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>(i * 7);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{255}, size_t{2999}}) {
    Hasher hasher;
    hasher.add(std::string_view(text).substr(0, cut)).add(std::string_view(text).substr(cut));
    EXPECT_EQ(hasher.digest(), hash128(bytes(text)));
    hasher.reset();
    EXPECT_EQ(hasher.digest(), hash128({}));
  }
}

TEST(Hash, NumbersAreEightBytesTheLowOneFirst) {
  EXPECT_EQ(Hasher().add(uint64_t{0x0807060504030201}).digest(),
            hash128(bytes("\x01\x02\x03\x04\x05\x06\x07\x08")));
  const Hash128 inner = hash128({});
  EXPECT_EQ(Hasher().add(inner).digest(), hash128(std::as_bytes(std::span(inner.bytes))));
}

TEST(Hash, EveryBitCounts) {
  std::string text(64, 'x');
  const Hash128 before = hash128(bytes(text));
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string other = text;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(hash128(bytes(other)), before);
  }
}

}  // namespace
}  // namespace lapidary
