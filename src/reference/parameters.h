// Where the reference finds its weights: held as torch tensors (training needs that), or decoded anew from
// the source at every use (any size of model).
#pragma once

#include <ATen/ATen.h>

#include <map>

#include "spec/model_spec.h"
#include "spec/tensor_io.h"

namespace lapidary::reference {

class Parameters {
 public:
  virtual ~Parameters() = default;
  virtual at::Tensor get(const Slot& slot) const = 0;  // in the shape of the tensor table
  // Rows of a table, ids [n] → [n, columns]; differentiable where get() is.
  virtual at::Tensor rows(const Slot& slot, const at::Tensor& ids) const = 0;
  // Rows [begin, end) of a matrix.
  virtual at::Tensor row_range(const Slot& slot, int64_t begin, int64_t end) const = 0;
};

class HeldParameters : public Parameters {
 public:
  // Decodes every tensor of the table. Error(data) naming the first that is missing, misshaped or not finite.
  HeldParameters(const ModelSpec& spec, const TensorSource& source, at::ScalarType type);
  at::Tensor get(const Slot& slot) const override;
  at::Tensor rows(const Slot& slot, const at::Tensor& ids) const override;
  at::Tensor row_range(const Slot& slot, int64_t begin, int64_t end) const override;

  // All but layer scalars, which are buffers: the parameters that gradients flow to.
  void require_gradients();
  const std::map<Slot, at::Tensor>& all() const { return tensors_; }

 private:
  std::map<Slot, at::Tensor> tensors_;
};

class StreamedParameters : public Parameters {
 public:
  // Keeps `source`. Checks that every tensor is there in its shape; decodes nothing yet.
  StreamedParameters(const ModelSpec& spec, const TensorSource& source, at::ScalarType type);
  at::Tensor get(const Slot& slot) const override;
  at::Tensor rows(const Slot& slot, const at::Tensor& ids) const override;
  at::Tensor row_range(const Slot& slot, int64_t begin, int64_t end) const override;

 private:
  const TensorSource& source_;
  at::ScalarType type_;
};

}  // namespace lapidary::reference
