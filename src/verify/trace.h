// A trace: everything that one executor shows of a prompt and the tokens decoded after it. Both executors
// fill the same form, so that a comparison knows neither.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "reference/reference.h"
#include "spec/model_spec.h"

namespace lapidary {

// R rows: the prompt's tokens, then the decoded ones but for the last, which nobody was fed.
struct Trace {
  struct Kv {
    std::vector<float> k, v;  // [R, K * Hd]
  };
  int64_t prompt_rows = 0, rows = 0;
  int64_t first_logits = 0;                // logits are kept for rows from here on
  std::vector<std::vector<float>> hidden;  // [L] times [R, D]
  std::vector<float> final_norm;           // [R, D]
  std::map<int64_t, Kv> kv;                // by owner layer
  std::vector<float> logits;               // [R - first_logits, V]
  std::vector<int32_t> prompt, decoded;    // tokens: what was given, and what followed it

  Trace() = default;
  Trace(const ModelSpec& spec, std::span<const int32_t> prompt, int64_t n_decoded);
  // Logits and tokens stay: of a long prompt the rest is gigabytes.
  void drop_states();
};

// Logits are kept for this many of a prompt's last rows: of all rows they would be gigabytes.
inline constexpr int64_t kPromptLogits = 64;

// Prefill as `run` does it, but with every row's logits asked for, so that no layer skips a row; then
// `n_decode` steps of one token. `forced`: the tokens to decode; empty: the greedy ones, ties to the lower
// id.
Trace trace_engine(Engine& engine, std::span<const int32_t> prompt, int64_t n_decode,
                   std::span<const int32_t> forced = {});
// The same rows by the reference, which is fed `decoded`.
Trace trace_reference(const ModelSpec& spec, Reference& reference, std::span<const int32_t> prompt,
                      std::span<const int32_t> decoded);

}  // namespace lapidary
