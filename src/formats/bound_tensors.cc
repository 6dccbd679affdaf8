#include "formats/bound_tensors.h"

#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/quote.h"
#include "formats/mapped_file.h"

namespace lapidary {
namespace {

template <typename T>
TensorData owned(DType dtype, Shape shape, std::shared_ptr<std::vector<T>> storage) {
  const auto bytes = std::as_bytes(std::span<const T>(*storage));
  return {{dtype, std::move(shape), bytes}, std::move(storage)};
}

TensorData add_one(const TensorView& view) {
  auto out = std::make_shared<std::vector<float>>(to_floats(view));
  for (float& x : *out) x += 1.0f;
  return owned(DType::f32, view.shape, std::move(out));
}

// Row 2j + s of a head holds what belongs at row s * Hd/2 + j.
TensorData unpermute(const TensorView& view, int64_t heads) {
  const int64_t head_dim = view.shape.at(0) / heads, half = head_dim / 2;
  const size_t row = view.row(0).size();
  auto out = std::make_shared<std::vector<std::byte>>(view.bytes.size());
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t j = 0; j < half; ++j) {
      for (int64_t side = 0; side < 2; ++side) {
        const int64_t to = head * head_dim + side * half + j, from = head * head_dim + 2 * j + side;
        std::memcpy(out->data() + static_cast<size_t>(to) * row, view.row(from).data(), row);
      }
    }
  }
  return owned(view.dtype, view.shape, std::move(out));
}

// Gate rows, then up rows, of each expert. Halves in different number formats meet as f32, which holds both
// exactly.
template <typename T>
std::shared_ptr<std::vector<T>> interleave(std::span<const T> gate, std::span<const T> up, size_t experts) {
  const size_t size = gate.size() / experts;
  auto out = std::make_shared<std::vector<T>>();
  out->reserve(gate.size() + up.size());
  for (size_t e = 0; e < experts; ++e) {
    for (const auto& half : {gate, up}) {
      const auto part = half.subspan(e * size, size);
      out->insert(out->end(), part.begin(), part.end());
    }
  }
  return out;
}

TensorData join_experts(const TensorView& gate, const TensorView& up) {
  const Shape shape = {gate.shape[0], 2 * gate.shape[1], gate.shape[2]};
  const size_t experts = static_cast<size_t>(gate.shape[0]);
  if (gate.dtype == up.dtype)
    return owned(gate.dtype, shape, interleave<std::byte>(gate.bytes, up.bytes, experts));
  const std::vector<float> g = to_floats(gate), u = to_floats(up);
  return owned(DType::f32, shape, interleave<float>(g, u, experts));
}

}  // namespace

void check_stored(const std::string& file, const std::string& name, const TensorInfo& info,
                  const TensorView& view, const Shape& expected) {
  ensure(view.shape == expected, ErrorCode::data, "{}: tensor {}: expected the shape {}, got {}", file,
         lapidary::quoted(name), shape_text(expected), shape_text(view.shape));
  const bool float_only = info.dtype_rule == DTypeRule::float_only;
  ensure(is_float(view.dtype) || (!float_only && is_quantised(view.dtype)), ErrorCode::data,
         "{}: tensor {}: expected {}, got {}", file, lapidary::quoted(name),
         float_only ? "f32, f16 or bf16" : "f32, f16, bf16 or a block format", dtype_name(view.dtype));
}

void BoundTensors::bind(const std::string& file, const TensorInfo& info, Binding binding) {
  if (binding.remake == Remake::join_experts) {
    const Shape half = {info.shape.at(0), info.shape.at(1) / 2, info.shape.at(2)};
    check_stored(file, binding.name, info, binding.view, half);
    check_stored(file, binding.name, info, binding.second, half);
  } else {
    check_stored(file, binding.name, info, binding.view, info.shape);
  }
  const std::string name = binding.name;
  const bool fresh = bindings_.emplace(info.slot, std::move(binding)).second;
  ensure(fresh, ErrorCode::data, "{}: tensor {}: expected one tensor for {}, got a second one", file,
         lapidary::quoted(name), slot_name(info.slot));
}

std::map<std::string, int64_t> BoundTensors::bytes_by_dtype() const {
  std::map<std::string, int64_t> out;
  for (const auto& [slot, b] : bindings_) {
    for (const TensorView* view : {&b.view, &b.second}) {
      if (!view->bytes.empty())
        out[std::string(dtype_name(view->dtype))] += static_cast<int64_t>(view->bytes.size());
    }
  }
  return out;
}

TensorData BoundTensors::read(const Slot& slot) const {
  const auto it = bindings_.find(slot);
  ensure(it != bindings_.end(), ErrorCode::data, "{}: expected a tensor, got none", slot_name(slot));
  const Binding& b = it->second;
  switch (b.remake) {
    case Remake::none: return {b.view, nullptr};
    case Remake::add_one: return add_one(b.view);
    case Remake::unpermute: return unpermute(b.view, b.heads);
    case Remake::join_experts: return join_experts(b.view, b.second);
  }
  fail(ErrorCode::internal, "{}: unknown way to make a tensor", slot_name(slot));
}

void BoundTensors::release(const Slot& slot) const {
  const auto it = bindings_.find(slot);
  if (it == bindings_.end()) return;
  forget_pages(it->second.view.bytes);
  forget_pages(it->second.second.bytes);
}

}  // namespace lapidary
