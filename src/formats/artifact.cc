#include "formats/artifact.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/quote.h"
#include "formats/artifact_frame.h"
#include "formats/mapped_file.h"

namespace lapidary {
namespace {

template <typename T>
T read_struct(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

ArtifactStart read_start(const Artifact& file) {
  ensure(starts_with_artifact_magic(file.bytes) && file.bytes.size() >= sizeof(ArtifactStart),
         ErrorCode::data, "{}: expected the start of a packed model, got something else", file.name);
  const auto start = read_struct<ArtifactStart>(file.bytes);
  ensure(start.version == kArtifactVersion, ErrorCode::unsupported,
         "{}: version: expected {}, got {}; pack the model again with this program", file.name,
         kArtifactVersion, start.version);
  ensure(start.byte_order == kArtifactByteOrder, ErrorCode::unsupported,
         "{}: byte order: expected {:#010x}, got {:#010x}", file.name, kArtifactByteOrder, start.byte_order);
  return start;
}

ArtifactEnd read_end(const Artifact& file) {
  const auto size = static_cast<int64_t>(file.bytes.size());
  constexpr auto kFrame = static_cast<int64_t>(sizeof(ArtifactStart) + sizeof(ArtifactEnd));
  ensure(size >= kFrame, ErrorCode::data, "{}: expected {} bytes or more, got {}", file.name, kFrame, size);
  const auto end = read_struct<ArtifactEnd>(file.bytes.last(sizeof(ArtifactEnd)));
  ensure(end.magic == kArtifactEndMagic, ErrorCode::data,
         "{}: expected the end of a packed model in the last 64 bytes, got something else: cut off?",
         file.name);
  ensure(end.zeros == decltype(end.zeros){}, ErrorCode::data,
         "{}: expected zeros before the magic of the end, got something else", file.name);
  ensure(end.file_bytes == size, ErrorCode::data, "{}: file size: expected {}, got {}", file.name,
         end.file_bytes, size);
  const int64_t room = size - kFrame;
  ensure(end.index_length >= 0 && end.index_length <= std::min(room, kMaxIndexBytes), ErrorCode::data,
         "{}: index length: expected 0 to {}, got {}", file.name, std::min(room, kMaxIndexBytes),
         end.index_length);
  const int64_t offset = size - static_cast<int64_t>(sizeof(ArtifactEnd)) - end.index_length;
  ensure(end.index_offset == offset, ErrorCode::data, "{}: index offset: expected {}, got {}", file.name,
         offset, end.index_offset);
  return end;
}

// Sections follow one another, each where the alignment allows it first: no byte is in two, none is hidden.
void check_places(const Artifact& file, int64_t index_offset) {
  int64_t free = sizeof(ArtifactStart);
  std::set<std::string_view> names;
  for (const ArtifactSection& section : file.sections) {
    const std::string name = lapidary::quoted(section.name);
    ensure(names.insert(section.name).second, ErrorCode::data, "{}: section {}: expected one, got a second",
           file.name, name);
    ensure(section.length > 0, ErrorCode::data, "{}: section {}: length: expected 1 or more, got {}",
           file.name, name, section.length);
    const int64_t alignment = section_alignment(section.length);
    const int64_t offset = (free + alignment - 1) / alignment * alignment;
    ensure(section.offset == offset, ErrorCode::data, "{}: section {}: offset: expected {}, got {}",
           file.name, name, offset, section.offset);
    ensure(section.length <= index_offset - offset, ErrorCode::data,
           "{}: section {}: length: expected at most {} (up to the index), got {}", file.name, name,
           index_offset - offset, section.length);
    free = offset + section.length;
  }
  ensure(free == index_offset, ErrorCode::data,
         "{}: index offset: expected {} (the end of the last section), got {}", file.name, free,
         index_offset);
}

// Error(data) at the first byte of [from, to) that is not zero.
void check_gap(const Artifact& file, int64_t from, int64_t to) {
  for (int64_t at = from; at < to; ++at) {
    ensure(file.bytes[static_cast<size_t>(at)] == std::byte{0}, ErrorCode::data,
           "{}: byte {}: expected 0 between sections, got {}", file.name, at,
           static_cast<int>(file.bytes[static_cast<size_t>(at)]));
  }
}

}  // namespace

Hash128 artifact_frame_hash(const ArtifactStart& start, std::string_view index, const ArtifactEnd& end) {
  Hasher hasher;
  hasher.add(std::as_bytes(std::span(&start, 1))).add(index);
  for (const int64_t number : {end.index_offset, end.index_length, end.file_bytes})
    hasher.add(static_cast<uint64_t>(number));
  return hasher.digest();
}

const ArtifactSection* Artifact::find(std::string_view wanted) const {
  const auto it =
      std::find_if(sections.begin(), sections.end(), [&](const auto& s) { return s.name == wanted; });
  return it == sections.end() ? nullptr : &*it;
}

std::span<const std::byte> Artifact::bytes_of(const ArtifactSection& section) const {
  return bytes.subspan(static_cast<size_t>(section.offset), static_cast<size_t>(section.length));
}

bool starts_with_artifact_magic(std::span<const std::byte> bytes) {
  return bytes.size() >= kArtifactMagic.size() &&
         std::memcmp(bytes.data(), kArtifactMagic.data(), kArtifactMagic.size()) == 0;
}

Artifact parse_artifact(std::span<const std::byte> bytes, const std::string& name) {
  Artifact file;
  file.name = name;
  file.bytes = bytes;
  const ArtifactStart start = read_start(file);
  const ArtifactEnd end = read_end(file);
  const auto index =
      bytes.subspan(static_cast<size_t>(end.index_offset), static_cast<size_t>(end.index_length));
  const std::string_view json(reinterpret_cast<const char*>(index.data()), index.size());
  ensure(artifact_frame_hash(start, json, end) == end.hash, ErrorCode::data,
         "{}: the checksum of the index: expected {}, got {}: the file is damaged", name, hash_text(end.hash),
         hash_text(artifact_frame_hash(start, json, end)));
  file.version = start.version;
  artifact_index_from_json(json, file);
  check_places(file, end.index_offset);
  return file;
}

void verify_artifact(const Artifact& artifact, FunctionRef<void(int64_t, int64_t)> progress) {
  int64_t free = sizeof(ArtifactStart);
  for (const ArtifactSection& section : artifact.sections) {
    progress(section.offset, static_cast<int64_t>(artifact.bytes.size()));
    check_gap(artifact, free, section.offset);
    check_section(artifact, section);
    forget_pages(artifact.bytes_of(section));
    free = section.offset + section.length;
  }
}

}  // namespace lapidary
