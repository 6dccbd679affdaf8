#include "support/bytes.h"

#include "base/error.h"

namespace lapidary::test {

std::vector<std::byte> safetensors_bytes(std::string_view header, size_t data_bytes) {
  return ByteWriter().number<uint64_t>(header.size()).text(header).zeros(data_bytes).take();
}

uint32_t ggml_type_of(DType dtype) {
  for (uint32_t type = 0; type < 64; ++type) {
    if (dtype_of_ggml(type) == dtype) return type;
  }
  fail(ErrorCode::internal, "GGUF has no tensor type for {}", dtype_name(dtype));
}

GgufBuilder& GgufBuilder::version(uint32_t version) {
  version_ = version;
  return *this;
}

GgufBuilder& GgufBuilder::force_tensor_count(uint64_t count) {
  forced_tensor_count_ = {count};
  return *this;
}

GgufBuilder& GgufBuilder::force_metadata_count(uint64_t count) {
  forced_metadata_count_ = {count};
  return *this;
}

GgufBuilder& GgufBuilder::alignment(uint32_t alignment) {
  alignment_ = alignment;
  return set("general.alignment", alignment);
}

ByteWriter& GgufBuilder::key(std::string_view key, GgufType type) {
  ++metadata_count_;
  return metadata_.gguf_string(key).number(static_cast<uint32_t>(type));
}

GgufBuilder& GgufBuilder::set(std::string_view k, std::string_view value) {
  key(k, GgufType::string).gguf_string(value);
  return *this;
}

GgufBuilder& GgufBuilder::set(std::string_view k, bool value) {
  key(k, GgufType::boolean).number<uint8_t>(value ? 1 : 0);
  return *this;
}

GgufBuilder& GgufBuilder::set(std::string_view k, uint32_t value) {
  key(k, GgufType::u32).number(value);
  return *this;
}

GgufBuilder& GgufBuilder::set(std::string_view k, int32_t value) {
  key(k, GgufType::i32).number(value);
  return *this;
}

GgufBuilder& GgufBuilder::set(std::string_view k, uint64_t value) {
  key(k, GgufType::u64).number(value);
  return *this;
}

GgufBuilder& GgufBuilder::set(std::string_view k, float value) {
  key(k, GgufType::f32).number(value);
  return *this;
}

GgufBuilder& GgufBuilder::set(std::string_view k, const std::vector<std::string>& values) {
  ByteWriter& out = key(k, GgufType::array);
  out.number(static_cast<uint32_t>(GgufType::string)).number<uint64_t>(values.size());
  for (const std::string& value : values) out.gguf_string(value);
  return *this;
}

GgufBuilder& GgufBuilder::set(std::string_view k, const std::vector<int32_t>& values) {
  ByteWriter& out = key(k, GgufType::array);
  out.number(static_cast<uint32_t>(GgufType::i32)).number<uint64_t>(values.size());
  for (const int32_t value : values) out.number(value);
  return *this;
}

GgufBuilder& GgufBuilder::set(std::string_view k, const std::vector<float>& values) {
  ByteWriter& out = key(k, GgufType::array);
  out.number(static_cast<uint32_t>(GgufType::f32)).number<uint64_t>(values.size());
  for (const float value : values) out.number(value);
  return *this;
}

GgufBuilder& GgufBuilder::set(std::string_view k, const std::vector<bool>& values) {
  ByteWriter& out = key(k, GgufType::array);
  out.number(static_cast<uint32_t>(GgufType::boolean)).number<uint64_t>(values.size());
  for (const bool value : values) out.number<uint8_t>(value ? 1 : 0);
  return *this;
}

GgufBuilder& GgufBuilder::set_raw(std::string_view k, uint32_t type, std::span<const std::byte> value) {
  key(k, static_cast<GgufType>(type)).raw(value);
  return *this;
}

GgufBuilder& GgufBuilder::tensor_at(std::string_view name, const std::vector<uint64_t>& sizes,
                                    uint32_t ggml_type, uint64_t offset) {
  ++tensor_count_;
  infos_.gguf_string(name).number(static_cast<uint32_t>(sizes.size()));
  for (const uint64_t size : sizes) infos_.number(size);
  infos_.number(ggml_type).number(offset);
  return *this;
}

GgufBuilder& GgufBuilder::tensor(std::string_view name, const std::vector<uint64_t>& sizes,
                                 uint32_t ggml_type, std::span<const std::byte> data) {
  data_.align(alignment_);
  tensor_at(name, sizes, ggml_type, data_.size());
  data_.raw(data);
  return *this;
}

GgufBuilder& GgufBuilder::tensor(std::string_view name, const TensorView& view) {
  return tensor(name, {view.shape.rbegin(), view.shape.rend()}, ggml_type_of(view.dtype), view.bytes);
}

GgufBuilder& GgufBuilder::data_bytes(size_t count) {
  data_.zeros(count);
  return *this;
}

std::vector<std::byte> GgufBuilder::finish() const {
  ByteWriter out, metadata = metadata_, infos = infos_, data = data_;
  out.number(kGgufMagic).number(version_);
  out.number(forced_tensor_count_.empty() ? tensor_count_ : forced_tensor_count_[0]);
  out.number(forced_metadata_count_.empty() ? metadata_count_ : forced_metadata_count_[0]);
  out.raw(metadata.take()).raw(infos.take());
  if (data.size() != 0 || tensor_count_ != 0) out.align(alignment_).raw(data.take());
  return out.take();
}

}  // namespace lapidary::test
