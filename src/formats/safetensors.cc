#include "formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <boost/json/serialize.hpp>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/quote.h"
#include "spec/json_fields.h"

namespace lapidary {
namespace {

namespace json = boost::json;

static_assert(std::endian::native == std::endian::little, "files are read as they lie in memory");

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own bound
constexpr size_t kHeaderAlignment = 8;             // so that no element of the data is torn
constexpr std::string_view kMetadataKey = "__metadata__";

struct SafetensorsDType {
  std::string_view name;
  DType dtype;
};
constexpr SafetensorsDType kDTypes[] = {
    {"F64", DType::f64},      {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16},
    {"I64", DType::i64},      {"I32", DType::i32}, {"I16", DType::i16}, {"I8", DType::i8},
    {"U64", DType::u64},      {"U32", DType::u32}, {"U16", DType::u16}, {"U8", DType::u8},
    {"BOOL", DType::boolean},
};

std::optional<DType> dtype_of(std::string_view name) {
  for (const auto& [known, dtype] : kDTypes) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

std::string_view text_of(const json::string_view text) {
  return {text.data(), text.size()};
}

struct Place {
  uint64_t begin, end;  // in the data
  const std::string* name;
};

// A size or an offset.
int64_t whole_number(const json::value& value, const std::string& where) {
  ensure(value.is_int64() && value.get_int64() >= 0, ErrorCode::data,
         "{}: expected an integer from 0 to 2^63 - 1, got {}", where, describe_json(value));
  return value.get_int64();
}

std::string_view header_of(std::span<const std::byte> bytes, const std::string& name) {
  ensure(bytes.size() >= kLengthBytes, ErrorCode::data,
         "{}: truncated: expected a header length of {} bytes, got {}", name, kLengthBytes, bytes.size());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  ensure(length <= kMaxHeaderBytes, ErrorCode::data, "{}: expected a header of at most {} bytes, got {}",
         name, kMaxHeaderBytes, length);
  ensure(length <= bytes.size() - kLengthBytes, ErrorCode::data,
         "{}: truncated: expected a header of {} bytes, got {}", name, length, bytes.size() - kLengthBytes);
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  ensure(header.starts_with('{'), ErrorCode::data, "{}: expected a header that starts with '{{', got {}",
         name, quoted(header, 16));
  return header;
}

// One entry of the header; `where` is "file: tensor "name"".
TensorView read_entry(const json::value& value, std::span<const std::byte> data, const std::string& where) {
  JsonFields entry(value, where);
  const std::string dtype_text = entry.get_string("dtype");
  const json::array& sizes = entry.get_array("shape");
  const json::array& offsets = entry.get_array("data_offsets");
  entry.refuse_unknown();

  TensorView view;
  const auto dtype = dtype_of(dtype_text);
  ensure(dtype.has_value(), ErrorCode::unsupported, "{}: dtype {} is not supported", where,
         quoted(dtype_text));
  view.dtype = *dtype;
  for (const json::value& size : sizes) view.shape.push_back(whole_number(size, entry.path("shape")));
  const auto elements = static_cast<uint64_t>(element_count(view.shape, where));
  uint64_t bytes = 0;
  ensure(!__builtin_mul_overflow(elements, dtype_info(view.dtype).block_bytes, &bytes), ErrorCode::data,
         "{}: the size in bytes of {} {} overflows", where, dtype_name(view.dtype), shape_text(view.shape));

  const std::string place = entry.path("data_offsets");
  ensure(offsets.size() == 2, ErrorCode::data, "{}: expected two numbers, got {}", place, offsets.size());
  const auto begin = static_cast<uint64_t>(whole_number(offsets[0], place));
  const auto end = static_cast<uint64_t>(whole_number(offsets[1], place));
  ensure(begin <= end && end <= data.size(), ErrorCode::data,
         "{}: [{}, {}] are out of order or range: the data have {} bytes", place, begin, end, data.size());
  ensure(end - begin == bytes, ErrorCode::data, "{}: expected {} bytes for {} {}, got {} from {} to {}",
         place, bytes, dtype_name(view.dtype), shape_text(view.shape), end - begin, begin, end);
  view.bytes = data.subspan(begin, bytes);
  return view;
}

void read_metadata(const json::value& value, const std::string& name, SafetensorsFile& file) {
  JsonFields fields(value, fmt::format("{}: {}", name, kMetadataKey));
  for (const auto& member : fields.object()) {
    file.metadata.emplace(text_of(member.key()), fields.get_string(text_of(member.key())));
  }
}

// The tensors must tile the data: a byte that belongs to two tensors or to none is a sign of damage, or hides
// something.
void check_tiling(std::vector<Place>& places, uint64_t data_size, const std::string& name) {
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t reached = 0;
  const Place* before = nullptr;
  for (const Place& place : places) {
    if (place.begin < reached) {
      fail(ErrorCode::data, "{}: tensor {}: data_offsets [{}, {}] overlap tensor {}, which ends at {}", name,
           quoted(*place.name), place.begin, place.end, quoted(*before->name), reached);
    }
    ensure(place.begin == reached, ErrorCode::data,
           "{}: tensor {}: data_offsets [{}, {}] leave a hole: the tensors before it end at {}", name,
           quoted(*place.name), place.begin, place.end, reached);
    reached = place.end;
    before = &place;
  }
  ensure(reached == data_size, ErrorCode::data,
         "{}: the tensors end at byte {} of the data, which have {} bytes", name, reached, data_size);
}

}  // namespace

SafetensorsFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
  const std::string_view header = header_of(bytes, name);
  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header.size());
  const json::value root = parse_json(header, name);
  SafetensorsFile file;
  std::vector<Place> places;
  for (const auto& member : root.get_object()) {
    const std::string_view key = text_of(member.key());
    if (key == kMetadataKey) {
      read_metadata(member.value(), name, file);
      continue;
    }
    const std::string where = fmt::format("{}: tensor {}", name, quoted(key));
    const auto tensor = file.tensors.emplace(key, read_entry(member.value(), data, where)).first;
    const auto begin = static_cast<uint64_t>(tensor->second.bytes.data() - data.data());
    places.push_back({begin, begin + tensor->second.bytes.size(), &tensor->first});
  }
  check_tiling(places, data.size(), name);
  return file;
}

