// What stands at both ends of a packed model.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/hash.h"

namespace lapidary {

inline constexpr uint32_t kArtifactVersion = 1;
inline constexpr uint32_t kArtifactByteOrder = 0x01020304;
inline constexpr int64_t kSectionAlignment = 64;  // of every section
inline constexpr int64_t kPageAlignment =
    4096;  // of sections of that many bytes, so that their pages are theirs
inline constexpr int64_t kMaxIndexBytes = int64_t{64} << 20;

struct ArtifactStart {
  std::array<char, 8> magic{};
  uint32_t version = 0, byte_order = 0;
  std::array<uint8_t, 48> zeros{};
};
static_assert(sizeof(ArtifactStart) == 64);
inline constexpr std::array<char, 8> kArtifactMagic = {'L', 'A', 'P', 'I', 'P', 'A', 'C', 'K'};

struct ArtifactEnd {
  int64_t index_offset = 0, index_length = 0, file_bytes = 0;
  Hash128 hash;  // of the start, the index, and the three numbers above
  std::array<uint8_t, 16> zeros{};
  std::array<char, 8> magic{};
};
static_assert(sizeof(ArtifactEnd) == 64);
inline constexpr std::array<char, 8> kArtifactEndMagic = {'L', 'A', 'P', 'I', 'E', 'N', 'D', '\0'};

Hash128 artifact_frame_hash(const ArtifactStart& start, std::string_view index, const ArtifactEnd& end);

inline constexpr int64_t section_alignment(int64_t length) {
  return length >= kPageAlignment ? kPageAlignment : kSectionAlignment;
}

}  // namespace lapidary
