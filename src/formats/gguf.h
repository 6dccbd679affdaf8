// GGUF v2 and v3: typed metadata and tensors. docs/formats.md has the page of prose.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/tensor.h"

namespace lapidary {

// A metadata value. Integers of any width and sign become int64 (u64 beyond int64 is refused), floats become
// double. Arrays are homogeneous; nested arrays are refused by name. Strings are views into the file's bytes.
struct GgufValue {
  std::variant<bool, int64_t, double, std::string_view,  //
               std::vector<bool>, std::vector<int64_t>, std::vector<double>, std::vector<std::string_view>>
      value;
};

struct GgufFile {
  std::string name;  // for messages
  uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, TensorView, std::less<>>
      tensors;                                // shape outermost first (GGUF lists the row length first)
  int64_t split_number = 0, split_count = 1;  // "split.no", "split.count"

  bool has(std::string_view key) const { return metadata.find(key) != metadata.end(); }
  // Typed access. Error(data) naming key, expected and got: missing key without default, or another type.
  bool get_bool(std::string_view key) const;
  int64_t get_int(std::string_view key) const;
  double get_float(std::string_view key) const;  // accepts integers too
  std::string get_string(std::string_view key) const;
  const std::vector<std::string_view>& get_strings(std::string_view key) const;
  std::vector<int64_t> get_ints(std::string_view key) const;
  std::vector<double> get_floats(std::string_view key) const;
  std::vector<bool> get_bools(std::string_view key) const;
  bool is_array(std::string_view key) const;  // false too when the key is missing
};

// Parses untrusted bytes; the result's views point into `bytes`. Throws Error(data / unsupported / limit)
// naming key or tensor.
GgufFile parse_gguf(std::span<const std::byte> bytes, const std::string& name);

}  // namespace lapidary
