// Golden files: what others computed, under tests/data.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/mapped_file.h"
#include "formats/safetensors.h"

namespace lapidary::test {

// tests/data/RELATIVE; throws when it is not there.
std::filesystem::path data_path(const std::filesystem::path& relative);

// A JSON file beside a golden.
boost::json::value read_json(const std::filesystem::path& path);

// A safetensors file with its bytes. Every getter throws naming the tensor when it is missing or of another
// kind.
class Golden {
 public:
  explicit Golden(const std::filesystem::path& path);

  bool has(const std::string& name) const { return file_.tensors.count(name) != 0; }
  const TensorView& view(const std::string& name) const;
  const Shape& shape(const std::string& name) const { return view(name).shape; }
  std::vector<float> floats(const std::string& name) const;  // f32, f16, bf16
  std::vector<int64_t> ints(const std::string& name) const;  // integers of any width
  const SafetensorsFile& file() const { return file_; }

 private:
  MappedFile bytes_;
  SafetensorsFile file_;
};

}  // namespace lapidary::test
