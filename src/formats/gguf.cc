#include "formats/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "base/quote.h"
#include "formats/gguf_types.h"

namespace lapidary {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read as they lie in memory");

constexpr size_t kMaxNameBytes = 65535;  // the format's bound on keys; held for tensor names too
// Elements of all arrays of a file. Ten times a real vocabulary with its merges; a sparse file costs its
// maker nothing, so that its size alone does not bound what an array may make us allocate.
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 24;

// Reads forward through untrusted bytes; `where_` says in messages what is being read.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  void enter(std::string where) { where_ = std::move(where); }
  std::string where() const { return fmt::format("{}: {}", file_, where_); }
  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  template <typename T>
  T number() {
    need(sizeof(T));
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  std::string_view text() {
    const auto length = number<uint64_t>();
    need(length);
    const std::string_view view(reinterpret_cast<const char*>(bytes_.data() + position_), length);
    position_ += length;
    return view;
  }

  std::string_view name(const char* kind) {
    const std::string_view name = text();
    refuse_unless(name.size() <= kMaxNameBytes, ErrorCode::data,
                  "{}: expected a name of at most {} bytes, got {}", kind, kMaxNameBytes, name.size());
    return name;
  }

  bool boolean() {
    const auto byte = number<uint8_t>();
    refuse_unless(byte <= 1, ErrorCode::data, "expected a bool of 0 or 1, got {}", byte);
    return byte == 1;
  }

  // Any bool of the file is checked before this is asked for: number of elements of at least `least_bytes`
  // each.
  uint64_t array_count(size_t least_bytes) {
    const auto count = number<uint64_t>();
    refuse_unless(count <= remaining() / least_bytes, ErrorCode::data,
                  "an array of {} elements of at least {} bytes does not fit in the {} bytes that are left",
                  count, least_bytes, remaining());
    array_elements_ += count;
    refuse_unless(array_elements_ <= kMaxArrayElements, ErrorCode::limit,
                  "expected at most {} array elements in a file, got {} and more", kMaxArrayElements,
                  array_elements_);
    return count;
  }

  template <typename... Args>
  void refuse_unless(bool condition, ErrorCode code, fmt::format_string<Args...> format,
                     Args&&... args) const {
    if (condition) return;
    fail(code, "{}: {}: {}", file_, where_, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  void need(uint64_t size) const {
    if (size > remaining())
      fail_truncated(size);  // apart from the message, so that a million strings read fast
  }
  [[noreturn]] void fail_truncated(uint64_t size) const {
    fail(ErrorCode::data, "{}: truncated: expected {} bytes at offset {}, got {}", where(), size, position_,
         remaining());
  }

  std::span<const std::byte> bytes_;
  const std::string& file_;
  std::string where_ = "header";
  size_t position_ = 0;
  uint64_t array_elements_ = 0;
};

template <typename T>
int64_t to_int64(const Reader& in, T value) {
  if constexpr (std::is_same_v<T, uint64_t>) {
    in.refuse_unless(value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
                     ErrorCode::unsupported, "the number {} is beyond 63 bits", value);
  }
  return static_cast<int64_t>(value);
}

// Calls f(T{}) with the C++ type of a numeric metadata type; false for other types.
template <typename F>
bool with_number_type(GgufType type, F f) {
  switch (type) {
    case GgufType::u8: f(uint8_t{}); return true;
    case GgufType::i8: f(int8_t{}); return true;
    case GgufType::u16: f(uint16_t{}); return true;
    case GgufType::i16: f(int16_t{}); return true;
    case GgufType::u32: f(uint32_t{}); return true;
    case GgufType::i32: f(int32_t{}); return true;
    case GgufType::f32: f(float{}); return true;
    case GgufType::u64: f(uint64_t{}); return true;
    case GgufType::i64: f(int64_t{}); return true;
    case GgufType::f64: f(double{}); return true;
    case GgufType::boolean:
    case GgufType::string:
    case GgufType::array: return false;
  }
  return false;
}

GgufType read_type(Reader& in) {
  const auto type = in.number<uint32_t>();
  in.refuse_unless(type <= static_cast<uint32_t>(GgufType::f64), ErrorCode::unsupported,
                   "unknown metadata type number {}, expected 0 to {}", type,
                   static_cast<uint32_t>(GgufType::f64));
  return static_cast<GgufType>(type);
}

template <typename Element, typename Read>
std::vector<Element> read_elements(Reader& in, size_t least_bytes, Read read) {
  const uint64_t count = in.array_count(least_bytes);
  std::vector<Element> elements;
  elements.reserve(count);
  for (uint64_t i = 0; i < count; ++i) elements.push_back(read());
  return elements;
}

GgufValue read_array(Reader& in) {
  const GgufType type = read_type(in);
  GgufValue result;
  const bool numeric = with_number_type(type, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>) {
      result.value =
          read_elements<double>(in, sizeof(T), [&] { return static_cast<double>(in.number<T>()); });
    } else {
      result.value = read_elements<int64_t>(in, sizeof(T), [&] { return to_int64(in, in.number<T>()); });
    }
  });
  if (numeric) return result;
  in.refuse_unless(type != GgufType::array, ErrorCode::unsupported, "arrays of arrays are not supported");
  if (type == GgufType::string) {
    result.value = read_elements<std::string_view>(in, sizeof(uint64_t), [&] { return in.text(); });
  } else {
    result.value = read_elements<bool>(in, 1, [&] { return in.boolean(); });
  }
  return result;
}

GgufValue read_value(Reader& in) {
  const GgufType type = read_type(in);
  GgufValue result;
  const bool numeric = with_number_type(type, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>) {
      result.value = static_cast<double>(in.number<T>());
    } else {
      result.value = to_int64(in, in.number<T>());
    }
  });
  if (numeric) return result;
  if (type == GgufType::array) return read_array(in);
  if (type == GgufType::string) {
    result.value = in.text();
  } else {
    result.value = in.boolean();
  }
  return result;
}

