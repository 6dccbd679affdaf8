#include "formats/artifact_writer.h"

#include <map>
#include <vector>

#include "base/error.h"
#include "formats/artifact_frame.h"
#include "formats/gguf_keys.h"
#include "formats/gguf_writer.h"

namespace lapidary {
namespace {

ArtifactStart start_of_file() {
  return {kArtifactMagic, kArtifactVersion, kArtifactByteOrder, {}};
}

std::span<const std::byte> text_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// The metadata that a tokenizer is made of, as a GGUF file without tensors.
std::vector<std::byte> vocabulary_bytes(const GgufFile& file, bool with_merges) {
  std::map<std::string, GgufValue, std::less<>> kept;
  for (const auto& [key, value] : file.metadata) {
    const bool elsewhere = key == gguf_key::chat_template || (key == gguf_key::merges && !with_merges);
    if (key.starts_with(gguf_key::tokenizer_prefix) && !elsewhere) kept[key] = value;
  }
  return gguf_layout(kept, {}).header;
}

ArtifactFacts facts_of(const Checkpoint& source, const Hash128& model_hash) {
  const TextAssets& text = source.text;
  return {source.family,
          source.path.filename().string(),
          source.format,
          model_hash,
          text.bos_id,
          text.eos_id,
          text.pad_id,
          text.stop_ids,
          text.chat_template_source};
}

}  // namespace

ArtifactWriter::ArtifactWriter(const std::filesystem::path& path, const Checkpoint& source,
                               const Hash128& model_hash, std::span<const std::byte> merge_ids)
    : file_(path) {
  artifact_.name = path.string();
  artifact_.version = kArtifactVersion;
  artifact_.facts = facts_of(source, model_hash);
  const ArtifactStart start = start_of_file();
  file_.write(std::as_bytes(std::span(&start, 1)));
  write_texts(source, merge_ids);
}

void ArtifactWriter::write_texts(const Checkpoint& source, std::span<const std::byte> merge_ids) {
  const TextAssets& text = source.text;
  write_text(artifact_text::spec, text_bytes(spec_to_json(source.spec)));
  write_text(artifact_text::tokenizer, text_bytes(text.tokenizer_json));
  write_text(artifact_text::tokenizer_config, text_bytes(text.tokenizer_config_json));
  if (text.gguf != nullptr) {
    write_text(artifact_text::vocabulary, vocabulary_bytes(*text.gguf, merge_ids.empty()));
    write_text(artifact_text::merges, merge_ids);
  }
  if (text.chat_template) write_text(artifact_text::chat_template, text_bytes(*text.chat_template));
}

void ArtifactWriter::write(const Slot& slot, const TensorView& tensor) {
  ArtifactSection section;
  section.name = slot_name(slot);
  section.kind = SectionKind::plain;
  section.dtype = tensor.dtype;
  section.shape = tensor.shape;
  write_section(std::move(section), tensor.bytes);
}

void ArtifactWriter::write_packed(const Slot& slot, const PackedTensor& tensor) {
  ArtifactSection section;
  section.name = slot_name(slot);
  section.kind = SectionKind::packed;
  section.dtype = tensor.dtype;
  section.shape = tensor.shape;
  section.layout = tensor.layout;
  write_section(std::move(section), tensor.bytes);
}

void ArtifactWriter::write_text(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  ArtifactSection section;
  section.name = name;
  write_section(std::move(section), bytes);
}

void ArtifactWriter::write_section(ArtifactSection section, std::span<const std::byte> bytes) {
  static constexpr std::byte kZeros[kPageAlignment] = {};
  section.length = static_cast<int64_t>(bytes.size());
  const int64_t alignment = section_alignment(section.length);
  section.offset = (file_.position() + alignment - 1) / alignment * alignment;
  section.hash = hash128(bytes);
  file_.write({kZeros, static_cast<size_t>(section.offset - file_.position())});
  file_.write(bytes);
  artifact_.sections.push_back(std::move(section));
}

int64_t ArtifactWriter::commit() {
  const std::string index = artifact_index_to_json(artifact_);
  ensure(static_cast<int64_t>(index.size()) <= kMaxIndexBytes, ErrorCode::limit,
         "{}: the index would be {} bytes, the limit is {}", artifact_.name, index.size(), kMaxIndexBytes);
  ArtifactEnd end;
  end.index_offset = file_.position();
  end.index_length = static_cast<int64_t>(index.size());
  end.file_bytes = end.index_offset + end.index_length + static_cast<int64_t>(sizeof end);
  end.magic = kArtifactEndMagic;
  end.hash = artifact_frame_hash(start_of_file(), index, end);
  file_.write(text_bytes(index));
  file_.write(std::as_bytes(std::span(&end, 1)));
  file_.commit();
  return end.file_bytes;
}

}  // namespace lapidary
