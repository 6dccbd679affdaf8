#include "engine/weights.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <variant>

#include "base/blocks.h"
#include "base/error.h"
#include "engine/pack.h"

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
  Loader(const ModelSpec& spec, const TensorSource& source, Team& team, const LoadOptions& options)
      : spec_(spec), source_(source), team_(team), options_(options) {}

  // Each source page is let go as soon as it is packed, so that no more than one tensor is there twice. The
  // head, the largest of all in many models, goes first, while little else is held.
  Weights load() {
    weights_.layers.resize(spec_.layers.size());
    const auto each = [&](FunctionRef<void(const TensorInfo&)> f) {
      for_each_matrix(spec_, f);
      for_each_tensor(spec_, [&](const TensorInfo& info) {
        if (!info.is_matrix()) f(info);
      });
    };
    each([&](const TensorInfo& info) { total_ += element_count(info.shape, slot_name(info.slot)); });
    each([&](const TensorInfo& info) { place(info); });
    return std::move(weights_);
  }

 private:
  void place(const TensorInfo& info) {
    const Target target = target_of(info.slot, weights_);
    std::visit([&](auto* to) { put(info, *to); }, target);
    done_ += element_count(info.shape, slot_name(info.slot));
    if (options_.progress) (*options_.progress)(done_, total_);
  }

  TensorData read(const TensorInfo& info) const {
    TensorInfo stored = info;
    stored.slot = stored_slot(spec_, info);
    TensorData data = source_.read(stored.slot);
    check_tensor(stored, data.view);
    return data;
  }

  void put(const TensorInfo& info, GatheredTable& to) {
    to = {read(info), slot_name(info.slot)};
    weights_.mapped_bytes += static_cast<int64_t>(to.table.view.bytes.size());
  }

  void put(const TensorInfo& info, Panels& to) {
    std::vector<Panels> panels;
    put(info, panels);
    to = panels.front();
  }

  void put(const TensorInfo& info, std::vector<Panels>& to) {  // [E, N, K]: one panel set an expert
    if (!take_packed(info, to)) pack(info, to);
    weights_.quantised |= to.front().format.quantised();
  }

  void pack(const TensorInfo& info, std::vector<Panels>& to) {
    const Slot stored = stored_slot(spec_, info);
    const TensorData data = read(info);
    to = plan_weight(data.view.dtype, data.view.shape);
    hold(pack_weight(data.view, to, slot_name(stored), team_, [&] { source_.release(stored); }), to);
  }

  void put(const TensorInfo& info, std::vector<float>& to) {
    to = finite_floats(read(info).view, slot_name(info.slot));
    weights_.packed_bytes += static_cast<int64_t>(to.size() * sizeof(float));
    source_.release(info.slot);
  }

  void hold(Buffer buffer, std::vector<Panels>& panels) {
    place_panels(panels, buffer.data());
    weights_.packed_bytes += static_cast<int64_t>(buffer.size());
    weights_.buffers.push_back(std::move(buffer));
  }

  // What was packed before is used where it lies, or copied to where pages are huge.
  bool take_packed(const TensorInfo& info, std::vector<Panels>& to) {
    const std::optional<PackedTensor> packed = source_.packed(info.slot);
    if (!packed) return false;
    to = panels_of(*packed, info);
    if (options_.copy_packed) {
      hold(copied(packed->bytes, slot_name(info.slot)), to);
      source_.release(info.slot);
    } else {
      weights_.packed_bytes += static_cast<int64_t>(packed->bytes.size());
      weights_.packed_in_file_bytes += static_cast<int64_t>(packed->bytes.size());
    }
    return true;
  }

  Buffer copied(std::span<const std::byte> bytes, const std::string& name) {
    constexpr int64_t kPiece = int64_t{1} << 20;  // a thread's share is a few of them
    Buffer buffer(bytes.size(), name.c_str());
    team_.parallel_for(static_cast<int64_t>(bytes.size()), kPiece, [&](int64_t begin, int64_t end, int) {
      std::memcpy(buffer.data() + begin, bytes.data() + begin, static_cast<size_t>(end - begin));
    });
    return buffer;
  }

  const ModelSpec& spec_;
  const TensorSource& source_;
  Team& team_;
  LoadOptions options_;
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

int64_t GatheredTable::row_bytes() const {
  return static_cast<int64_t>(table.view.row(0).size());
}

Weights load_weights(const ModelSpec& spec, const TensorSource& source, Team& team,
                     const LoadOptions& options) {
  return Loader(spec, source, team, options).load();
}

}  // namespace lapidary
