// Any bytes as a GGUF file. What is accepted must lie inside the bytes, and its rows must decode.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "base/blocks.h"
#include "base/error.h"
#include "formats/gguf.h"

namespace lapidary {
namespace {

void demand(bool condition) {
  if (!condition) std::abort();
}

class Checker {
 public:
  explicit Checker(std::span<const std::byte> bytes) : bytes_(bytes) {}

  void operator()(std::string_view text) const {
    if (text.empty()) return;
    inside(std::as_bytes(std::span(text)));
  }
  void operator()(const std::vector<std::string_view>& texts) const {
    for (const std::string_view text : texts) (*this)(text);
  }
  void operator()(const auto&) const {}

  void tensor(const TensorView& view) const {
    const auto elements = static_cast<size_t>(element_count(view.shape, "fuzz"));
    const auto columns = static_cast<size_t>(view.columns());
    demand(view.bytes.size() == static_cast<size_t>(view.rows()) * row_bytes(view.dtype, columns));
    if (elements == 0) return;
    inside(view.bytes);
    if (!is_float(view.dtype) && !is_quantised(view.dtype)) return;
    std::vector<float> row(columns);
    decode_row(view.dtype, view.row(0), row);
    decode_row(view.dtype, view.row(view.rows() - 1), row);
  }

 private:
  void inside(std::span<const std::byte> part) const {
    demand(part.data() >= bytes_.data() && part.data() + part.size() <= bytes_.data() + bytes_.size());
  }

  std::span<const std::byte> bytes_;
};

void ask_everything(const GgufFile& file, std::string_view key) {
  const auto ask = [&](auto getter) {
    try {
      getter();
      return 1;
    } catch (const Error&) {
      return 0;
    }
  };
  const int answers = ask([&] { file.get_bool(key); }) + ask([&] { file.get_int(key); }) +
                      ask([&] { file.get_float(key); }) + ask([&] { file.get_string(key); }) +
                      ask([&] { file.get_strings(key); }) + ask([&] { file.get_ints(key); }) +
                      ask([&] { file.get_floats(key); }) + ask([&] { file.get_bools(key); });
  demand(answers == 1 || answers == 2);  // an integer is a number too
}

}  // namespace
}  // namespace lapidary

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lapidary;
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const GgufFile file = parse_gguf(bytes, "fuzz");
    const Checker check(bytes);
    for (const auto& [key, value] : file.metadata) {
      std::visit(check, value.value);
      ask_everything(file, key);
    }
    for (const auto& [name, view] : file.tensors) check.tensor(view);
    demand(file.split_number >= 0 && file.split_number < file.split_count);
  } catch (const Error&) {  // refused, which is an answer; anything else that is thrown is a find
  }
  return 0;
}
