// Packing of weights for the kernels: when a model is loaded, and ahead of that, into a file.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/function_ref.h"
#include "base/team.h"
#include "kernels/panels.h"
#include "spec/model_spec.h"
#include "spec/tensor_io.h"

namespace lapidary {

using kernels::Panels;

// Where the numbers of a matrix stand: a tied head's are the token embedding's.
Slot stored_slot(const ModelSpec& spec, const TensorInfo& matrix);

// A weight [N, K] is one panel set, a weight of experts [E, N, K] is E of them, one after another. Without
// memory yet.
std::vector<Panels> plan_weight(DType dtype, const Shape& shape);
size_t packed_bytes(const std::vector<Panels>& plan);
// Gives each panel set its part of `bytes`. REQUIRES: packed_bytes(plan) of them.
void place_panels(std::vector<Panels>& plan, const std::byte* bytes);

// Error(data) with name (and expert), row and column of the first weight that is not a finite number. Calls
// `packed_a_piece` whenever what was read so far is not needed any more.
Buffer pack_weight(const TensorView& weight, const std::vector<Panels>& plan, const std::string& name,
                   Team& team, FunctionRef<void()> packed_a_piece);

// The panel sets of a weight that was packed before, in its bytes. Error(unsupported) when the kernels of
// this program want another layout, Error(data) on another shape or size than that of `info`; both name it.
std::vector<Panels> panels_of(const PackedTensor& packed, const TensorInfo& info);

// The model as an engine holds it: its matrices packed, a tied head too; tables and vectors as they are.
// Holds one tensor at a time. Errors as the loading of an engine has them. progress(done, total) counts
// elements and may throw to stop.
void pack_model(const ModelSpec& spec, const TensorSource& source, Team& team, PackedSink& sink,
                FunctionRef<void(int64_t done, int64_t total)> progress);
// The numbers of a vector; Error(data) naming it and the element that is not finite.
std::vector<float> finite_floats(const TensorView& tensor, const std::string& name);

}  // namespace lapidary
