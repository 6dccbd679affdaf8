// GGUF metadata → ModelSpec, and GGUF tensor names ↔ slots. Family names live here and in import_hf, and
// nowhere else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/bound_tensors.h"
#include "formats/gguf.h"
#include "spec/model_spec.h"

namespace lapidary {

struct GgufModel {
  ModelSpec spec;
  std::string family;  // general.architecture: "gemma4", "gemma3", "llama"
};

// The spec of a file (all its parts merged). Three facts have no key in a GGUF and are said by tensors alone:
// a tied head (no output.weight), k_eq_v (no attn_v in global layers) and the divisors of rotary frequencies
// (rope_freqs.weight). They are read here and nowhere else. Error(unsupported) on another architecture or a
// key that changes the computation; Error(data) on a missing or contradictory key.
GgufModel import_gguf_spec(const GgufFile& file);

// The name of a slot: "blk.3.attn_q.weight".
std::string gguf_name(const Slot& slot);

// Heads of a tensor whose rows the file holds with rotary pairs side by side, (2i, 2i+1); 0 where the rows
// stand as the model has them.
int64_t gguf_paired_heads(const ModelSpec& spec, const Slot& slot, std::string_view family);

// Binds every tensor of the spec, and accounts for every tensor of the file: what is neither a slot's nor
// known to be unused is an Error(data). Returns what was left out.
std::vector<SkippedTensor> bind_gguf_tensors(const GgufModel& model, const GgufFile& file, BoundTensors& out);

}  // namespace lapidary