struct TensorPlace {
  const std::string* name;
  TensorView* view;
  uint64_t offset;  // in the data section
  uint64_t size;
};

void read_metadata(Reader& in, uint64_t count, GgufFile& file) {
  for (uint64_t i = 0; i < count; ++i) {
    in.enter(fmt::format("metadata entry {} of {}", i + 1, count));
    const std::string_view key = in.name("key");
    in.enter(fmt::format("metadata {}", quoted(key)));
    const auto [place, is_new] = file.metadata.try_emplace(std::string(key));
    in.refuse_unless(is_new, ErrorCode::data, "the key occurs twice");
    place->second = read_value(in);
  }
}

TensorPlace read_tensor(Reader& in, GgufFile& file) {
  const std::string_view name = in.name("tensor");
  in.enter(fmt::format("tensor {}", quoted(name)));
  const auto [place, is_new] = file.tensors.try_emplace(std::string(name));
  in.refuse_unless(is_new, ErrorCode::data, "the name occurs twice");
  TensorView& view = place->second;

  const auto dimensions = in.number<uint32_t>();
  in.refuse_unless(dimensions <= kGgufMaxDimensions, ErrorCode::unsupported,
                   "expected at most {} dimensions, got {}", kGgufMaxDimensions, dimensions);
  for (uint32_t i = 0; i < dimensions; ++i) view.shape.push_back(to_int64(in, in.number<uint64_t>()));
  std::reverse(view.shape.begin(), view.shape.end());

  const auto type = in.number<uint32_t>();
  const std::string_view type_name = ggml_type_name(type);
  const auto dtype = dtype_of_ggml(type);
  in.refuse_unless(dtype.has_value(), ErrorCode::unsupported, "tensor type {} ({}) is not supported", type,
                   type_name.empty() ? "unknown" : type_name);
  view.dtype = *dtype;

  const auto elements = static_cast<uint64_t>(element_count(view.shape, in.where()));
  const DTypeInfo& info = dtype_info(view.dtype);
  in.refuse_unless(static_cast<uint64_t>(view.columns()) % info.block_elements == 0, ErrorCode::data,
                   "rows of {} elements are not a whole number of {} blocks of {}", view.columns(), info.name,
                   info.block_elements);
  uint64_t size = 0;
  const bool overflow = __builtin_mul_overflow(elements / info.block_elements, info.block_bytes, &size);
  in.refuse_unless(!overflow, ErrorCode::data, "the size in bytes of {} {} overflows", info.name,
                   shape_text(view.shape));
  const auto offset = in.number<uint64_t>();
  return {&place->first, &view, offset, size};
}

