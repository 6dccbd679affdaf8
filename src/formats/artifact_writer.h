// Writes a packed model: streamed section by section, seen whole or not at all.
#pragma once

#include <filesystem>

#include "formats/artifact.h"
#include "formats/atomic_file.h"
#include "spec/tensor_io.h"

namespace lapidary {

class ArtifactWriter : public PackedSink {
 public:
  // Writes what is no tensor. `model_hash`: of the source. `merge_ids`: of its GGUF vocabulary, as TextAssets
  // has them, in place of the written merges; may be empty. Errors as AtomicFile has them.
  ArtifactWriter(const std::filesystem::path& path, const Checkpoint& source, const Hash128& model_hash,
                 std::span<const std::byte> merge_ids);

  void write(const Slot& slot, const TensorView& tensor) override;
  void write_packed(const Slot& slot, const PackedTensor& tensor) override;

  // Writes the index and gives the file its name. Returns its bytes. Nothing may follow.
  int64_t commit();
  const Artifact& written() const { return artifact_; }

 private:
  void write_texts(const Checkpoint& source, std::span<const std::byte> merge_ids);
  void write_text(std::string_view name, std::span<const std::byte> bytes);
  void write_section(ArtifactSection section, std::span<const std::byte> bytes);

  AtomicFile file_;
  Artifact artifact_;
};

}  // namespace lapidary
