// Number formats that a plan can price: those of the engine's cache, and block formats that others keep keys
// and values in.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/kv_types.h"

namespace lapidary::kvlab {

// Names as base/kv_types.h reads and writes them, and q8_0, q5_1, q5_0, q4_1, q4_0: "bf16", "k=q8_0,v=q4_0".
// Error(usage) naming `what` and the part that is wrong.
KvTypes plan_kv_types_from_name(std::string_view name, std::string_view what);

// Whether this engine keeps a cache in them.
bool runs_here(const KvTypes& types);

// Bytes of one position of one head of n numbers: scales of blocks included. A row that is no whole number of
// blocks is filled up to one.
int64_t plan_row_bytes(DType dtype, int64_t n);

// Formats of weights that a plan can assume: f32, f16, bf16 and every block format. Error(usage).
DType weight_dtype_from_name(std::string_view name, std::string_view what);

}  // namespace lapidary::kvlab
