// ModelSpec → GGUF metadata: import_gguf the other way round.
#pragma once

#include <string>
#include <vector>

#include "formats/gguf_writer.h"
#include "spec/model_spec.h"

namespace lapidary {

struct GgufSpec {
  GgufMetadata metadata;             // general.architecture and the keys of the architecture
  std::vector<float> rope_divisors;  // rope_freqs.weight; empty: no such tensor
  std::vector<std::string> notes;    // what another reader of the file may take differently
};

// Error(unsupported) naming layer and field when the file could not say what the spec says: what was made is
// read back by import_gguf_spec and compared.
GgufSpec export_gguf_spec(const ModelSpec& spec, const std::string& family);

}  // namespace lapidary
