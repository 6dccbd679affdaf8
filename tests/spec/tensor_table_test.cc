#include "spec/tensor_table.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "spec/specs.h"
#include "spec/tensor_io.h"
#include "support/compare.h"

namespace lapidary::test {
namespace {

std::vector<TensorInfo> walk(const ModelSpec& spec) {
  std::vector<TensorInfo> out;
  for_each_tensor(spec, [&](const TensorInfo& info) { out.push_back(info); });
  return out;
}

std::vector<std::string> lines(const ModelSpec& spec, int64_t layer) {
  std::vector<std::string> out;
  for (const TensorInfo& info : walk(spec)) {
    if (info.slot.layer == layer) out.push_back(slot_name(info.slot) + " " + shape_text(info.shape));
  }
  return out;
}

using Lines = std::vector<std::string>;

TEST(TensorTable, ListsTheModelsOwn) {
  EXPECT_EQ(lines(gemma_like(), -1), (Lines{"token_embedding [96, 32]", "ple_embedding [96, 32]",
                                            "ple_projection [32, 32]", "ple_norm [8]", "output_norm [32]"}));
  EXPECT_EQ(lines(llama_like(), -1),
            (Lines{"token_embedding [40, 16]", "output_norm [16]", "output_head [40, 16]"}));
}

TEST(TensorTable, ListsAnOwner) {
  EXPECT_EQ(
      lines(gemma_like(), 0),
      (Lines{"layers.0.attention_norm [32]", "layers.0.query [32, 32]", "layers.0.key [16, 32]",
             "layers.0.value [16, 32]", "layers.0.query_norm [8]", "layers.0.key_norm [8]",
             "layers.0.attention_output [32, 32]", "layers.0.post_attention_norm [32]",
             "layers.0.ffn_norm [32]", "layers.0.gate [24, 32]", "layers.0.up [24, 32]",
             "layers.0.down [32, 24]", "layers.0.post_ffn_norm [32]", "layers.0.ple_gate [8, 32]",
             "layers.0.ple_output [32, 8]", "layers.0.ple_post_norm [32]", "layers.0.layer_scalar [1]"}));
}

TEST(TensorTable, LeavesOutValueWhereItIsMadeFromTheKey) {
  const auto got = lines(gemma_like(), 1);
  EXPECT_EQ(got[2], "layers.1.key [16, 32]");
  EXPECT_EQ(got[3], "layers.1.query_norm [16]");
}

TEST(TensorTable, LeavesOutKvOfABorrower) {
  EXPECT_EQ(
      lines(gemma_like(), 3),
      (Lines{"layers.3.attention_norm [32]", "layers.3.query [64, 32]", "layers.3.query_norm [16]",
             "layers.3.attention_output [32, 64]", "layers.3.post_attention_norm [32]",
             "layers.3.ffn_norm [32]", "layers.3.gate [48, 32]", "layers.3.up [48, 32]",
             "layers.3.down [32, 48]", "layers.3.post_ffn_norm [32]", "layers.3.ple_gate [8, 32]",
             "layers.3.ple_output [32, 8]", "layers.3.ple_post_norm [32]", "layers.3.layer_scalar [1]"}));
}

TEST(TensorTable, ListsExperts) {
  const auto got = lines(expert_like(), 0);
  EXPECT_EQ(
      Lines(got.begin() + 5, got.end()),
      (Lines{"layers.0.ffn_norm [16]", "layers.0.gate [20, 16]", "layers.0.up [20, 16]",
             "layers.0.down [16, 20]", "layers.0.dense_post_norm [16]", "layers.0.router_scale [16]",
             "layers.0.router [6, 16]", "layers.0.expert_pre_norm [16]",
             "layers.0.expert_gate_up [6, 10, 16]", "layers.0.expert_down [6, 16, 5]",
             "layers.0.expert_scale [6]", "layers.0.expert_post_norm [16]", "layers.0.post_ffn_norm [16]"}));
}

TEST(TensorTable, LeavesOutCutSublayers) {
  ModelSpec spec = llama_like();
  spec.layers[0].attention.reset();
  spec.layers[1].ffn.reset();
  EXPECT_EQ(lines(spec, 0), (Lines{"layers.0.ffn_norm [16]", "layers.0.gate [20, 16]", "layers.0.up [20, 16]",
                                   "layers.0.down [16, 20]"}));
  EXPECT_EQ(lines(spec, 1).size(), 5u);
}

TEST(TensorTable, SaysHowTensorsAreCutGatheredAndStored) {
  const auto by_name = [](const ModelSpec& spec) {
    std::map<std::string, TensorInfo> out;
    for (const TensorInfo& info : walk(spec)) out[slot_name(info.slot)] = info;
    return out;
  };
  auto g = by_name(gemma_like()), e = by_name(expert_like());
  EXPECT_TRUE(g["token_embedding"].gathered);
  EXPECT_TRUE(g["ple_embedding"].gathered);
  EXPECT_FALSE(g["ple_projection"].gathered);
  EXPECT_EQ(g["layers.0.query"].shard_axis, ShardAxis::rows);
  EXPECT_EQ(g["layers.0.key"].shard_axis, ShardAxis::rows);
  EXPECT_EQ(g["layers.0.attention_output"].shard_axis, ShardAxis::columns);
  EXPECT_EQ(g["layers.0.up"].shard_axis, ShardAxis::rows);
  EXPECT_EQ(g["layers.0.down"].shard_axis, ShardAxis::columns);
  EXPECT_EQ(e["layers.0.expert_down"].shard_axis, ShardAxis::experts);
  EXPECT_EQ(g["layers.0.attention_norm"].shard_axis, ShardAxis::none);
  for (const auto& [name, info] : g)
    EXPECT_EQ(info.dtype_rule == DTypeRule::float_only, info.shape.size() == 1) << name;
}

TEST(TensorTable, NamesEachSlotOnce) {
  for (const ModelSpec& spec : {gemma_like(), llama_like(), expert_like()}) {
    std::set<std::string> names;
    std::set<Slot> slots;
    for (const TensorInfo& info : walk(spec)) {
      EXPECT_TRUE(names.insert(slot_name(info.slot)).second) << slot_name(info.slot);
      EXPECT_TRUE(slots.insert(info.slot).second) << slot_name(info.slot);
    }
  }
}

// A source with every tensor of a spec, zeros in f32.
MemoryTensors zeros(const ModelSpec& spec, const Slot* without = nullptr) {
  MemoryTensors out;
  for_each_tensor(spec, [&](const TensorInfo& info) {
    if (without != nullptr && info.slot == *without) return;
    const std::vector<float> data(static_cast<size_t>(element_count(info.shape, "test")));
    out.write(info.slot, {DType::f32, info.shape, std::as_bytes(std::span(data))});
  });
  return out;
}

TEST(CheckTensors, NamesEachMissingTensor) {
  for (const ModelSpec& spec : {gemma_like(), llama_like(), expert_like()}) {
    EXPECT_NO_THROW(check_tensors(spec, zeros(spec)));
    for (const TensorInfo& info : walk(spec)) {
      const MemoryTensors tensors = zeros(spec, &info.slot);
      EXPECT_FALSE(tensors.contains(info.slot));
      expect_error([&] { check_tensors(spec, tensors); }, ErrorCode::data,
                   slot_name(info.slot) + ": expected a tensor, got none");
    }
  }
}

TEST(CheckTensors, NamesShapeFormatAndLength) {
  const ModelSpec spec = llama_like();
  const std::vector<std::byte> bytes(4 * 16 * 40);
  const auto check = [&](const Slot& slot, DType dtype, Shape shape, size_t size, std::string_view part) {
    MemoryTensors tensors = zeros(spec);
    tensors.write(slot, {dtype, std::move(shape), std::span(bytes).first(size)});
    expect_error([&] { check_tensors(spec, tensors); }, ErrorCode::data, part);
  };
  check({TensorKind::query, 1}, DType::f32, {16, 15}, 4 * 240,
        "layers.1.query: shape: expected [16, 16], got [16, 15]");
  check({TensorKind::query, 1}, DType::i32, {16, 16}, 4 * 256,
        "layers.1.query: dtype: expected f32, f16, bf16 or a block format, got i32");
  check({TensorKind::output_norm, -1}, DType::q8_0, {16}, 16,
        "output_norm: dtype: expected f32, f16 or bf16, got q8_0");
  check({TensorKind::query, 1}, DType::q8_0, {16, 16}, 16 * 17,
        "layers.1.query: row length: expected a multiple of 32 for q8_0, got 16");
  check({TensorKind::query, 1}, DType::bf16, {16, 16}, 510,
        "layers.1.query: expected 512 bytes of bf16, got 510");
}

TEST(MemoryTensors, KeepsACopyAndLetsItBeReplaced) {
  MemoryTensors tensors;
  const Slot slot{TensorKind::layer_scalar, 2};
  {
    const float x = 0.5f;
    tensors.write(slot, {DType::f32, {1}, std::as_bytes(std::span(&x, 1))});
  }
  EXPECT_EQ(to_floats(tensors.read(slot).view), std::vector<float>{0.5f});
  const float y = 0.75f;
  const TensorData before = tensors.read(slot);
  tensors.write(slot, {DType::f32, {1}, std::as_bytes(std::span(&y, 1))});
  EXPECT_EQ(to_floats(tensors.read(slot).view), std::vector<float>{0.75f});
  EXPECT_EQ(to_floats(before.view), std::vector<float>{0.5f});  // whoever read it keeps what was read
}

}  // namespace
}  // namespace lapidary::test
