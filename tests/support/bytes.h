// Makers of files for tests, well-formed or not: nothing here checks what it is told to write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/tensor.h"
#include "formats/gguf_types.h"

namespace lapidary::test {

class ByteWriter {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  ByteWriter& number(T value) {
    return raw({reinterpret_cast<const std::byte*>(&value), sizeof value});
  }
  ByteWriter& raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  ByteWriter& text(std::string_view text) { return raw(std::as_bytes(std::span(text))); }
  ByteWriter& gguf_string(std::string_view s) { return number<uint64_t>(s.size()).text(s); }
  ByteWriter& zeros(size_t count) {
    bytes_.resize(bytes_.size() + count);
    return *this;
  }
  ByteWriter& align(size_t alignment) { return zeros((alignment - bytes_.size() % alignment) % alignment); }
  size_t size() const { return bytes_.size(); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Header length, header, then `data_bytes` zeros.
std::vector<std::byte> safetensors_bytes(std::string_view header, size_t data_bytes);

// A GGUF file piece by piece. finish() counts and aligns truthfully unless a count or an offset was forced.
class GgufBuilder {
 public:
  GgufBuilder& version(uint32_t version);
  GgufBuilder& force_tensor_count(uint64_t count);
  GgufBuilder& force_metadata_count(uint64_t count);
  GgufBuilder& alignment(uint32_t alignment);  // writes general.alignment and uses it

  GgufBuilder& set(std::string_view key, std::string_view value);
  GgufBuilder& set(std::string_view key, const char* value) { return set(key, std::string_view(value)); }
  GgufBuilder& set(std::string_view key, bool value);
  GgufBuilder& set(std::string_view key, uint32_t value);
  GgufBuilder& set(std::string_view key, int32_t value);
  GgufBuilder& set(std::string_view key, uint64_t value);
  GgufBuilder& set(std::string_view key, float value);
  GgufBuilder& set(std::string_view key, const std::vector<std::string>& values);
  GgufBuilder& set(std::string_view key, const std::vector<int32_t>& values);
  GgufBuilder& set(std::string_view key, const std::vector<float>& values);
  GgufBuilder& set(std::string_view key, const std::vector<bool>& values);
  // A value of any type, its bytes given.
  GgufBuilder& set_raw(std::string_view key, uint32_t type, std::span<const std::byte> value);

  // Sizes as the file lists them: the row length first.
  GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& sizes, uint32_t ggml_type,
                      std::span<const std::byte> data);
  GgufBuilder& tensor_at(std::string_view name, const std::vector<uint64_t>& sizes, uint32_t ggml_type,
                         uint64_t offset);
  // Shape outermost first, as everywhere in the project.
  GgufBuilder& tensor(std::string_view name, const TensorView& view);
  GgufBuilder& data_bytes(size_t count);  // zeros appended to the data section

  std::vector<std::byte> finish() const;

 private:
  ByteWriter& key(std::string_view key, GgufType type);

  uint32_t version_ = 3;
  uint32_t alignment_ = kGgufDefaultAlignment;
  uint64_t tensor_count_ = 0, metadata_count_ = 0;
  std::vector<uint64_t> forced_tensor_count_, forced_metadata_count_;  // empty or one
  ByteWriter metadata_, infos_, data_;
};

// The type number of a number format in GGUF.
uint32_t ggml_type_of(DType dtype);

}  // namespace lapidary::test
