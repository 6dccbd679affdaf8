// Mixes of number formats as the ecosystem names them ("Q4_K_M"), and which tensor gets which: the rules that
// llama.cpp's tools follow without an importance matrix.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "spec/tensor_table.h"

namespace lapidary {

struct Mix {
  std::string_view name;
  DType base;             // of most tensors
  int64_t file_type = 0;  // general.file_type
};

// Letter case does not matter; null when there is no such mix.
const Mix* find_mix(std::string_view name);
std::vector<std::string> mix_names();
// The general.file_type of a file whose tensors are mostly of this format.
int64_t file_type_of(DType dtype);

struct MixChoice {
  DType dtype = DType::f32;
  std::string note;  // why it is not what the mix says; empty when it is
};

// Asked for the tensors in execution order.
class MixRules {
 public:
  MixRules(const Mix& mix, const ModelSpec& spec);
  // `stored`: the tensor's present format, kept where a quantised mix leaves a matrix alone.
  MixChoice choose(const TensorInfo& info, DType stored);

 private:
  DType wanted(const TensorInfo& info);

  const Mix& mix_;
  const ModelSpec& spec_;
  int64_t values_ = 0, values_seen_ = 0;  // value projections: all, and asked for so far
};

}  // namespace lapidary
