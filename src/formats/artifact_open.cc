// From a packed model's sections to a checkpoint.
#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/quote.h"
#include "formats/artifact.h"
#include "formats/bound_tensors.h"
#include "formats/mapped_file.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

class ArtifactTensors : public TensorSource {
 public:
  explicit ArtifactTensors(std::shared_ptr<const Artifact> file)
      : file_(*file), keep_alive_(std::move(file)) {}

  void bind(const Slot& slot, const ArtifactSection& section) { sections_[slot] = &section; }

  TensorData read(const Slot& slot) const override {
    const ArtifactSection& section = at(slot);
    ensure(section.kind == SectionKind::plain, ErrorCode::unsupported,
           "{}: {}: its weights are packed; a plain tensor is not to be had", file_.name, section.name);
    return {{section.dtype, section.shape, file_.bytes_of(section)}, nullptr};
  }

  std::optional<PackedTensor> packed(const Slot& slot) const override {
    const ArtifactSection& section = at(slot);
    if (section.kind != SectionKind::packed) return {};
    return PackedTensor{section.dtype, section.shape, section.layout, file_.bytes_of(section)};
  }

  void release(const Slot& slot) const override { forget_pages(file_.bytes_of(at(slot))); }

 private:
  const ArtifactSection& at(const Slot& slot) const {
    const auto it = sections_.find(slot);
    ensure(it != sections_.end(), ErrorCode::data, "{}: {}: expected a tensor, got none", file_.name,
           slot_name(slot));
    return *it->second;
  }

  const Artifact& file_;
  std::shared_ptr<const Artifact> keep_alive_;
  std::map<Slot, const ArtifactSection*> sections_;
};

std::map<std::string_view, const ArtifactSection*> by_name(const Artifact& file) {
  std::map<std::string_view, const ArtifactSection*> out;
  for (const ArtifactSection& section : file.sections) {
    if (section.kind != SectionKind::text) out[section.name] = &section;
  }
  return out;
}

// A tensor's section, of the kind and form that its place asks for. Sizes of packed ones are the engine's
// business.
const ArtifactSection& tensor_section(const Artifact& file,
                                      std::map<std::string_view, const ArtifactSection*>& left,
                                      const TensorInfo& info, SectionKind kind) {
  const std::string name = slot_name(info.slot);
  const auto it = left.find(name);
  ensure(it != left.end(), ErrorCode::data, "{}: expected a section {}, got none", file.name, name);
  const ArtifactSection& section = *it->second;
  ensure(section.kind == kind, ErrorCode::data, "{}: section {}: kind: expected {}, got {}", file.name, name,
         section_kind_name(kind), section_kind_name(section.kind));
  const TensorView view{section.dtype, section.shape, file.bytes_of(section)};
  check_stored(file.name, name, info, view, info.shape);
  const size_t block = dtype_info(view.dtype).block_elements;
  const auto columns = static_cast<size_t>(view.columns());
  ensure(columns % block == 0, ErrorCode::data,
         "{}: section {}: row length: expected a multiple of {} for {}, got {}", file.name, name, block,
         dtype_name(view.dtype), columns);
  if (kind == SectionKind::plain) {
    const size_t expected = static_cast<size_t>(view.rows()) * row_bytes(view.dtype, columns);
    ensure(view.bytes.size() == expected, ErrorCode::data, "{}: section {}: length: expected {}, got {}",
           file.name, name, expected, view.bytes.size());
  }
  left.erase(it);
  return section;
}

// The file, mapped, and what was read of it.
struct Opened {
  MappedFile file;
  Artifact artifact;
  GgufFile vocabulary;
  explicit Opened(const fs::path& path) : file(path) {}
};

