#include "engine/weights.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <variant>

#include "base/blocks.h"
#include "base/error.h"

namespace lapidary {
namespace {

// Where a slot's tensor goes. The one place that joins the tensor table with the fields above.
using Target = std::variant<GatheredTable*, Panels*, std::vector<Panels>*, std::vector<float>*>;

Target target_of(const Slot& slot, Weights& w) {
  using K = TensorKind;
  switch (slot.kind) {
    case K::token_embedding: return &w.token_embedding;
    case K::ple_embedding: return &w.ple_embedding;
    case K::output_norm: return &w.output_norm;
    case K::output_head: return &w.head;
    case K::ple_projection: return &w.ple_projection;
    case K::ple_norm: return &w.ple_norm;
    default: break;
  }
  LayerWeights& layer = w.layers.at(static_cast<size_t>(slot.layer));
  switch (slot.kind) {
    case K::attention_norm: return &layer.attention_norm;
    case K::query: return &layer.query;
    case K::key: return &layer.key;
    case K::value: return &layer.value;
    case K::attention_output: return &layer.attention_output;
    case K::query_norm: return &layer.query_norm;
    case K::key_norm: return &layer.key_norm;
    case K::post_attention_norm: return &layer.post_attention_norm;
    case K::ffn_norm: return &layer.ffn_norm;
    case K::gate: return &layer.gate;
    case K::up: return &layer.up;
    case K::down: return &layer.down;
    case K::post_ffn_norm: return &layer.post_ffn_norm;
    case K::router: return &layer.router;
    case K::router_scale: return &layer.router_scale;
    case K::expert_gate_up: return &layer.expert_gate_up;
    case K::expert_down: return &layer.expert_down;
    case K::expert_scale: return &layer.expert_scale;
    case K::dense_post_norm: return &layer.dense_post_norm;
    case K::expert_pre_norm: return &layer.expert_pre_norm;
    case K::expert_post_norm: return &layer.expert_post_norm;
    case K::ple_gate: return &layer.ple_gate;
    case K::ple_output: return &layer.ple_output;
    case K::ple_post_norm: return &layer.ple_post_norm;
    case K::layer_scalar: return &layer.layer_scalar;
    default: fail(ErrorCode::internal, "tensor {} has no place in the engine", slot_name(slot));
  }
}

class Loader {
 public:
  Loader(const ModelSpec& spec, const TensorSource& source, Team& team,
         FunctionRef<void(int64_t, int64_t)>* progress)
      : spec_(spec), source_(source), team_(team), progress_(progress) {}

  Weights load() {
    weights_.layers.resize(spec_.layers.size());
    for_each_tensor(
        spec_, [&](const TensorInfo& info) { total_ += element_count(info.shape, slot_name(info.slot)); });
    for_each_tensor(spec_, [&](const TensorInfo& info) { place(info); });
    if (spec_.tied_head)
      weights_.head = pack(weights_.token_embedding.table.view, weights_.token_embedding.name);
    return std::move(weights_);
  }

 private:
  void place(const TensorInfo& info) {
    const std::string name = slot_name(info.slot);
    TensorData data = source_.read(info.slot);
    check_tensor(info, data.view);
    std::visit([&](auto* to) { put(std::move(data), name, *to); }, target_of(info.slot, weights_));
    done_ += element_count(info.shape, name);
    if (progress_) (*progress_)(done_, total_);
  }

  void put(TensorData data, const std::string& name, GatheredTable& to) {
    weights_.mapped_bytes += static_cast<int64_t>(data.view.bytes.size());
    to = {std::move(data), name};
  }

  void put(TensorData data, const std::string& name, Panels& to) { to = pack(data.view, name); }

  void put(TensorData data, const std::string& name,
           std::vector<Panels>& to) {  // [E, N, K]: one panel set an expert
    const TensorView& all = data.view;
    const int64_t n_experts = all.shape.at(0), rows = all.shape.at(1);
    const size_t expert_bytes = all.bytes.size() / static_cast<size_t>(n_experts);
    for (int64_t e = 0; e < n_experts; e++) {
      const TensorView one{all.dtype,
                           {rows, all.shape.at(2)},
                           all.bytes.subspan(static_cast<size_t>(e) * expert_bytes, expert_bytes)};
      to.push_back(pack(one, fmt::format("{}[{}]", name, e)));
    }
  }

  void put(TensorData data, const std::string& name, std::vector<float>& to) {
    to = to_floats(data.view);
    for (size_t i = 0; i < to.size(); i++)
      ensure(std::isfinite(to[i]), ErrorCode::data, "tensor {}: element {} is {}, expected a finite number",
             name, i, to[i]);
    weights_.packed_bytes += static_cast<int64_t>(to.size() * sizeof(float));
  }

  Panels pack(const TensorView& view, const std::string& name) {
    Panels panels = kernels::plan_panels(view);
    Buffer buffer(panels.bytes(), name.c_str());
    std::optional<kernels::BadWeight> bad;
    std::mutex mutex;
    team_.parallel_for(panels.n_panels(), 1, [&](int64_t begin, int64_t end, int) {
      if (auto found = kernels::pack_panels(view, panels, begin, end, buffer.data())) {
        const std::lock_guard lock(mutex);
        if (!bad || found->row < bad->row) bad = found;  // the first one, whoever found it
      }
    });
    if (bad)
      fail(ErrorCode::data, "tensor {}: weight at row {}, column {} is not a finite number", name, bad->row,
           bad->column);
    panels.data = buffer.data();
    weights_.quantised |= panels.format.quantised();
    weights_.packed_bytes += static_cast<int64_t>(buffer.size());
    weights_.buffers.push_back(std::move(buffer));
    return panels;
  }

  const ModelSpec& spec_;
  const TensorSource& source_;
  Team& team_;
  FunctionRef<void(int64_t, int64_t)>* progress_;
  int64_t done_ = 0, total_ = 0;  // elements
  Weights weights_;
};

}  // namespace

void GatheredTable::gather(int64_t index, std::span<float> out) const {
  decode_row(table.view.dtype, table.view.row(index), out);
  for (float x : out)
    ensure(std::isfinite(x), ErrorCode::data, "tensor {}: row {} holds a number that is not finite", name,
           index);
}

Weights load_weights(const ModelSpec& spec, const TensorSource& source, Team& team,
                     FunctionRef<void(int64_t, int64_t)>* progress) {
  return Loader(spec, source, team, progress).load();
}

}  // namespace lapidary
