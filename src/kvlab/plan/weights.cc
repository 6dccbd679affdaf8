#include "kvlab/plan/weights.h"

#include <algorithm>

#include "base/error.h"
#include "kvlab/plan/numbers.h"
#include "spec/footprint.h"

namespace lapidary::kvlab {
namespace {

WeightPart part_of(TensorKind kind) {
  switch (kind) {
    case TensorKind::token_embedding:
    case TensorKind::output_head: return WeightPart::embedding;
    case TensorKind::ple_embedding:
    case TensorKind::ple_projection:
    case TensorKind::ple_gate:
    case TensorKind::ple_output: return WeightPart::per_layer_embeddings;
    case TensorKind::query:
    case TensorKind::key:
    case TensorKind::value:
    case TensorKind::attention_output: return WeightPart::attention;
    case TensorKind::gate:
    case TensorKind::up:
    case TensorKind::down: return WeightPart::feed_forward;
    case TensorKind::router:
    case TensorKind::expert_gate_up:
    case TensorKind::expert_down: return WeightPart::experts;
    default: return WeightPart::small;
  }
}

// Bytes of `touched` elements of a tensor: whole rows of a table, or whole experts.
int64_t bytes_touched(const TensorInfo& info, int64_t elements, int64_t touched, int64_t bytes) {
  if (touched == elements) return bytes;
  const int64_t first = info.shape.front();
  return times(bytes / first, touched / (elements / first));
}

class Count {
 public:
  Count(const ModelSpec& spec, int64_t sequences, int64_t ranks)
      : spec_(spec), sequences_(sequences), ranks_(ranks) {}

  void add(const TensorInfo& info, int64_t touched, int64_t bytes, const std::string& format) {
    const int64_t elements = element_count(info.shape, slot_name(info.slot)),
                  touched_bytes = bytes_touched(info, elements, touched, bytes);
    WeightSize& part = out.parts[static_cast<size_t>(part_of(info.slot.kind))];
    for (WeightSize* size : {&out.all, &part}) {
      size->resident_elements = plus(size->resident_elements, elements);
      size->touched_elements_per_token = plus(size->touched_elements_per_token, touched);
      size->resident_bytes = plus(size->resident_bytes, bytes);
      size->touched_bytes_per_token = plus(size->touched_bytes_per_token, touched_bytes);
    }
    const int64_t by_step = touched == elements ? bytes : std::min(bytes, times(touched_bytes, sequences_));
    out.touched_bytes_per_step = plus(out.touched_bytes_per_step, by_step);
    int64_t& of_format = out.resident_by_dtype[format];
    of_format = plus(of_format, bytes);
    out.rank_bytes = plus(out.rank_bytes, rank_share(info, bytes));
  }

  PlanWeights out;

 private:
  // Bytes of a tensor that the fullest rank holds.
  int64_t rank_share(const TensorInfo& info, int64_t bytes) const {
    if (ranks_ == 1 || info.shard_axis == ShardAxis::none) return bytes;
    const int64_t first = info.shape.front();
    if (info.shard_axis == ShardAxis::columns) {
      const int64_t columns = info.shape.back(), row = bytes / first;
      return times(first, ceil_div(times(row, ceil_div(columns, ranks_)), columns));
    }
    int64_t kept = ceil_div(first, ranks_);
    if (info.slot.kind == TensorKind::key || info.slot.kind == TensorKind::value) {
      const AttentionSpec& a = *spec_.layers[static_cast<size_t>(info.slot.layer)].attention;
      kept = rank_kv_heads(a.n_kv_heads, ranks_) * a.head_dim;
    }
    return times(bytes / first, kept);
  }

  const ModelSpec& spec_;
  int64_t sequences_, ranks_;
};

}  // namespace

std::string_view weight_part_name(WeightPart part) {
  switch (part) {
    case WeightPart::embedding: return "token embedding and head";
    case WeightPart::per_layer_embeddings: return "per-layer embeddings";
    case WeightPart::attention: return "attention";
    case WeightPart::feed_forward: return "feed-forward";
    case WeightPart::experts: return "experts";
    case WeightPart::small: return "norms and scalars";
  }
  fail(ErrorCode::internal, "weight part {} has no name", static_cast<int>(part));
}

PlanWeights file_weights(const ModelSpec& spec, StoredTensorOf stored, int64_t sequences, int64_t ranks) {
  Count count(spec, sequences, ranks);
  count.out.from_file = true;
  // A packed model holds a tied head a second time, in the form of a matrix.
  const Slot head{TensorKind::output_head};
  const std::optional<StoredTensor> own_head = spec.tied_head ? stored(head) : std::optional<StoredTensor>();
  const auto format = [](const StoredTensor& tensor) {
    return std::string(tensor.form) + std::string(dtype_name(tensor.dtype));
  };
  for_each_tensor(spec, [&](const TensorInfo& info) {
    const std::optional<StoredTensor> tensor = stored(info.slot);
    ensure(tensor.has_value(), ErrorCode::internal, "{}: the file has no bytes for it", slot_name(info.slot));
    const bool row_alone = info.slot.kind == TensorKind::token_embedding && own_head;
    count.add(info, row_alone ? info.shape.back() : touched_elements(spec, info), tensor->bytes,
              format(*tensor));
  });
  if (own_head) {
    const TensorInfo info{head, {spec.vocab_size, spec.d_model}};
    count.add(info, touched_elements(spec, info), own_head->bytes, format(*own_head));
  }
  return count.out;
}

PlanWeights assumed_weights(const ModelSpec& spec, DType dtype, int64_t sequences, int64_t ranks) {
  Count count(spec, sequences, ranks);
  count.out.assumed = dtype;
  for_each_tensor(spec, [&](const TensorInfo& info) {
    DType stored = dtype;
    const int64_t columns = info.shape.back();
    if (is_quantised(dtype)) {
      if (info.dtype_rule == DTypeRule::float_only) stored = DType::f32;
      else if (columns % static_cast<int64_t>(dtype_info(dtype).block_elements) != 0) stored = DType::f16;
      count.out.tensors_in_f16 += stored == DType::f16 ? 1 : 0;
    }
    const auto row = static_cast<int64_t>(row_bytes(stored, static_cast<size_t>(columns)));
    const int64_t rows = element_count(info.shape, slot_name(info.slot)) / columns;
    count.add(info, touched_elements(spec, info), times(rows, row), std::string(dtype_name(stored)));
  });
  return count.out;
}

int64_t rank_kv_heads(int64_t n_kv_heads, int64_t ranks) {
  if (n_kv_heads % ranks == 0) return n_kv_heads / ranks;
  return ranks % n_kv_heads == 0 ? 1 : n_kv_heads;
}

}  // namespace lapidary::kvlab
