// A model as its formulas, in torch operations: to be read beside docs/models.md, whose sections the
// functions name. No kernels, no pages, no rings: whole matrices, a mask, a cache that keeps every position.
// Autograd runs through it.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "reference/parameters.h"
#include "spec/model_spec.h"

namespace lapidary::reference {

// K and V of every owner layer, all positions so far: [K, S, Hd]; undefined for borrowers.
struct Cache {
  struct Entry {
    at::Tensor k, v;
  };
  std::vector<Entry> layers;
  int64_t length = 0;
};

class Model {
 public:
  // REQUIRES: both outlive the model. `type` is that of the parameters.
  Model(const ModelSpec& spec, const Parameters& parameters, at::ScalarType type);

  // Called with the stream after each whole layer, [T, D].
  using OnLayer = std::function<void(int64_t layer, const at::Tensor& hidden)>;

  // ids [T] i64, at positions cache.length onward; the cache grows by T. Returns the input of the head, [T,
  // D]. REQUIRES: ids within the vocabulary.
  at::Tensor forward(const at::Tensor& ids, Cache& cache, const OnLayer& on_layer = {}) const;
  at::Tensor logits(const at::Tensor& final_norm) const;  // [T, D] → [T, V], after softcap
  Cache empty_cache() const;

 private:
  at::Tensor weight(TensorKind kind, int64_t layer = -1) const { return parameters_.get({kind, layer}); }
  at::Tensor rms_norm(const at::Tensor& x) const;
  at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight) const;
  at::Tensor layer(int64_t index, at::Tensor h, const at::Tensor& ple, Cache& cache) const;
  at::Tensor attention(int64_t index, const at::Tensor& x, Cache& cache) const;
  void append_kv(int64_t index, const at::Tensor& x, Cache& cache) const;
  at::Tensor attend(const AttentionSpec& a, const at::Tensor& q, const Cache::Entry& kv, int64_t start) const;
  at::Tensor ffn(int64_t index, const at::Tensor& h) const;
  at::Tensor experts(int64_t index, const at::Tensor& h) const;
  at::Tensor per_layer_inputs(const at::Tensor& ids, const at::Tensor& h) const;
  at::Tensor add_per_layer_input(int64_t index, const at::Tensor& h, const at::Tensor& ple) const;
  at::Tensor residual(const LayerSpec& layer, const at::Tensor& h, const at::Tensor& branch) const;

  const ModelSpec& spec_;
  const Parameters& parameters_;
  at::ScalarType type_, wide_;  // wide: of norms, softmax, router: float32 at least
};

}  // namespace lapidary::reference
