#include "engine/pack.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>

#include "base/blocks.h"
#include "base/error.h"
#include "kernels/panel_layout.h"

namespace lapidary {
namespace {

// In pieces of some megabytes, after each of which its source may leave memory.
void pack_panel_set(const TensorView& weight, const Panels& plan, const std::string& name, Team& team,
                    std::byte* out, FunctionRef<void()> packed_a_piece) {
  constexpr size_t kPieceBytes = size_t{16} << 20;
  const size_t panel_bytes = std::max<size_t>(1, weight.bytes.size() / static_cast<size_t>(plan.n_panels()));
  const auto piece = static_cast<int64_t>(std::max<size_t>(1, kPieceBytes / panel_bytes));
  for (int64_t first = 0; first < plan.n_panels(); first += piece) {
    std::optional<kernels::BadWeight> bad;
    std::mutex mutex;
    const int64_t n = std::min(piece, plan.n_panels() - first);
    team.parallel_for(n, 1, [&](int64_t begin, int64_t end, int) {
      if (auto found = kernels::pack_panels(weight, plan, first + begin, first + end, out)) {
        const std::lock_guard lock(mutex);
        if (!bad || found->row < bad->row) bad = found;  // the first one, whoever found it
      }
    });
    if (bad)
      fail(ErrorCode::data, "tensor {}: weight at row {}, column {} is not a finite number", name, bad->row,
           bad->column);
    packed_a_piece();
  }
}

class ModelPacker {
 public:
  ModelPacker(const ModelSpec& spec, const TensorSource& source, Team& team, PackedSink& sink,
              FunctionRef<void(int64_t, int64_t)> progress)
      : spec_(spec), source_(source), team_(team), sink_(sink), progress_(progress) {}

  void run() {
    for_each_tensor(spec_, [&](const TensorInfo& info) {
      if (!info.is_matrix()) total_ += elements(info);
    });
    for_each_matrix(spec_, [&](const TensorInfo& info) { total_ += elements(info); });
    for_each_tensor(spec_, [&](const TensorInfo& info) {  // small ones first: they lie together
      if (!info.is_matrix() && !info.gathered) copy(info);
    });
    for_each_matrix(spec_, [&](const TensorInfo& info) { pack(info); });
    for_each_tensor(spec_, [&](const TensorInfo& info) {
      if (info.gathered) copy(info);
    });
  }

 private:
  static int64_t elements(const TensorInfo& info) { return element_count(info.shape, slot_name(info.slot)); }

  void count(const TensorInfo& info) {
    done_ += elements(info);
    progress_(done_, total_);
  }

  void copy(const TensorInfo& info) {
    const TensorData data = source_.read(info.slot);
    check_tensor(info, data.view);
    if (!info.gathered) finite_floats(data.view, slot_name(info.slot));
    sink_.write(info.slot, data.view);
    source_.release(info.slot);
    count(info);
  }

  void pack(const TensorInfo& info) {
    TensorInfo plain = info;
    plain.slot = stored_slot(spec_, info);
    const Slot stored = plain.slot;
    const TensorData data = source_.read(stored);
    check_tensor(plain, data.view);
    const Buffer packed = pack_weight(data.view, plan_weight(data.view.dtype, info.shape), slot_name(stored),
                                      team_, [&] { source_.release(stored); });
    sink_.write_packed(info.slot, {data.view.dtype,
                                   info.shape,
                                   kernels::panel_layout(data.view.dtype),
                                   {packed.data(), packed.size()}});
    count(info);
  }

  const ModelSpec& spec_;
  const TensorSource& source_;
  Team& team_;
  PackedSink& sink_;
  FunctionRef<void(int64_t, int64_t)> progress_;
  int64_t done_ = 0, total_ = 0;
};

}  // namespace

Slot stored_slot(const ModelSpec& spec, const TensorInfo& matrix) {
  const bool tied = spec.tied_head && matrix.slot.kind == TensorKind::output_head;
  return tied ? Slot{TensorKind::token_embedding} : matrix.slot;
}

std::vector<Panels> plan_weight(DType dtype, const Shape& shape) {
  const bool experts = shape.size() == 3;
  const Shape one(shape.end() - 2, shape.end());
  return std::vector<Panels>(experts ? static_cast<size_t>(shape.front()) : 1,
                             kernels::plan_panels({dtype, one, {}}));
}

size_t packed_bytes(const std::vector<Panels>& plan) {
  return plan.size() * plan.front().bytes();
}

void place_panels(std::vector<Panels>& plan, const std::byte* bytes) {
  for (Panels& panels : plan) {
    panels.data = bytes;
    bytes += panels.bytes();
  }
}

Buffer pack_weight(const TensorView& weight, const std::vector<Panels>& plan, const std::string& name,
                   Team& team, FunctionRef<void()> packed_a_piece) {
  Buffer buffer(packed_bytes(plan), name.c_str());
  if (weight.shape.size() != 3) {
    pack_panel_set(weight, plan.front(), name, team, buffer.data(), packed_a_piece);
    return buffer;
  }
  const size_t expert_bytes = weight.bytes.size() / plan.size();
  for (size_t e = 0; e < plan.size(); e++) {
    const TensorView one{weight.dtype,
                         {weight.shape[1], weight.shape[2]},
                         weight.bytes.subspan(e * expert_bytes, expert_bytes)};
    pack_panel_set(one, plan[e], fmt::format("{}[{}]", name, e), team, buffer.data() + e * plan[e].bytes(),
                   packed_a_piece);
  }
  return buffer;
}

std::vector<Panels> panels_of(const PackedTensor& packed, const TensorInfo& info) {
  const std::string name = slot_name(info.slot);
  ensure(packed.shape == info.shape, ErrorCode::data, "tensor {}: expected shape {}, got {}", name,
         shape_text(info.shape), shape_text(packed.shape));
  const std::string wanted = kernels::panel_layout(packed.dtype);
  ensure(packed.layout == wanted, ErrorCode::unsupported,
         "tensor {}: it was packed in the layout {}, this program reads {}; pack the model again with this "
         "program",
         name, packed.layout, wanted);
  std::vector<Panels> plan = plan_weight(packed.dtype, packed.shape);
  ensure(packed.bytes.size() == packed_bytes(plan), ErrorCode::data,
         "tensor {}: expected {} bytes of panels, got {}", name, packed_bytes(plan), packed.bytes.size());
  place_panels(plan, packed.bytes.data());
  return plan;
}

void pack_model(const ModelSpec& spec, const TensorSource& source, Team& team, PackedSink& sink,
                FunctionRef<void(int64_t, int64_t)> progress) {
  ModelPacker(spec, source, team, sink, progress).run();
}

std::vector<float> finite_floats(const TensorView& tensor, const std::string& name) {
  std::vector<float> values = to_floats(tensor);
  for (size_t i = 0; i < values.size(); i++)
    ensure(std::isfinite(values[i]), ErrorCode::data, "tensor {}: element {} is {}, expected a finite number",
           name, i, values[i]);
  return values;
}

}  // namespace lapidary
