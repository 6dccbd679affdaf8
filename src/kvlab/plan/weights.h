// What the weights of a model take, from the list of its tensors alone: held, and read for one token.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/function_ref.h"
#include "spec/model_spec.h"
#include "spec/tensor_table.h"

namespace lapidary::kvlab {

enum class WeightPart { embedding, per_layer_embeddings, attention, feed_forward, experts, small };
inline constexpr std::array kWeightParts = {WeightPart::embedding, WeightPart::per_layer_embeddings,
                                            WeightPart::attention, WeightPart::feed_forward,
                                            WeightPart::experts,   WeightPart::small};
std::string_view weight_part_name(WeightPart part);  // "token embedding and head"

struct WeightSize {
  int64_t resident_bytes = 0;           // held
  int64_t touched_bytes_per_token = 0;  // read for one token: a row of tables, the head, top-k experts
  int64_t resident_elements = 0, touched_elements_per_token = 0;
};

struct PlanWeights {
  bool from_file = false;  // else as if all were stored in `assumed`
  DType assumed = DType::bf16;
  WeightSize all;
  // Read by one step that decodes a token for each of several sequences: tables a row each, experts at most
  // top-k each.
  int64_t touched_bytes_per_step = 0;
  std::array<WeightSize, kWeightParts.size()> parts;  // in the order of kWeightParts
  std::map<std::string, int64_t> resident_by_dtype;   // bytes by the name of the format
  int64_t rank_bytes = 0;                             // of one of `ranks`, the fullest
  int64_t tensors_in_f16 = 0;  // assumed block format: tensors whose rows are no whole blocks of it
};

// How a tensor lies in its file.
struct StoredTensor {
  DType dtype = DType::f32;
  int64_t bytes = 0;
  std::string_view form;  // "packed " in front of the format's name; empty
};
// Nothing for a slot that the file has no bytes of its own for.
using StoredTensorOf = FunctionRef<std::optional<StoredTensor>(const Slot& slot)>;

// As the file has them.
PlanWeights file_weights(const ModelSpec& spec, StoredTensorOf stored, int64_t sequences, int64_t ranks);
// As if every tensor were stored in `dtype`. In a block format, vectors are f32 and tensors whose rows are no
// whole blocks f16.
PlanWeights assumed_weights(const ModelSpec& spec, DType dtype, int64_t sequences, int64_t ranks);

// KV heads that one rank of `ranks` holds. Heads are split where they divide; where the ranks are a multiple
// of the heads, each holds one, and a head is there several times; else each rank holds all.
int64_t rank_kv_heads(int64_t n_kv_heads, int64_t ranks);

}  // namespace lapidary::kvlab
