// What the suites of fork, trim, save and restore share: hybrid models, texts that reach far beyond their
// windows, and what a fresh run says of them.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "engine/harness.h"
#include "kernels/kernels.h"
#include "spec/model_hash.h"
#include "support/compare.h"

namespace lapidary::test {

inline constexpr std::array<KvTypes, 3> kKvTypes{DType::f32, DType::f16, KvTypes(DType::i8, DType::bf16)};

// Windows of 7, 8 and 16, borrowers, experts, k_eq_v; one model without windows; one whose weights are
// quantised, so that the default arithmetic is another than float.
inline const std::vector<std::string>& state_models() {
  static const std::vector<std::string> names = {"gemma4-e2b-tiny", "gemma4-e4b-tiny",     "gemma4-26b-tiny",
                                                 "gemma4-12b-tiny", "gemma4-e2b-wide",     "gemma3-tiny",
                                                 "llama-tiny",      "gemma4-e2b-tiny-Q8_0"};
  return names;
}

// The small ones of them, for plain loops.
inline std::vector<std::string> small_state_models() {
  std::vector<std::string> names = state_models();
  std::erase(names, "gemma4-e2b-wide");
  return names;
}

inline Tokens joined(std::span<const int32_t> a, std::span<const int32_t> b) {
  Tokens all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

class StateSuite : public testing::TestWithParam<std::string> {
 protected:
  StateSuite() : checkpoint(open_golden(GetParam())) {
    const Tokens text = tokens_of(golden_of(GetParam()));
    const auto n = static_cast<int32_t>(checkpoint.spec.vocab_size);
    for (size_t i = 0; i < 144; ++i) base.push_back(text[i % text.size()]);
    for (size_t i = 0; i < 40; ++i) {
      left.push_back(text[text.size() - 1 - i % text.size()]);
      right.push_back((text[i % text.size()] + 7) % n);
    }
  }
  Engine make(EngineOptions options) const {
    if (options.threads == 0) options.threads = 1;
    return Engine(checkpoint.spec, *checkpoint.tensors, options);
  }
  size_t vocab() const { return static_cast<size_t>(checkpoint.spec.vocab_size); }

  // Logits of the last `count` of these tokens, one thread, one step, nothing cached.
  std::vector<float> fresh(const KvTypes& kv, std::span<const int32_t> tokens, size_t count) {
    std::unique_ptr<Engine>& engine = reference_[kv_types_name(kv)];
    if (!engine) {
      engine = std::make_unique<Engine>(checkpoint.spec, *checkpoint.tensors,
                                        EngineOptions{.threads = 1, .chunk = 512, .kv_dtype = kv});
    }
    const std::vector<float> all = run_alone(*engine, tokens);
    return {all.end() - static_cast<std::ptrdiff_t>(count * vocab()), all.end()};
  }

  // By the definition: all that the query at `length` sees must be in pages that `full` positions still keep.
  int64_t expected_restart(int64_t full, int64_t keep_behind) const {
    int64_t earliest = 0;
    for (int64_t i = 0; i < checkpoint.spec.n_layers(); ++i) {
      const LayerSpec& layer = checkpoint.spec.layers[static_cast<size_t>(i)];
      if (!layer.owns_kv(i) || layer.attention->window == 0) continue;
      const int64_t window = layer.attention->window, first_seen = full - window + 1 - keep_behind;
      const int64_t first_held = first_seen > 0 ? first_seen / kernels::kBlock * kernels::kBlock : 0;
      for (int64_t length = full; length > 0; --length) {
        if (std::max<int64_t>(0, length - window + 1) >= first_held) continue;
        earliest = std::max(earliest, length + 1);
        break;
      }
    }
    return earliest;
  }
  int64_t owners() const {
    int64_t count = 0;
    for (int64_t i = 0; i < checkpoint.spec.n_layers(); ++i)
      count += checkpoint.spec.layers[static_cast<size_t>(i)].owns_kv(i) ? 1 : 0;
    return count;
  }
  bool has_window() const {
    return std::any_of(checkpoint.spec.layers.begin(), checkpoint.spec.layers.end(),
                       [](const LayerSpec& layer) { return layer.attention->window > 0; });
  }

  Checkpoint checkpoint;
  Tokens base;         // 144 tokens
  Tokens left, right;  // two ways to go on, 40 tokens each

 private:
  std::map<std::string, std::unique_ptr<Engine>> reference_;
};

// f(options) for each way to run that must not matter.
inline void for_ways(FunctionRef<void(const EngineOptions&, const std::string& label)> f) {
  for (const KvTypes& kv : kKvTypes) {
    for (const int64_t chunk : {1, 7, 64}) {
      for (const int threads : {1, 2})
        f({.threads = threads, .chunk = chunk, .kv_dtype = kv},
          fmt::format("kv {}, chunk {}, {} threads", kv_types_name(kv), chunk, threads));
    }
  }
}

}  // namespace lapidary::test
