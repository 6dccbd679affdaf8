// What a model weighs: parameters and KV bytes, from the spec alone.
#pragma once

#include <cstdint>

#include "base/kv_types.h"
#include "spec/model_spec.h"
#include "spec/tensor_table.h"

namespace lapidary {

struct ParameterCount {
  int64_t resident = 0;  // all
  int64_t touched_per_token =
      0;  // read for one token: one row of gathered tables, top-k experts, a tied head once
  int64_t matrices_resident = 0;  // the same without norms and scalars (one-dimensional tensors)
  int64_t matrices_touched_per_token = 0;
};
ParameterCount count_parameters(const ModelSpec& spec);
// Elements of a tensor that computing one token reads: ParameterCount's rule.
int64_t touched_elements(const ModelSpec& spec, const TensorInfo& info);

// K and V of one position of one layer.
int64_t kv_position_bytes(const AttentionSpec& attention, const KvTypes& types);

struct KvBytes {        // per position of one sequence
  int64_t global = 0;   // owners with window 0: grows for ever
  int64_t sliding = 0;  // owners with a window: grows until the window is full
  int64_t read_global =
      0;  // bytes that one step reads per visible position: borrowers read the owner's again
  int64_t read_sliding = 0;
};
KvBytes kv_bytes_per_token(const ModelSpec& spec, const KvTypes& types);
// Bytes that a sequence of `length` positions needs: sum over owners of min(length, window) positions.
int64_t kv_bytes_needed(const ModelSpec& spec, int64_t length, const KvTypes& types);

}  // namespace lapidary
