// The reference executor: the same pair of spec and tensors run plainly in float64, float32 or bf16, by
// libtorch. It is slow, and it shares nothing with the engine but the spec: not its arithmetic, not its
// cache, not even the decoding of quantised blocks. `verify` holds the engine to it.
//
// This header names no torch type. The executor lives in a module of its own beside the program
// (liblapidary_reference.so), loaded when it is first asked for, so that no other command pays for libtorch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "spec/model_spec.h"
#include "spec/tensor_io.h"

namespace lapidary {

enum class ReferenceType { f64, f32, bf16 };  // of weights, activations and cache alike
std::string_view reference_type_name(ReferenceType type);
ReferenceType reference_type(std::string_view name);  // Error(usage) naming the known ones

struct ReferenceOptions {
  ReferenceType type = ReferenceType::f64;
  // Weights are decoded once and kept, 8, 4 or 2 bytes each; false: decoded again for every pass, one layer
  // at a time, so that any model fits whose largest layer does.
  bool hold_weights = true;
  int threads = 0;  // 0: one a core
};

// What a pass hands out. T rows: the tokens of the call, the first at position `length() before`.
class ReferenceObserver {
 public:
  virtual ~ReferenceObserver() = default;
  // Stream after a whole layer, [T, D].
  virtual void on_hidden(int64_t layer, std::span<const double> hidden) = 0;
  // Input of the head, [T, D].
  virtual void on_final_norm(std::span<const double> values) = 0;
  // K (after norm and RoPE) and V (after its norm) of the rows of an owner, [T, K * Hd] each.
  virtual void on_kv(int64_t layer, std::span<const double> k, std::span<const double> v) = 0;
  // One row of logits after softcap, [V], rows in order.
  virtual void on_logits(int64_t row, std::span<const double> logits) = 0;
};

class Reference {
 public:
  virtual ~Reference() = default;
  // Appends the tokens to the one sequence. Rows from `first_logits` on report logits. Error(usage) on a
  // token id out of range.
  virtual void forward(std::span<const int32_t> tokens, int64_t first_logits,
                       ReferenceObserver& observer) = 0;
  virtual void reset() = 0;  // the sequence is empty again
  virtual int64_t length() const = 0;
};

// Empty when the module is there and fits this program; else the reason and what to do about it.
std::string why_no_reference();
// REQUIRES: `source` outlives the result. Error(unsupported) with why_no_reference() when there is no module;
// Error(data) on missing or misshaped tensors.
std::unique_ptr<Reference> open_reference(const ModelSpec& spec, const TensorSource& source,
                                          const ReferenceOptions& options);

}  // namespace lapidary
