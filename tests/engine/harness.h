// What the engine's suites share: golden models by name, engines on them, and ways to run tokens through.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "formats/checkpoint.h"
#include "spec/tensor_io.h"
#include "support/golden.h"

namespace lapidary::test {

using Tokens = std::vector<int32_t>;

// Every text model of the goldens, by folder. The sharded one has the weights and so the case of the other.
inline const std::vector<std::string>& golden_models() {
  static const std::vector<std::string> names = {
      "gemma4-e2b-tiny",        "gemma4-e4b-tiny", "gemma4-12b-tiny",    "gemma4-26b-tiny",
      "gemma4-31b-tiny",        "gemma3-tiny",     "llama-tiny",         "llama3-tiny",
      "gemma4-e2b-wide",        "gemma4-12b-wide", "gemma4-12b-mm-tiny", "gemma4-e2b-mm-tiny",
      "gemma4-31b-tiny-sharded"};
  return names;
}

inline std::string case_name(const std::string& model) {
  const size_t end = model.rfind("-sharded");
  return end == std::string::npos ? model : model.substr(0, end);
}

inline Checkpoint open_golden_model(const std::string& name) {
  return open_checkpoint(data_path("models/" + name));
}
inline Golden golden_case(const std::string& name) {
  return Golden(data_path("cases/" + case_name(name) + ".safetensors"));
}

// A test's name may hold letters, digits and underscores only.
inline std::string test_name(const std::string& name) {
  std::string out = name;
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return out;
}
inline std::string name_of_model(const testing::TestParamInfo<std::string>& info) {
  return test_name(info.param);
}

inline Tokens tokens_of(const Golden& golden, const std::string& name = "input_ids") {
  const std::vector<int64_t> wide = golden.ints(name);
  return Tokens(wide.begin(), wide.end());
}

inline EngineOptions one_thread() {
  return {.threads = 1};
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

// A source with some of its tensors replaced; what is not replaced is passed on.
class PatchedTensors : public TensorSource {
 public:
  explicit PatchedTensors(const TensorSource& base) : base_(base) {}
  TensorData read(const Slot& slot) const override {
    return patches_.contains(slot) ? patches_.read(slot) : base_.read(slot);
  }
  // Replaces a tensor by floats of the given shape.
  void set(const Slot& slot, const Shape& shape, const std::vector<float>& values) {
    patches_.write(slot, {DType::f32, shape, std::as_bytes(std::span(values))});
  }
  // Replaces a tensor by what `change` makes of its elements.
  void change(const Slot& slot, const std::function<void(std::vector<float>&)>& change) {
    const TensorData data = read(slot);
    std::vector<float> values = to_floats(data.view);
    change(values);
    set(slot, data.view.shape, values);
  }
  void fill(const Slot& slot, float value) {
    change(slot, [&](std::vector<float>& values) { std::fill(values.begin(), values.end(), value); });
  }

 private:
  const TensorSource& base_;
  MemoryTensors patches_;
};

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

// Sets an environment variable for the life of the object.
class ScopedEnvironment {
 public:
  ScopedEnvironment(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* old = std::getenv(name_.c_str())) old_ = old;
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~ScopedEnvironment() {
    if (old_) {
      setenv(name_.c_str(), old_->c_str(), 1);
    } else {
      unsetenv(name_.c_str());
    }
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;

 private:
  std::string name_;
  std::optional<std::string> old_;
};

}  // namespace lapidary::test
