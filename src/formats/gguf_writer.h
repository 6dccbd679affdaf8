// What stands before the tensor data of a GGUF v3 file.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf.h"

namespace lapidary {

// Metadata being gathered. Values are those of the parser, so what was read can be put as it is and what was
// gathered can be read back before a byte is written.
class GgufMetadata {
 public:
  GgufMetadata() = default;
  GgufMetadata(GgufMetadata&&) = default;
  GgufMetadata& operator=(GgufMetadata&&) = default;

  // Text is borrowed: it must outlive this, or be kept by keep().
  void put(std::string_view key, GgufValue value) {
    values_.insert_or_assign(std::string(key), std::move(value));
  }
  std::string_view keep(std::string text) { return texts_.emplace_back(std::move(text)); }
  void put_text(std::string_view key, std::string text) { put(key, {keep(std::move(text))}); }

  // Keeps texts that values point into.
  void adopt(std::deque<std::string> texts) { adopted_.push_back(std::move(texts)); }

  const std::map<std::string, GgufValue, std::less<>>& values() const { return values_; }
  bool has(std::string_view key) const { return values_.find(key) != values_.end(); }

 private:
  std::map<std::string, GgufValue, std::less<>> values_;
  std::deque<std::string> texts_;
  std::deque<std::deque<std::string>> adopted_;
};

struct GgufEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;  // outermost first
};

struct GgufLayout {
  std::vector<std::byte> header;  // up to the first tensor, padding included
  std::vector<int64_t> offsets;   // of each tensor, from the start of the file; gaps hold zeros
  int64_t file_bytes = 0;
};

// Integers are written as u32 where they fit, else i32, else 64 bits wide; in arrays as i32. Fractions are
// written as f32. general.architecture comes first. Error(unsupported) on a number format that GGUF lacks.
GgufLayout gguf_layout(const std::map<std::string, GgufValue, std::less<>>& metadata,
                       std::span<const GgufEntry> tensors);

// Reads the header back as a reader of the finished file would, tensors' places included, before a weight is
// written. Error(internal) naming the file and what comes out otherwise.
void check_gguf_layout(const GgufLayout& layout, std::span<const GgufEntry> tensors, const std::string& name);

}  // namespace lapidary