std::map<std::string, std::string> parse_safetensors_index(std::string_view text, const std::string& name) {
  const json::value root = parse_json(text, name);
  JsonFields map = JsonFields(root, name).get_object("weight_map");
  std::map<std::string, std::string> files;
  for (const auto& member : map.object()) {
    const std::string_view tensor = text_of(member.key());
    std::string file = map.get_string(tensor);
    const bool plain = !file.empty() && file != "." && file != ".." &&
                       file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    ensure(plain, ErrorCode::data, "{}: weight_map: {}: expected a file name without a folder, got {}", name,
           quoted(tensor), quoted(file));
    files.emplace(tensor, std::move(file));
  }
  return files;
}

std::vector<std::byte> safetensors_header(std::span<const SafetensorsEntry> tensors,
                                          const std::map<std::string, std::string>& metadata) {
  json::object header;
  if (!metadata.empty()) {
    json::object entries;
    for (const auto& [key, value] : metadata) entries.emplace(key, value);
    header.emplace(kMetadataKey, std::move(entries));
  }
  uint64_t end = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    const auto* dtype =
        std::find_if(std::begin(kDTypes), std::end(kDTypes),
                     [&](const SafetensorsDType& known) { return known.dtype == tensor.dtype; });
    ensure(dtype != std::end(kDTypes), ErrorCode::unsupported, "tensor {}: safetensors has no dtype for {}",
           quoted(tensor.name), dtype_name(tensor.dtype));
    ensure(tensor.name != kMetadataKey, ErrorCode::usage, "tensor {}: safetensors keeps this name for itself",
           quoted(tensor.name));
    const uint64_t begin = end;
    end += row_bytes(tensor.dtype, static_cast<uint64_t>(element_count(tensor.shape, tensor.name)));
    header.emplace(tensor.name,
                   json::object{{"dtype", json::string_view(dtype->name.data(), dtype->name.size())},
                                {"shape", json::array(tensor.shape.begin(), tensor.shape.end())},
                                {"data_offsets", json::array{begin, end}}});
  }
  std::string text = json::serialize(header);
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  std::vector<std::byte> bytes(kLengthBytes + text.size());
  const uint64_t length = text.size();
  std::memcpy(bytes.data(), &length, kLengthBytes);
  std::memcpy(bytes.data() + kLengthBytes, text.data(), text.size());
  return bytes;
}

std::vector<std::byte> write_safetensors(const std::map<std::string, TensorView>& tensors,
                                         const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries;
  size_t total = 0;
  for (const auto& [name, view] : tensors) {
    entries.push_back({name, view.dtype, view.shape});
    total += view.bytes.size();
  }
  std::vector<std::byte> bytes = safetensors_header(entries, metadata);
  bytes.reserve(bytes.size() + total);
  for (const auto& [name, view] : tensors) {
    ensure(view.bytes.size() == row_bytes(view.dtype, static_cast<uint64_t>(element_count(view.shape, name))),
           ErrorCode::internal, "tensor {}: {} {} does not take {} bytes", quoted(name),
           dtype_name(view.dtype), shape_text(view.shape), view.bytes.size());
    bytes.insert(bytes.end(), view.bytes.begin(), view.bytes.end());
  }
  return bytes;
}

}  // namespace lapidary
