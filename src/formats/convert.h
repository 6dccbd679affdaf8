// A checkpoint written anew, in either format: streamed tensor by tensor, seen whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/team.h"
#include "formats/convert_plan.h"
#include "formats/export_hf.h"
#include "formats/gguf_writer.h"

namespace lapidary {

// The part that is not weights, already in the words of the target.
struct ConvertedText {
  GgufMetadata metadata;                                   // GGUF: tokenizer.* and general.* to carry over
  std::vector<std::pair<std::string, std::string>> files;  // HF: name → contents
  HfTokenIds ids;                                          // HF
};

struct ConvertTarget {
  std::filesystem::path path;
  bool replace = false;     // what is there
  int64_t shard_bytes = 0;  // HF: largest size of one weight file; 0: one file
  int threads = 1;
  FunctionRef<void(int64_t done, int64_t total)> progress;  // in bytes; may throw to stop
};

// The name to write, a slash at its end dropped. A file replaces a file, a folder one that holds nothing but
// files that a conversion writes, and both only with `replace`; Error(usage / not_found / io) says what is
// there instead.
std::filesystem::path checked_target(const std::filesystem::path& path, ModelFormat format, bool replace);

struct ConvertOutcome {
  int64_t bytes = 0;               // of all files written
  std::vector<std::string> files;  // names
};

// Makes what describes the model and reads it back, without writing: Error(unsupported) when the target's
// format cannot say what the model is. Returns what other readers may take differently.
std::vector<std::string> target_notes(const Checkpoint& source, const ConvertPlan& plan);

// Error(limit) before anything is written when the disk lacks the room; Error(io) naming the path when it
// fills up anyway; Error(unsupported) when the target's format cannot say what the model is.
ConvertOutcome write_gguf_model(const Checkpoint& source, const ConvertPlan& plan, ConvertedText text,
                                const ConvertTarget& target);
ConvertOutcome write_hf_model(const Checkpoint& source, const ConvertPlan& plan, const ConvertedText& text,
                              const ConvertTarget& target);

}  // namespace lapidary
