#include "formats/quantised_tensors.h"

#include <fmt/ranges.h>

#include <vector>

#include "base/error.h"
#include "base/quote.h"
#include "formats/tensor_stream.h"

namespace lapidary {

QuantisedTensors::QuantisedTensors(const ModelSpec& spec, std::shared_ptr<const TensorSource> source,
                                   const Mix& mix, int threads)
    : source_(std::move(source)), team_(threads) {
  MixRules rules(mix, spec);
  for_each_tensor(spec, [&](const TensorInfo& info) {
    const DType stored = source_->read(info.slot).view.dtype;
    source_->release(info.slot);
    ensure(!is_quantised(stored), ErrorCode::usage,
           "tensor {} is {} already: expected a model of floats, to be quantised to {}", slot_name(info.slot),
           dtype_name(stored), mix.name);
    const bool tied_head = spec.tied_head && info.slot.kind == TensorKind::token_embedding;
    const MixChoice choice = rules.choose(info, stored);  // asked for every tensor: it counts them
    const bool changes = (info.is_matrix() || tied_head) && choice.dtype != stored;
    const DType dtype = changes ? choice.dtype : stored;
    if (changes) plans_.emplace(info.slot, Plan{dtype, info.shape, tied_head});
    const int64_t elements = element_count(info.shape, slot_name(info.slot)), columns = info.shape.back();
    bytes_by_dtype_[std::string(dtype_name(dtype))] +=
        elements / columns * static_cast<int64_t>(row_bytes(dtype, static_cast<size_t>(columns)));
  });
}

TensorData QuantisedTensors::read(const Slot& slot) const {
  const auto plan = plans_.find(slot);
  if (plan == plans_.end()) return source_->read(slot);
  const std::scoped_lock lock(mutex_);
  if (!plan->second.kept) return encoded(slot, plan->second);
  const auto [at, fresh] = kept_.try_emplace(slot);
  if (fresh) at->second = encoded(slot, plan->second);
  return at->second;
}

TensorData QuantisedTensors::encoded(const Slot& slot, const Plan& plan) const {
  const TensorData stored = source_->read(slot);
  PlannedTensor planned;
  planned.slot = slot;
  planned.name = slot_name(slot);
  planned.shape = plan.shape;
  planned.from = stored.view.dtype;
  planned.to = plan.dtype;
  auto bytes = std::make_shared<std::vector<std::byte>>();
  bytes->reserve(static_cast<size_t>(planned.bytes()));
  stream_tensor(planned, stored.view, team_, [&](std::span<const std::byte> piece) {
    bytes->insert(bytes->end(), piece.begin(), piece.end());
  });
  source_->release(slot);
  return {{plan.dtype, plan.shape, *bytes}, bytes};
}

std::map<std::string, int64_t> QuantisedTensors::bytes_by_dtype() const {
  return bytes_by_dtype_;
}

void quantise_weights(Checkpoint& checkpoint, const std::string& name, int threads) {
  const Mix* mix = find_mix(name);
  std::vector<std::string> known;
  for (const std::string& each : mix_names())
    if (is_quantised(find_mix(each)->base)) known.push_back(each);
  ensure(mix != nullptr && is_quantised(mix->base), ErrorCode::usage,
         "weights to be quantised to {}: expected one of {}", lapidary::quoted(name), fmt::join(known, ", "));
  ensure(checkpoint.tensors != nullptr, ErrorCode::usage, "{} holds no weights", checkpoint.path.string());
  auto tensors = std::make_shared<QuantisedTensors>(checkpoint.spec, checkpoint.tensors, *mix, threads);
  checkpoint.dtype_bytes = tensors->bytes_by_dtype();
  checkpoint.tensors = std::move(tensors);
}

}  // namespace lapidary
