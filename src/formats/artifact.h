// A packed model: one file with all that a run needs, its weights as the engine multiplies by them. Opening
// it maps it; nothing is decoded, packed or copied. docs/formats.md has the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/function_ref.h"
#include "base/hash.h"
#include "base/tensor.h"
#include "formats/checkpoint.h"

namespace lapidary {

inline constexpr std::string_view kArtifactExtension = ".lapidary";

enum class SectionKind { text, plain, packed };
std::string_view section_kind_name(SectionKind kind);

struct ArtifactSection {
  std::string name;  // "text.spec", or the name of a tensor's slot
  SectionKind kind = SectionKind::text;
  DType dtype = DType::u8;  // of the weight; text has none
  Shape shape;
  std::string layout;  // of packed weights: the engine's name for it
  int64_t offset = 0, length = 0;
  Hash128 hash;
};

// What the file says beside its sections.
struct ArtifactFacts {
  std::string family, source, source_format;  // of the model that was packed; `source` is its file's name
  Hash128 model_hash;                         // model_hash() of it
  std::optional<int64_t> bos_id, eos_id, pad_id;
  std::vector<int64_t> stop_ids;
  std::string chat_template_source;
};

struct Artifact {
  std::string name;  // for messages
  uint32_t version = 0;
  ArtifactFacts facts;
  std::vector<ArtifactSection> sections;  // in the order of the file
  std::span<const std::byte> bytes;       // of the whole file

  const ArtifactSection* find(std::string_view name) const;  // null when there is none
  std::span<const std::byte> bytes_of(const ArtifactSection& section) const;
};

// The text sections.
namespace artifact_text {
inline constexpr std::string_view spec = "text.spec";
inline constexpr std::string_view tokenizer = "text.tokenizer_json";
inline constexpr std::string_view tokenizer_config = "text.tokenizer_config_json";
inline constexpr std::string_view vocabulary = "text.vocabulary";  // GGUF metadata, no tensors
inline constexpr std::string_view merges = "text.merges";          // of that vocabulary, [n, 3] ids as u32
inline constexpr std::string_view chat_template = "text.chat_template";
}  // namespace artifact_text

bool starts_with_artifact_magic(std::span<const std::byte> bytes);

// Parses untrusted bytes; the result's views point into `bytes`. Every offset, length, name and the index's
// own checksum are checked, the checksums of sections are not. Error(data / unsupported) naming what is
// wrong.
Artifact parse_artifact(std::span<const std::byte> bytes, const std::string& name);

// The index as JSON, both ways. Error(data) naming the field.
std::string artifact_index_to_json(const Artifact& artifact);
void artifact_index_from_json(std::string_view json, Artifact& artifact);

// Error(data) naming the section unless its bytes are those that were written.
void check_section(const Artifact& artifact, const ArtifactSection& section);

// What the file says that the model is, checked.
ModelSpec artifact_spec(const Artifact& artifact);
// The tensors of a parsed file by slot, held to the spec: each in its place, none left over.
std::shared_ptr<const TensorSource> artifact_tensors(std::shared_ptr<const Artifact> artifact,
                                                     const ModelSpec& spec);

// Texts and vectors, which are small, are held to their checksums at once; the rest is when verify_artifact()
// is asked to.
Checkpoint open_artifact(const std::filesystem::path& path);

// Error(data) naming the section whose checksum is wrong; Error(data) with the byte where something stands
// between sections. progress(done, total) counts bytes and may throw to stop.
void verify_artifact(const Artifact& artifact, FunctionRef<void(int64_t done, int64_t total)> progress);

}  // namespace lapidary
