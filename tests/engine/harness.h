// What the engine's suites share: engines on the golden models, and ways to run tokens through.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "support/golden_models.h"

namespace lapidary::test {

inline EngineOptions one_thread() {  // in the default arithmetic
  return {.threads = 1};
}
inline EngineOptions in_float(int threads = 1) {  // where every value is held to float's own error
  return {.threads = threads, .arithmetic = Arithmetic::f32};
}

// A golden model in an arithmetic. Float weights are multiplied in float in every one.
struct ModelMode {
  std::string model;
  Arithmetic arithmetic = kDefaultArithmetic;
};

// What has a quantised weight, in each of the arithmetics; all else as it ships.
inline std::vector<ModelMode> in_modes(const std::vector<std::string>& models,
                                       const std::vector<Arithmetic>& arithmetics) {
  std::vector<ModelMode> modes;
  for (const std::string& model : models) {
    const bool is_quantised = is_gguf_model(model) && gguf_type(model) != "F32" && gguf_type(model) != "BF16";
    if (!is_quantised) modes.push_back({model});
    for (const Arithmetic arithmetic : arithmetics)
      if (is_quantised) modes.push_back({model, arithmetic});
  }
  return modes;
}

inline std::string name_of_mode(const testing::TestParamInfo<ModelMode>& info) {
  return test_name(info.param.model) + "_" + std::string(arithmetic_name(info.param.arithmetic));
}

// The instruction sets of this machine, by name.
inline std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const auto isa : kernels::kIsas)
    if (kernels::isa_available(isa)) names.emplace_back(kernels::isa_name(isa));
  return names;
}

// Logits of all positions of `tokens`, [n, V], the tokens fed in pieces of at most `piece` (0: in one).
inline std::vector<float> feed_all(Engine& engine, int32_t sequence, std::span<const int32_t> tokens,
                                   size_t piece = 0, Probe* probe = nullptr) {
  const auto vocab = static_cast<size_t>(engine.spec().vocab_size);
  if (piece == 0) piece = tokens.size();
  std::vector<float> logits(tokens.size() * vocab);
  for (size_t start = 0; start < tokens.size(); start += piece) {
    const Feed feed{sequence, tokens.subspan(start, std::min(piece, tokens.size() - start)), Want::all};
    engine.forward(
        {&feed, 1},
        [&](size_t, int64_t index, std::span<const float> row) {
          std::copy(
              row.begin(), row.end(),
              logits.begin() + static_cast<std::ptrdiff_t>((start + static_cast<size_t>(index)) * vocab));
        },
        probe);
  }
  return logits;
}

// The same in a sequence of its own.
inline std::vector<float> run_alone(Engine& engine, std::span<const int32_t> tokens, size_t piece = 0,
                                    Probe* probe = nullptr) {
  const int32_t sequence = engine.open();
  std::vector<float> logits = feed_all(engine, sequence, tokens, piece, probe);
  engine.close(sequence);
  return logits;
}

inline std::vector<float> run_model(const ModelSpec& spec, const TensorSource& source, const Tokens& tokens,
                                    const EngineOptions& options = one_thread(), Probe* probe = nullptr) {
  Engine engine(spec, source, options);
  return run_alone(engine, tokens, 0, probe);
}

// Logits of the last token only.
inline std::vector<float> feed_last(Engine& engine, int32_t sequence, std::span<const int32_t> tokens) {
  std::vector<float> logits;
  const Feed feed{sequence, tokens, Want::last};
  engine.forward({&feed, 1},
                 [&](size_t, int64_t, std::span<const float> row) { logits.assign(row.begin(), row.end()); });
  return logits;
}

inline int32_t best_of(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

inline std::span<const float> row_of(const std::vector<float>& matrix, size_t row, size_t width) {
  return std::span(matrix).subspan(row * width, width);
}

// Keeps all that a probe sees, by layer and position, of one sequence.
class Recorder : public Probe {
 public:
  explicit Recorder(bool scores = false) : wants_scores_(scores) {}

  void on_hidden(int64_t layer, std::span<const RowId> rows, std::span<const float> hidden) override {
    put(hidden_[layer], rows, hidden);
  }
  void on_final_norm(std::span<const RowId> rows, std::span<const float> values) override {
    put(final_norm_, rows, values);
  }
  void on_kv(int64_t layer, RowId row, std::span<const float> k, std::span<const float> v) override {
    put(keys_[layer], {&row, 1}, k);
    put(values_[layer], {&row, 1}, v);
  }
  void on_scores(int64_t layer, RowId row, int64_t head, int64_t first, std::span<const float> p) override {
    scores_.push_back({layer, row.position, head, first, {p.begin(), p.end()}});
  }
  bool wants_scores() const override { return wants_scores_; }

  using ByPosition = std::map<int64_t, std::vector<float>>;
  struct Scores {
    int64_t layer, position, head, first;
    std::vector<float> p;
  };
  const std::map<int64_t, ByPosition>& hidden() const { return hidden_; }
  const ByPosition& final_norm() const { return final_norm_; }
  const std::map<int64_t, ByPosition>& keys() const { return keys_; }
  const std::map<int64_t, ByPosition>& values() const { return values_; }
  const std::vector<Scores>& scores() const { return scores_; }

  // All positions one after the other, [n, width].
  static std::vector<float> joined(const ByPosition& rows) {
    std::vector<float> out;
    for (const auto& [position, row] : rows) out.insert(out.end(), row.begin(), row.end());
    return out;
  }

 private:
  static void put(ByPosition& to, std::span<const RowId> rows, std::span<const float> values) {
    const size_t width = values.size() / rows.size();
    for (size_t r = 0; r < rows.size(); ++r) {
      const std::span<const float> row = values.subspan(r * width, width);
      EXPECT_TRUE(to.emplace(rows[r].position, std::vector<float>(row.begin(), row.end())).second)
          << "position " << rows[r].position << " was reported twice";
    }
  }
  bool wants_scores_;
  std::map<int64_t, ByPosition> hidden_, keys_, values_;
  ByPosition final_norm_;
  std::vector<Scores> scores_;
};

}  // namespace lapidary::test
