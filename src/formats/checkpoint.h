// A model on disk, opened: its spec, its tensors by slot, and the raw material for its tokenizer. Nothing is
// executed or copied here.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/bound_tensors.h"
#include "formats/gguf.h"
#include "spec/model_spec.h"
#include "spec/tensor_io.h"

namespace lapidary {

// What a tokenizer can be made of; cli/ hands it to text/. Views live as long as the checkpoint.
struct TextAssets {
  std::string tokenizer_json;         // HF: contents of tokenizer.json; empty when the folder has none
  std::string tokenizer_config_json;  // HF: contents; empty when absent
  const GgufFile* gguf = nullptr;     // GGUF: metadata with tokenizer.ggml.*; null for an HF folder
  // Packed model of a GGUF file: the vocabulary's merges, three ids each, little-endian u32; else empty.
  std::span<const std::byte> merge_ids;
  std::optional<std::string>
      chat_template;                 // chat_template.jinja, else tokenizer_config.json, else GGUF metadata
  std::string chat_template_source;  // where it was found
  std::optional<int64_t> bos_id, eos_id, pad_id;  // from config / generation_config / GGUF
  std::vector<int64_t> stop_ids;  // generation_config's eos list; GGUF: eos only (text/ adds turn markers)
};

struct Artifact;  // formats/artifact.h

struct Checkpoint {
  std::filesystem::path path;
  std::string format;  // "safetensors", "gguf v3", "packed v1", "config.json only"
  std::string family;  // "gemma4", "gemma3", "llama": for reports only
  ModelSpec spec;
  std::shared_ptr<const TensorSource> tensors;  // null when only a config.json was given
  std::vector<SkippedTensor> skipped;
  std::map<std::string, int64_t> dtype_bytes;  // dtype name → bytes of consumed tensors
  int64_t file_bytes = 0;                      // of all weight files
  TextAssets text;
  std::shared_ptr<const Artifact> artifact;  // of a packed model; null else
  std::shared_ptr<const void> keep_alive;    // mapped files and parsed headers
};

// Opens an HF folder, a GGUF file (the first of a split set too), a packed model or a lone config.json. The
// checkpoint is consumed exactly: a missing, unexpected, misshaped tensor or a wrong dtype is an Error(data)
// with tensor name, expected and got.
Checkpoint open_checkpoint(const std::filesystem::path& path);

// An HF folder whose config has another file name.
Checkpoint open_hf_folder(const std::filesystem::path& folder,
                          const std::string& config_name = "config.json");

}  // namespace lapidary
