// Any bytes as a safetensors file and as an index. What is accepted must keep the promises of the format and
// survive a rewrite.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "base/error.h"
#include "formats/safetensors.h"

namespace lapidary {
namespace {

void demand(bool condition) {
  if (!condition) std::abort();
}

bool same(const SafetensorsFile& a, const SafetensorsFile& b) {
  if (a.metadata != b.metadata || a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, view] : a.tensors) {
    const auto other = b.tensors.find(name);
    if (other == b.tensors.end() || other->second.dtype != view.dtype || other->second.shape != view.shape)
      return false;
    if (!std::equal(view.bytes.begin(), view.bytes.end(), other->second.bytes.begin(),
                    other->second.bytes.end())) {
      return false;
    }
  }
  return true;
}

void check(std::span<const std::byte> bytes) {
  const SafetensorsFile file = parse_safetensors(bytes, "fuzz");
  size_t total = 0;
  for (const auto& [name, view] : file.tensors) {
    const auto elements = static_cast<size_t>(element_count(view.shape, name));
    demand(view.bytes.size() == row_bytes(view.dtype, elements));
    demand(view.bytes.data() >= bytes.data() &&
           view.bytes.data() + view.bytes.size() <= bytes.data() + bytes.size());
    demand(static_cast<size_t>(view.rows()) * static_cast<size_t>(view.columns()) == elements);
    if (is_float(view.dtype)) demand(to_floats(view).size() == elements);
    total += view.bytes.size();
  }
  demand(total < bytes.size());
  demand(same(file, parse_safetensors(write_safetensors(file.tensors, file.metadata), "rewritten")));
}

}  // namespace
}  // namespace lapidary

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    lapidary::check(bytes);
  } catch (const lapidary::Error&) {  // refused, which is an answer; anything else that is thrown is a find
  }
  try {
    lapidary::parse_safetensors_index({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const lapidary::Error&) {
  }
  return 0;
}
