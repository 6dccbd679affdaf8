// Two ways to waste bandwidth, on purpose and from outside the engine: what other stacks do without saying
// so.
//   expand-gqa     every query head gets keys and values of its own: the cache is copied to H/K times its
//   size
//                  in each step and layer, and attention reads the copies: 1 + 2 H/K passes.
//   concat-append  appending copies the whole cache of a layer to a new place: 3 passes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/team.h"
#include "engine/engine.h"
#include "engine/probe.h"
#include "spec/tensor_io.h"

namespace lapidary::kvlab {

// Query heads for each KV head are more than one somewhere.
bool has_grouped_heads(const ModelSpec& spec);

// The model whose every query head has a KV head of its own: the rows of the key and value projections are
// repeated, so that it computes the same numbers.
ModelSpec expanded_spec(const ModelSpec& spec);

class ExpandedHeads : public TensorSource {
 public:
  // REQUIRES: both outlive this, and the source holds no packed weights. `spec` is the unexpanded one.
  ExpandedHeads(const ModelSpec& spec, const TensorSource& base) : spec_(spec), base_(base) {}
  TensorData read(const Slot& slot) const override;
  void release(const Slot& slot) const override { base_.release(slot); }

 private:
  const ModelSpec& spec_;
  const TensorSource& base_;
};

// Bytes moved for each byte that the plain model reads of the cache, when a step sees so many positions.
double expected_passes_expand(const ModelSpec& spec, const KvTypes& types, int64_t positions);
double expected_passes_concat(const ModelSpec& spec, const KvTypes& types, int64_t positions);
// Of these, what is written. Memory moves it twice: a line that is written is read before.
double written_passes_expand(const ModelSpec& spec, const KvTypes& types, int64_t positions);
double written_passes_concat(const ModelSpec& spec, const KvTypes& types, int64_t positions);

// Copies pages in each step of a sequence, layer by layer as the step comes to it. What was copied is kept
// until the next step.
class CopyingProbe : public Probe {
 public:
  // REQUIRES: the engine outlives this.
  explicit CopyingProbe(const Engine& engine);
  // Looks up the pages that the sequence has before its step, and makes room for their copies. Error(limit).
  void before_step(int32_t sequence);
  int64_t read_bytes() const { return read_; }
  int64_t written_bytes() const { return written_; }
  // What the layer's copy holds: its pages one after the other.
  std::span<const std::byte> copy_of(int64_t layer) const;

  void on_hidden(int64_t, std::span<const RowId>, std::span<const float>) override {}
  void on_final_norm(std::span<const RowId>, std::span<const float>) override {}
  void on_kv(int64_t, RowId, std::span<const float>, std::span<const float>) override {}
  void on_scores(int64_t, RowId, int64_t, int64_t, std::span<const float>) override {}
  bool wants_scores() const override { return false; }

 protected:
  // Which layers have a copy.
  virtual bool copies(int64_t layer) const = 0;
  // Copies the pages of the layer's owner. One head in `group` is read, and written to as many places.
  void copy(int64_t layer, int64_t group);
  const Engine& engine_;

 private:
  Team team_;
  std::vector<std::vector<std::span<const std::byte>>> pages_;  // [L], of owners
  std::vector<Buffer> copies_;                                  // [L]
  std::vector<size_t> copied_;                                  // [L] bytes
  int64_t read_ = 0, written_ = 0;
};

// To be used on an engine of the expanded model.
class ExpandProbe : public CopyingProbe {
 public:
  // `spec`: the unexpanded one; outlives this.
  ExpandProbe(const Engine& engine, const ModelSpec& spec) : CopyingProbe(engine), spec_(spec) {}
  void on_op(const OpRows& op) override;
  bool wants_ops() const override { return true; }

 private:
  bool copies(int64_t layer) const override;
  const ModelSpec& spec_;
};

class ConcatProbe : public CopyingProbe {
 public:
  using CopyingProbe::CopyingProbe;
  void on_kv(int64_t layer, RowId, std::span<const float>, std::span<const float>) override {
    copy(layer, 1);
  }

 private:
  bool copies(int64_t layer) const override;
};

}  // namespace lapidary::kvlab
