// safetensors: an 8-byte little-endian header length, a JSON header, then data. docs/formats.md has the page
// of prose.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"

namespace lapidary {

struct SafetensorsFile {
  std::map<std::string, TensorView> tensors;    // views into the parsed bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Parses untrusted bytes; `name` is used in messages. Throws Error(data / unsupported) naming the tensor:
// truncated or oversized header, unknown dtype, offsets out of range, overlapping or leaving holes, shape ×
// dtype overflow or mismatch, duplicate names.
SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name);

// "model.safetensors.index.json": tensor name → file name. File names with a directory part are refused.
std::map<std::string, std::string> parse_safetensors_index(std::string_view json, const std::string& name);

// What the header says of one tensor; data follow each other in the order of the list.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};
// All that stands before the data (header padded to 8 bytes with blanks).
std::vector<std::byte> safetensors_header(std::span<const SafetensorsEntry> tensors,
                                          const std::map<std::string, std::string>& metadata);

// Serialises to one buffer (header padded to 8 bytes with blanks).
std::vector<std::byte> write_safetensors(const std::map<std::string, TensorView>& tensors,
                                         const std::map<std::string, std::string>& metadata = {});

}  // namespace lapidary
