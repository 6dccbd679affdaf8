#include "formats/gguf_writer.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/quote.h"
#include "formats/gguf_keys.h"
#include "formats/gguf_types.h"

namespace lapidary {
namespace {

constexpr uint32_t kVersion = 3;

template <typename T>
bool fits(int64_t value) {
  return std::in_range<T>(value);
}

class Bytes {
 public:
  template <typename T>
  void number(T value) {
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    out_.insert(out_.end(), raw, raw + sizeof value);
  }
  void text(std::string_view s) {
    number<uint64_t>(s.size());
    const auto raw = std::as_bytes(std::span(s));
    out_.insert(out_.end(), raw.begin(), raw.end());
  }
  void type(GgufType type) { number(static_cast<uint32_t>(type)); }
  void array(GgufType element, size_t count) {
    type(GgufType::array);
    type(element);
    number<uint64_t>(count);
  }
  void align() {
    out_.resize((out_.size() + kGgufDefaultAlignment - 1) / kGgufDefaultAlignment * kGgufDefaultAlignment);
  }
  std::vector<std::byte> take() { return std::move(out_); }

 private:
  std::vector<std::byte> out_;
};

struct ValueWriter {
  Bytes& out;

  void operator()(bool value) const {
    out.type(GgufType::boolean);
    out.number<uint8_t>(value ? 1 : 0);
  }
  void operator()(int64_t value) const {
    if (fits<uint32_t>(value)) {
      out.type(GgufType::u32);
      out.number(static_cast<uint32_t>(value));
    } else if (fits<int32_t>(value)) {
      out.type(GgufType::i32);
      out.number(static_cast<int32_t>(value));
    } else {
      out.type(GgufType::i64);
      out.number(value);
    }
  }
  void operator()(double value) const {
    out.type(GgufType::f32);
    out.number(static_cast<float>(value));
  }
  void operator()(std::string_view value) const {
    out.type(GgufType::string);
    out.text(value);
  }
  void operator()(const std::vector<bool>& values) const {
    out.array(GgufType::boolean, values.size());
    for (const bool value : values) out.number<uint8_t>(value ? 1 : 0);
  }
  void operator()(const std::vector<int64_t>& values) const {
    const bool narrow = std::all_of(values.begin(), values.end(), fits<int32_t>);
    out.array(narrow ? GgufType::i32 : GgufType::i64, values.size());
    for (const int64_t value : values) {
      narrow ? out.number(static_cast<int32_t>(value)) : out.number(value);
    }
  }
  void operator()(const std::vector<double>& values) const {
    out.array(GgufType::f32, values.size());
    for (const double value : values) out.number(static_cast<float>(value));
  }
  void operator()(const std::vector<std::string_view>& values) const {
    out.array(GgufType::string, values.size());
    for (const std::string_view value : values) out.text(value);
  }
};

int64_t aligned(int64_t value) {
  constexpr int64_t kAlignment = kGgufDefaultAlignment;
  return (value + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

GgufLayout gguf_layout(const std::map<std::string, GgufValue, std::less<>>& metadata,
                       std::span<const GgufEntry> tensors) {
  Bytes out;
  out.number(kGgufMagic);
  out.number(kVersion);
  out.number<uint64_t>(tensors.size());
  out.number<uint64_t>(metadata.size());
  const auto write = [&](const std::string& key, const GgufValue& value) {
    out.text(key);
    std::visit(ValueWriter{out}, value.value);
  };
  const auto first = metadata.find(gguf_key::architecture);
  if (first != metadata.end()) write(first->first, first->second);
  for (auto it = metadata.begin(); it != metadata.end(); ++it) {
    if (it != first) write(it->first, it->second);
  }
  GgufLayout layout;
  int64_t end = 0;
  for (const GgufEntry& tensor : tensors) {
    const auto type = ggml_number_of(tensor.dtype);
    ensure(type.has_value(), ErrorCode::unsupported, "tensor {}: GGUF has no type for {}",
           quoted(tensor.name), dtype_name(tensor.dtype));
    ensure(!tensor.shape.empty() && tensor.shape.size() <= kGgufMaxDimensions, ErrorCode::unsupported,
           "tensor {}: expected 1 to {} dimensions, got {}", quoted(tensor.name), kGgufMaxDimensions,
           shape_text(tensor.shape));
    out.text(tensor.name);
    out.number(static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      out.number(static_cast<uint64_t>(*size));
    out.number(*type);
    out.number(static_cast<uint64_t>(end));
    layout.offsets.push_back(end);
    const auto elements = static_cast<size_t>(element_count(tensor.shape, tensor.name));
    end = aligned(end + static_cast<int64_t>(row_bytes(tensor.dtype, elements)));
  }
  out.align();
  layout.header = out.take();
  const auto start = static_cast<int64_t>(layout.header.size());
  for (int64_t& offset : layout.offsets) offset += start;
  layout.file_bytes = start + end;
  return layout;
}

}  // namespace lapidary
