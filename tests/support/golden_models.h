// The golden models by name: every suite that runs them takes its list from here.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "formats/checkpoint.h"
#include "spec/patched_tensors.h"
#include "support/golden.h"

namespace lapidary::test {

using Tokens = std::vector<int32_t>;

// Every text model of the goldens, by folder. The sharded one has the weights and so the case of the other.
inline const std::vector<std::string>& golden_models() {
  static const std::vector<std::string> names = {
      "gemma4-e2b-tiny",        "gemma4-e4b-tiny", "gemma4-12b-tiny",    "gemma4-26b-tiny",
      "gemma4-31b-tiny",        "gemma3-tiny",     "llama-tiny",         "llama3-tiny",
      "gemma4-e2b-wide",        "gemma4-12b-wide", "gemma4-12b-mm-tiny", "gemma4-e2b-mm-tiny",
      "gemma4-31b-tiny-sharded"};
  return names;
}

inline std::string case_name(const std::string& model) {
  const size_t end = model.rfind("-sharded");
  return end == std::string::npos ? model : model.substr(0, end);
}

inline Checkpoint open_golden_model(const std::string& name) {
  return open_checkpoint(data_path("models/" + name));
}
inline Golden golden_case(const std::string& name) {
  return Golden(data_path("cases/" + case_name(name) + ".safetensors"));
}

// A test's name may hold letters, digits and underscores only.
inline std::string test_name(const std::string& name) {
  std::string out = name;
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return out;
}
inline std::string name_of_model(const testing::TestParamInfo<std::string>& info) {
  return test_name(info.param);
}

inline Tokens tokens_of(const Golden& golden, const std::string& name = "input_ids") {
  const std::vector<int64_t> wide = golden.ints(name);
  return Tokens(wide.begin(), wide.end());
}

// GGUF models of the same kinds, quantised: NAME-TYPE.
inline const std::vector<std::string>& gguf_models() {
  static const std::vector<std::string> names = {
      "gemma3-tiny-F32",      "gemma3-tiny-Q5_0",       "gemma3-tiny-Q8_0",     "gemma4-12b-wide-BF16",
      "gemma4-12b-wide-Q4_0", "gemma4-12b-wide-Q4_K_M", "gemma4-12b-wide-Q6_K", "gemma4-12b-wide-Q8_0",
      "gemma4-26b-tiny-BF16", "gemma4-26b-tiny-Q8_0",   "gemma4-e2b-tiny-F32",  "gemma4-e2b-tiny-Q8_0",
      "gemma4-e2b-wide-Q4_0", "gemma4-e2b-wide-Q4_K_M", "gemma4-e2b-wide-Q6_K", "gemma4-e2b-wide-Q8_0",
      "llama-tiny-F32",       "llama-tiny-Q4_0",        "llama-tiny-Q5_1",      "llama-tiny-Q8_0",
      "llama3-tiny-F32",      "llama3-tiny-Q4_1"};
  return names;
}

inline std::string gguf_type(const std::string& name) {
  return name.substr(name.rfind('-') + 1);
}
inline Golden golden_case_of_gguf(const std::string& name) {
  return Golden(data_path("gguf/models/" + name.substr(0, name.rfind('-')) + ".safetensors"));
}
inline Checkpoint open_golden_gguf(const std::string& name) {
  return open_checkpoint(data_path("gguf/models/" + name + ".gguf"));
}

// Folder or GGUF file, whichever has the name.
inline bool is_gguf_model(const std::string& name) {
  return std::find(gguf_models().begin(), gguf_models().end(), name) != gguf_models().end();
}
inline Checkpoint open_golden(const std::string& name) {
  return is_gguf_model(name) ? open_golden_gguf(name) : open_golden_model(name);
}
inline Golden golden_of(const std::string& name) {
  return is_gguf_model(name) ? golden_case_of_gguf(name) : golden_case(name);
}

// [K, T, Hd] as the goldens keep it → [T, K * Hd] as the probe reports it.
inline std::vector<float> by_position(const Golden& golden, const std::string& name) {
  const Shape& shape = golden.shape(name);
  const auto heads = static_cast<size_t>(shape.at(0)), n = static_cast<size_t>(shape.at(1)),
             dim = static_cast<size_t>(shape.at(2));
  const std::vector<float> stored = golden.floats(name);
  std::vector<float> out(stored.size());
  for (size_t h = 0; h < heads; ++h) {
    for (size_t t = 0; t < n; ++t) {
      for (size_t i = 0; i < dim; ++i) out[(t * heads + h) * dim + i] = stored[(h * n + t) * dim + i];
    }
  }
  return out;
}

// Sets an environment variable for the life of the object.
class ScopedEnvironment {
 public:
  ScopedEnvironment(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* old = std::getenv(name_.c_str())) old_ = old;
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~ScopedEnvironment() {
    if (old_) {
      setenv(name_.c_str(), old_->c_str(), 1);
    } else {
      unsetenv(name_.c_str());
    }
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;

 private:
  std::string name_;
  std::optional<std::string> old_;
};

}  // namespace lapidary::test
