#include "formats/gguf_writer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
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

// As many bytes as the finished file has, the header in front; the rest takes address space alone.
class Preview {
 public:
  explicit Preview(const GgufLayout& layout) : size_(static_cast<size_t>(layout.file_bytes)) {
    memory_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t front = std::min(size_, (layout.header.size() + page - 1) / page * page);
    ensure(memory_ != MAP_FAILED && ::mprotect(memory_, front, PROT_READ | PROT_WRITE) == 0, ErrorCode::limit,
           "cannot map {} bytes of addresses to check the layout of the file", size_);
    std::memcpy(memory_, layout.header.data(), layout.header.size());
  }
  ~Preview() { ::munmap(memory_, size_); }
  Preview(const Preview&) = delete;
  Preview& operator=(const Preview&) = delete;
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(memory_), size_}; }

 private:
  void* memory_ = nullptr;
  size_t size_;
};

GgufFile read_back(std::span<const std::byte> bytes, const std::string& name) {
  try {
    return parse_gguf(bytes, name);
  } catch (const Error& error) {
    fail(ErrorCode::internal, "the file to be written could not be read: {}", error.what());
  }
}

}  // namespace

void check_gguf_layout(const GgufLayout& layout, std::span<const GgufEntry> tensors,
                       const std::string& name) {
  const Preview preview(layout);
  const GgufFile file = read_back(preview.bytes(), name);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto it = file.tensors.find(tensors[i].name);
    ensure(it != file.tensors.end(), ErrorCode::internal, "{}: tensor {} is not in the header to be written",
           name, quoted(tensors[i].name));
    const TensorView& view = it->second;
    const int64_t at = view.bytes.data() - preview.bytes().data();
    ensure(at == layout.offsets[i] && view.dtype == tensors[i].dtype && view.shape == tensors[i].shape,
           ErrorCode::internal, "{}: tensor {}: expected {} {} at byte {}, the header says {} {} at {}", name,
           quoted(tensors[i].name), dtype_name(tensors[i].dtype), shape_text(tensors[i].shape),
           layout.offsets[i], dtype_name(view.dtype), shape_text(view.shape), at);
  }
}

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