void place_tensors(Reader& in, std::span<const std::byte> data, uint64_t alignment,
                   std::vector<TensorPlace>& places) {
  for (const TensorPlace& place : places) {
    in.enter(fmt::format("tensor {}", quoted(*place.name)));
    in.refuse_unless(place.offset % alignment == 0, ErrorCode::data,
                     "expected an offset that is a multiple of the alignment {}, got {}", alignment,
                     place.offset);
    in.refuse_unless(place.offset <= data.size() && place.size <= data.size() - place.offset, ErrorCode::data,
                     "{} bytes at offset {} of the data section are out of range: it has {} bytes",
                     place.size, place.offset, data.size());
    place.view->bytes = data.subspan(place.offset, place.size);
  }
  std::erase_if(places, [](const TensorPlace& place) { return place.size == 0; });
  std::sort(places.begin(), places.end(),
            [](const TensorPlace& a, const TensorPlace& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < places.size(); ++i) {
    const TensorPlace &before = places[i - 1], &after = places[i];
    in.enter(fmt::format("tensor {}", quoted(*after.name)));
    in.refuse_unless(before.offset + before.size <= after.offset, ErrorCode::data,
                     "its data at offset {} overlap tensor {} at offset {} of {} bytes", after.offset,
                     quoted(*before.name), before.offset, before.size);
  }
}

uint64_t alignment_of(const Reader& in, const GgufFile& file) {
  if (!file.has("general.alignment")) return kGgufDefaultAlignment;
  const int64_t alignment = file.get_int("general.alignment");
  in.refuse_unless(alignment > 0 && alignment <= (int64_t{1} << 31) &&
                       std::has_single_bit(static_cast<uint64_t>(alignment)),
                   ErrorCode::data, "general.alignment: expected a power of two, got {}", alignment);
  return static_cast<uint64_t>(alignment);
}

// A tool that merges a split set leaves a count of 0 behind: one file.
void read_split(const Reader& in, GgufFile& file) {
  if (!file.has("split.count") && !file.has("split.no")) return;
  const int64_t count = file.get_int("split.count");
  file.split_number = file.has("split.no") ? file.get_int("split.no") : 0;
  file.split_count = std::max<int64_t>(count, 1);
  in.refuse_unless(count >= 0 && file.split_number >= 0 && file.split_number < file.split_count,
                   ErrorCode::data, "split.no {} is not a part of split.count {}", file.split_number, count);
}

void read_version(Reader& in, GgufFile& file) {
  const auto magic = in.number<uint32_t>();
  in.refuse_unless(magic == kGgufMagic, ErrorCode::data, "expected the magic \"GGUF\", got bytes {:08x}",
                   __builtin_bswap32(magic));
  file.version = in.number<uint32_t>();
  in.refuse_unless((file.version & 0xffff) != 0 || file.version == 0, ErrorCode::unsupported,
                   "big-endian files are not supported");
  in.refuse_unless(file.version == 2 || file.version == 3, ErrorCode::unsupported,
                   "expected version 2 or 3, got {}", file.version);
}

std::string_view type_text(const GgufValue& value) {
  constexpr std::string_view kNames[] = {"bool",
                                         "an integer",
                                         "a float",
                                         "a string",
                                         "an array of bool",
                                         "an array of integers",
                                         "an array of floats",
                                         "an array of strings"};
  static_assert(std::size(kNames) == std::variant_size_v<decltype(GgufValue::value)>);
  return kNames[value.value.index()];
}

const GgufValue& find(const GgufFile& file, std::string_view key, std::string_view expected) {
  const auto it = file.metadata.find(key);
  ensure(it != file.metadata.end(), ErrorCode::data,
         "{}: metadata {}: expected {}, got nothing: the key is missing", file.name, quoted(key), expected);
  return it->second;
}

[[noreturn]] void fail_type(const GgufFile& file, std::string_view key, std::string_view expected,
                            const GgufValue& got) {
  fail(ErrorCode::data, "{}: metadata {}: expected {}, got {}", file.name, quoted(key), expected,
       type_text(got));
}

template <typename T>
const T& get(const GgufFile& file, std::string_view key, std::string_view expected) {
  const GgufValue& value = find(file, key, expected);
  if (const T* typed = std::get_if<T>(&value.value)) return *typed;
  fail_type(file, key, expected, value);
}

}  // namespace

