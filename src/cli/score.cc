#include "cli/score.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "cli/load.h"
#include "formats/atomic_file.h"
#include "formats/safetensors.h"

namespace lapidary {

std::vector<ScoreWindow> plan_windows(int64_t tokens, int64_t window, int64_t stride, int64_t reserved) {
  ensure(stride < window - reserved || tokens <= window, ErrorCode::usage,
         "--stride {}: must be smaller than the {} tokens of text in a window, so that every token is scored "
         "with some before it",
         stride, window - reserved);
  std::vector<ScoreWindow> windows;
  for (int64_t begin = 0, scored = 1; scored < tokens; begin += stride) {
    const int64_t length = begin == 0 ? window : window - reserved;
    const int64_t end = std::min(tokens, begin + length);
    if (end <= scored) continue;
    windows.push_back({begin, end, scored});
    scored = end;
  }
  return windows;
}

double log_probability(std::span<const double> logits, int32_t id) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double z : logits) sum += std::exp(z - highest);
  return logits[static_cast<size_t>(id)] - highest - std::log(sum);
}

ScoreDump::ScoreDump(const ModelSpec& spec, int64_t tokens) : spec_(spec), tokens_(tokens) {
  const auto add = [&](const std::string& name, Shape shape) {
    const int64_t count = element_count(shape, name);
    entries_[name] = {std::move(shape), std::vector<float>(static_cast<size_t>(count))};
  };
  add("logits", {tokens, spec.vocab_size});
  add("hidden", {spec.n_layers(), tokens, spec.d_model});
  add("final_norm", {tokens, spec.d_model});
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (!layer.owns_kv(i)) continue;
    for (const char* which : {"k", "v"}) {
      add(fmt::format("kv.{}.{}", i, which),
          {layer.attention->n_kv_heads, tokens, layer.attention->head_dim});
    }
  }
}

int64_t ScoreDump::bytes_needed(const ModelSpec& spec, int64_t tokens) {
  int64_t per_token = spec.vocab_size + (spec.n_layers() + 1) * spec.d_model;
  for (int64_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    if (layer.owns_kv(i)) per_token += 2 * layer.attention->n_kv_heads * layer.attention->head_dim;
  }
  return per_token * tokens * 4;
}

void ScoreDump::put_logits(int64_t row, std::span<const double> logits) {
  copy(logits, entry("logits").values, row * spec_.vocab_size);
}

void ScoreDump::write(const std::string& path, std::span<const int32_t> ids,
                      std::span<const double> logprobs) const {
  const std::vector<int64_t> input_ids(ids.begin(), ids.end());
  const std::vector<float> rounded(logprobs.begin(), logprobs.end());
  std::map<std::string, TensorView> tensors;
  for (const auto& [name, item] : entries_)
    tensors[name] = {DType::f32, item.shape, std::as_bytes(std::span(item.values))};
  tensors["input_ids"] = {DType::i64, {tokens_}, std::as_bytes(std::span(input_ids))};
  tensors["logprobs"] = {DType::f32, {tokens_ - 1}, std::as_bytes(std::span(rounded))};
  write_file_atomically(path, write_safetensors(tensors));
}

ScoreResult score_ids(ScoreExecutor& executor, std::span<const int32_t> ids,
                      const std::vector<ScoreWindow>& windows, bool repeat_bos, ScoreDump* dump,
                      FunctionRef<void(int64_t done, int64_t total)> on_progress) {
  ScoreResult result;
  result.logprobs.resize(ids.size() - 1);
  result.windows = static_cast<int64_t>(windows.size());
  const auto total = static_cast<int64_t>(ids.size());
  constexpr int64_t kPiece = 256;  // rows between two signs of life
  const double start = now_seconds();
  for (const ScoreWindow& window : windows) {
    executor.begin();
    if (repeat_bos && window.begin > 0) {
      executor.feed(ids.first(1), false, nullptr, [](int64_t, std::span<const double>) {});
    }
    for (int64_t at = window.begin; at < window.end;) {
      // Rows up to the one before the first scored token are context: their logits are not asked for, unless
      // all are dumped.
      const int64_t asked = dump != nullptr ? window.begin : std::max(window.begin, window.first_scored - 1);
      const bool wanted = at >= asked;
      const int64_t end = std::min({window.end, at + kPiece, wanted ? window.end : asked});
      executor.feed(ids.subspan(static_cast<size_t>(at), static_cast<size_t>(end - at)), wanted, dump,
                    [&](int64_t index, std::span<const double> logits) {
                      const int64_t next = at + index + 1;
                      if (dump != nullptr) dump->put_logits(at + index, logits);
                      if (next >= window.first_scored && next < window.end) {
                        result.logprobs[static_cast<size_t>(next - 1)] =
                            log_probability(logits, ids[static_cast<size_t>(next)]);
                      }
                    });
      at = end;
      on_progress(at, total);
    }
  }
  result.seconds = now_seconds() - start;
  return result;
}

}  // namespace lapidary
