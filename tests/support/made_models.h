// Models made up on the spot: a spec with random weights, and the shapes that kernels like least.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/model_spec.h"
#include "spec/tensor_io.h"

namespace lapidary::test {

struct MadeModel {
  ModelSpec spec;
  MemoryTensors tensors;
};

// Weights from the normal distribution, so large that activations stay near one; norms near one. Tensors take
// `type` where the table allows it and their rows are whole blocks of it, else f32.
MadeModel make_model(const ModelSpec& spec, DType type, uint64_t seed = 1);

// The same weights, decoded to f32.
MadeModel decoded(const MadeModel& model);

struct HostileShape {
  std::string name;
  ModelSpec spec;
};

// Vocabularies and widths that are no multiple of a panel's 16 outputs, of a block, or of two of them; odd
// head counts; heads of two elements; a single token, head, expert; a per-layer embedding wider than the
// model.
const std::vector<HostileShape>& hostile_shapes();

}  // namespace lapidary::test