std::string text_of(const Artifact& file, std::string_view name) {
  const ArtifactSection* section = file.find(name);
  if (section == nullptr) return {};
  check_section(file, *section);
  const std::span<const std::byte> bytes = file.bytes_of(*section);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void check_texts(const Artifact& file) {
  constexpr std::array kKnown = {artifact_text::spec,       artifact_text::tokenizer,
                                 artifact_text::vocabulary, artifact_text::tokenizer_config,
                                 artifact_text::merges,     artifact_text::chat_template};
  for (const ArtifactSection& section : file.sections) {
    ensure(section.kind != SectionKind::text ||
               std::find(kKnown.begin(), kKnown.end(), section.name) != kKnown.end(),
           ErrorCode::data, "{}: section {}: no such text is known", file.name,
           lapidary::quoted(section.name));
  }
}

std::optional<int64_t> checked_id(const Artifact& file, std::string_view key, std::optional<int64_t> id,
                                  int64_t vocab_size) {
  ensure(!id || (*id >= 0 && *id < vocab_size), ErrorCode::data, "{}: {}: expected 0 to {}, got {}",
         file.name, key, vocab_size - 1, id.value_or(0));
  return id;
}

void take_texts(Opened& opened, int64_t vocab_size, TextAssets& out) {
  const Artifact& file = opened.artifact;
  out.tokenizer_json = text_of(file, artifact_text::tokenizer);
  out.tokenizer_config_json = text_of(file, artifact_text::tokenizer_config);
  if (const ArtifactSection* section = file.find(artifact_text::vocabulary)) {
    check_section(file, *section);
    opened.vocabulary = parse_gguf(file.bytes_of(*section), file.name + ": vocabulary");
    out.gguf = &opened.vocabulary;
  }
  if (const ArtifactSection* section = file.find(artifact_text::merges)) {
    constexpr int64_t kMergeBytes = 3 * sizeof(uint32_t);
    ensure(out.gguf != nullptr && section->length % kMergeBytes == 0, ErrorCode::data,
           "{}: section {}: expected a vocabulary and a multiple of {} bytes, got {} and {} bytes", file.name,
           section->name, kMergeBytes, out.gguf != nullptr ? "one" : "none", section->length);
    check_section(file, *section);
    out.merge_ids = file.bytes_of(*section);
  }
  out.chat_template_source = file.facts.chat_template_source;
  if (file.find(artifact_text::chat_template) != nullptr)
    out.chat_template = text_of(file, artifact_text::chat_template);
  out.bos_id = checked_id(file, "bos_id", file.facts.bos_id, vocab_size);
  out.eos_id = checked_id(file, "eos_id", file.facts.eos_id, vocab_size);
  out.pad_id = checked_id(file, "pad_id", file.facts.pad_id, vocab_size);
  for (const int64_t id : file.facts.stop_ids)
    out.stop_ids.push_back(*checked_id(file, "stop_ids", id, vocab_size));
}

}  // namespace

void check_section(const Artifact& artifact, const ArtifactSection& section) {
  const Hash128 hash = hash128(artifact.bytes_of(section));
  ensure(hash == section.hash, ErrorCode::data,
         "{}: section {}: checksum: expected {}, got {}: the file is damaged", artifact.name,
         lapidary::quoted(section.name), hash_text(section.hash), hash_text(hash));
}

ModelSpec artifact_spec(const Artifact& artifact) {
  check_texts(artifact);
  const std::string json = text_of(artifact, artifact_text::spec);
  ensure(!json.empty(), ErrorCode::data, "{}: expected a section {}, got none", artifact.name,
         artifact_text::spec);
  ModelSpec spec = spec_from_json(json);
  spec.validate();
  return spec;
}

std::shared_ptr<const TensorSource> artifact_tensors(std::shared_ptr<const Artifact> file,
                                                     const ModelSpec& spec) {
  auto tensors = std::make_shared<ArtifactTensors>(file);
  const Artifact& artifact = *file;
  auto left = by_name(artifact);
  for_each_tensor(spec, [&](const TensorInfo& info) {
    if (info.is_matrix()) return;
    const ArtifactSection& section = tensor_section(artifact, left, info, SectionKind::plain);
    if (!info.gathered) check_section(artifact, section);
    tensors->bind(info.slot, section);
  });
  for_each_matrix(spec, [&](const TensorInfo& info) {
    tensors->bind(info.slot, tensor_section(artifact, left, info, SectionKind::packed));
  });
  ensure(left.empty(), ErrorCode::data, "{}: section {}: the model has no such tensor", artifact.name,
         left.empty() ? std::string() : lapidary::quoted(left.begin()->first));
  return tensors;
}

Checkpoint open_artifact(const fs::path& path) {
  auto opened = std::make_shared<Opened>(path);
  opened->artifact = parse_artifact(opened->file.bytes(), opened->file.name());
  const Artifact& file = opened->artifact;
  Checkpoint out;
  out.artifact = std::shared_ptr<const Artifact>(opened, &file);
  out.path = path;
  out.format = fmt::format("packed v{}", file.version);
  out.family = file.facts.family;
  out.spec = artifact_spec(file);
  out.tensors = artifact_tensors(out.artifact, out.spec);
  for (const ArtifactSection& section : file.sections) {
    if (section.kind != SectionKind::text)
      out.dtype_bytes[std::string(dtype_name(section.dtype))] += section.length;
  }
  out.file_bytes = static_cast<int64_t>(file.bytes.size());
  take_texts(*opened, out.spec.vocab_size, out.text);
  out.keep_alive = opened;
  return out;
}

}  // namespace lapidary
