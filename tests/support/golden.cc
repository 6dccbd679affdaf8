#include "support/golden.h"

#include <cstring>

#include "base/error.h"
#include "spec/json_fields.h"

namespace lapidary::test {
namespace {

template <typename T>
std::vector<int64_t> widen(std::span<const std::byte> bytes) {
  std::vector<int64_t> out(bytes.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int64_t>(value);
  }
  return out;
}

}  // namespace

std::filesystem::path data_path(const std::filesystem::path& relative) {
  std::filesystem::path path = std::filesystem::path(LAPIDARY_TEST_DATA) / relative;
  ensure(std::filesystem::exists(path), ErrorCode::not_found, "test data {} are not there", path.string());
  return path;
}

boost::json::value read_json(const std::filesystem::path& path) {
  return parse_json(read_text_file(path), path.string());
}

Golden::Golden(const std::filesystem::path& path)
    : bytes_(path), file_(parse_safetensors(bytes_.bytes(), bytes_.name())) {}

const TensorView& Golden::view(const std::string& name) const {
  const auto it = file_.tensors.find(name);
  ensure(it != file_.tensors.end(), ErrorCode::not_found, "{}: no tensor {}", bytes_.name(), name);
  return it->second;
}

std::vector<float> Golden::floats(const std::string& name) const {
  ensure(is_float(view(name).dtype), ErrorCode::data, "{}: tensor {}: expected floats, got {}", bytes_.name(),
         name, dtype_name(view(name).dtype));
  return to_floats(view(name));
}

std::vector<int64_t> Golden::ints(const std::string& name) const {
  const TensorView& tensor = view(name);
  switch (tensor.dtype) {
    case DType::i64: return widen<int64_t>(tensor.bytes);
    case DType::i32: return widen<int32_t>(tensor.bytes);
    case DType::i16: return widen<int16_t>(tensor.bytes);
    case DType::i8: return widen<int8_t>(tensor.bytes);
    case DType::u32: return widen<uint32_t>(tensor.bytes);
    case DType::u16: return widen<uint16_t>(tensor.bytes);
    case DType::u8: return widen<uint8_t>(tensor.bytes);
    default:
      fail(ErrorCode::data, "{}: tensor {}: expected integers, got {}", bytes_.name(), name,
           dtype_name(tensor.dtype));
  }
}

}  // namespace lapidary::test
