// What a conversion will write, decided before a byte is: each tensor's name, number format and place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/mix.h"

namespace lapidary {

enum class ModelFormat { gguf, hf };

struct ConvertOptions {
  ModelFormat format = ModelFormat::gguf;
  const Mix* mix = nullptr;       // null: every tensor keeps its number format as far as the target has it
  bool allow_requantize = false;  // blocks of one format may become blocks of another
};

struct PlannedTensor {
  Slot slot;
  std::string name;  // in the target
  Shape shape;
  DType from = DType::f32, to = DType::f32;
  int64_t paired_heads = 0;   // heads whose rows are written with rotary pairs side by side; 0: as they are
  bool subtract_one = false;  // a norm 1 + w is written as w
  std::string note;           // why `to` is not what was asked for; empty when it is
  int64_t bytes() const;      // of the target
  int64_t source_bytes() const;
  int64_t elements() const;
};

struct ConvertPlan {
  ModelFormat format = ModelFormat::gguf;
  std::vector<PlannedTensor> tensors;  // in execution order
  std::vector<std::string> notes;      // on the whole
  DType main_dtype = DType::f32;       // of most weights
  int64_t file_type = 0;               // general.file_type
  int64_t tensor_bytes = 0, elements = 0, largest_source_bytes = 0;
};

// Error(usage) when a folder is to hold blocks or blocks would be quantised again without leave;
// Error(unsupported) on a family that cannot be written.
ConvertPlan plan_conversion(const Checkpoint& source, const ConvertOptions& options);

}  // namespace lapidary
