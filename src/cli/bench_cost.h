// What a test of `lapidary bench` takes, counted from the model's shape: operations and bytes.
#pragma once

#include <cstdint>

#include "base/kv_types.h"
#include "spec/model_spec.h"

namespace lapidary {

struct RowsCost {
  double matrix_ops = 0;     // products with weights; a multiply-add is two
  double attention_ops = 0;  // queries times keys, probabilities times values
  double kv_bytes = 0;       // keys and values that the rows see, once for each row and layer
};

// `rows` tokens of one sequence after `depth` others, of which all want logits or the last one alone. The
// engine drops rows that nobody wants behind the last layer that stores KV: what is not computed is not
// counted.
RowsCost cost_of_rows(const ModelSpec& spec, int64_t depth, int64_t rows, bool all_wanted, const KvTypes& kv);

}  // namespace lapidary
