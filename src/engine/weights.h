// A model's tensors, bound to their slots and repacked for the kernels. Immutable after loading.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/team.h"
#include "kernels/panels.h"
#include "spec/model_spec.h"
#include "spec/tensor_io.h"

namespace lapidary {

using kernels::Panels;

// A table read by row: stays where it is (usually a mapped file), one row is decoded a token.
struct GatheredTable {
  TensorData table;
  std::string name;
  // Decodes row `index` into out; Error(data) naming table and row when it holds a number that is not finite.
  void gather(int64_t index, std::span<float> out) const;
  int64_t row_bytes() const;
};

struct LayerWeights {
  // [H*Hd, D], [K*Hd, D], [K*Hd, D], [D, H*Hd]; key and value are empty where the layer borrows, value where
  // k_eq_v
  Panels query, key, value, attention_output;
  Panels gate, up, down;                            // [F, D], [F, D], [D, F]
  Panels router;                                    // [E, D]
  std::vector<Panels> expert_gate_up, expert_down;  // E times [2*Fe, D] and [D, Fe]
  Panels ple_gate, ple_output;                      // [P, D], [D, P]
  std::vector<float> attention_norm, query_norm, key_norm, post_attention_norm;
  std::vector<float> ffn_norm, post_ffn_norm;
  std::vector<float> router_scale, expert_scale, dense_post_norm, expert_pre_norm, expert_post_norm;
  std::vector<float> ple_post_norm, layer_scalar;
};

struct Weights {
  GatheredTable token_embedding, ple_embedding;  // [V, D], [V, L*P]
  Panels head;                                   // [V, D]: packed from the embedding when tied
  Panels ple_projection;                         // [L*P, D]
  std::vector<float> output_norm, ple_norm;
  std::vector<LayerWeights> layers;
  int64_t packed_bytes = 0, mapped_bytes = 0;
  bool quantised = false;            // some panels are: arithmetics differ in these
  int64_t packed_in_file_bytes = 0;  // of the packed bytes, those that lie where the source has them
  std::vector<Buffer> buffers;       // owners of the other panels
};

struct LoadOptions {
  bool copy_packed = false;  // weights that come packed are copied to memory of huge pages
  FunctionRef<void(int64_t done, int64_t total)>* progress = nullptr;  // in elements
};

// Reads every tensor of the table, checks shape, dtype rule and finiteness, packs what the source does not
// hold packed. The source has to outlive the result.
Weights load_weights(const ModelSpec& spec, const TensorSource& source, Team& team,
                     const LoadOptions& options);

}  // namespace lapidary
