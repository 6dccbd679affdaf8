// The FFN verb: down(act(gate(x)) * up(x)), with experts beside it where the layer has them.
#include "engine/forward.h"

namespace lapidary {

void Forward::ffn(int64_t index) {
  const FfnSpec& f = *spec_.layers[static_cast<size_t>(index)].ffn;
  const LayerWeights& w = weights_.layers[static_cast<size_t>(index)];
  norm(ws_.hidden, w.ffn_norm, ws_.normed);
  report(index, Op::ffn_input, ws_.normed, spec_.d_model);
  project_gated(ws_.normed, w, f.activation);
  report(index, Op::gated, ws_.gate, f.d_ff);
  project(ws_.gate, {{&w.down, &ws_.branch}});
  if (f.moe) experts(index);
  report(index, Op::ffn_output, ws_.branch, spec_.d_model);
}

}  // namespace lapidary