bool GgufFile::get_bool(std::string_view key) const {
  return get<bool>(*this, key, "a bool");
}

int64_t GgufFile::get_int(std::string_view key) const {
  return get<int64_t>(*this, key, "an integer");
}

double GgufFile::get_float(std::string_view key) const {
  const GgufValue& value = find(*this, key, "a number");
  if (const auto* integer = std::get_if<int64_t>(&value.value)) return static_cast<double>(*integer);
  if (const auto* number = std::get_if<double>(&value.value)) return *number;
  fail_type(*this, key, "a number", value);
}

std::string GgufFile::get_string(std::string_view key) const {
  return std::string(get<std::string_view>(*this, key, "a string"));
}

const std::vector<std::string_view>& GgufFile::get_strings(std::string_view key) const {
  return get<std::vector<std::string_view>>(*this, key, "an array of strings");
}

std::vector<int64_t> GgufFile::get_ints(std::string_view key) const {
  return get<std::vector<int64_t>>(*this, key, "an array of integers");
}

std::vector<double> GgufFile::get_floats(std::string_view key) const {
  const GgufValue& value = find(*this, key, "an array of numbers");
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value.value))
    return {integers->begin(), integers->end()};
  if (const auto* numbers = std::get_if<std::vector<double>>(&value.value)) return *numbers;
  fail_type(*this, key, "an array of numbers", value);
}

std::vector<bool> GgufFile::get_bools(std::string_view key) const {
  return get<std::vector<bool>>(*this, key, "an array of bool");
}

bool GgufFile::is_array(std::string_view key) const {
  const auto it = metadata.find(key);
  return it != metadata.end() && it->second.value.index() >= 4;
}

GgufFile parse_gguf(std::span<const std::byte> bytes, const std::string& name) {
  GgufFile file;
  file.name = name;
  Reader in(bytes, name);
  read_version(in, file);
  const auto tensor_count = in.number<uint64_t>();
  const auto metadata_count = in.number<uint64_t>();
  read_metadata(in, metadata_count, file);
  in.enter("metadata");
  const uint64_t alignment = alignment_of(in, file);
  read_split(in, file);

  std::vector<TensorPlace> places;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    in.enter(fmt::format("tensor {} of {}", i + 1, tensor_count));
    places.push_back(read_tensor(in, file));
  }
  in.enter("data section");
  const uint64_t start = (in.position() + alignment - 1) / alignment * alignment;
  // A file without tensors may end before the padding.
  in.refuse_unless(start <= bytes.size() || tensor_count == 0, ErrorCode::data,
                   "truncated: expected data from offset {}, got a file of {} bytes", start, bytes.size());
  if (tensor_count != 0) place_tensors(in, bytes.subspan(start), alignment, places);
  return file;
}

}  // namespace lapidary
