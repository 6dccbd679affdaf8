// Verification in two steps, on some prompts. Structure: an engine in float throughout against the reference,
// strictly: does it compute what the model means? Shipped mode: an engine in the arithmetic and KV type that
// answers are computed in, against the same reference: what does that mode cost? And whether both steps see
// an engine that was damaged on purpose.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "reference/reference.h"
#include "spec/model_spec.h"
#include "spec/tensor_io.h"
#include "verify/compare.h"
#include "verify/mutations.h"
#include "verify/trace.h"

namespace lapidary {

// What a numeric mode is held to; docs/numerics.md says where the numbers come from. Float throughout: every
// value; any other mode: the mean divergence of its answers.
Tolerances tolerances_of(const KvTypes& kv, Arithmetic arithmetic);
inline Tolerances strict_tolerances() {
  return tolerances_of(DType::f32, Arithmetic::f32);
}

struct VerifyPrompt {
  std::string name;
  std::vector<int32_t> tokens;
};

struct PromptResult {
  Comparison comparison;
  std::string failure;  // empty: passed
  double engine_seconds = 0, reference_seconds = 0;
  Trace expected;  // the reference's, for the mutants
};

// n_decode: tokens that the engine decodes greedily after the prompt; the reference is fed the same ones.
PromptResult verify_prompt(Engine& engine, Reference& reference, const VerifyPrompt& prompt, int64_t n_decode,
                           const Tolerances& tolerances);

struct ShippedResult {
  LogitComparison logits;
  std::string failure;  // empty: passed
  double engine_seconds = 0;
};

// The second step of a prompt: the engine is fed what the first one was fed (expected.prompt and .decoded).
ShippedResult verify_shipped(Engine& engine, const Trace& expected, const Tolerances& tolerances);

enum class MutationOutcome { caught, missed, not_applicable };
struct MutationResult {
  std::string name;
  MutationOutcome outcome = MutationOutcome::not_applicable;
  std::string where;   // what was damaged; or what the model lacks
  std::string detail;  // how it was caught
};

// Loads the damaged model into an engine of its own and holds it against the traces that the healthy model's
// reference left. Stops at the first prompt that shows the damage.
MutationResult try_mutation(const Mutation& mutation, const ModelSpec& spec, const TensorSource& source,
                            const EngineOptions& options, const std::vector<VerifyPrompt>& prompts,
                            const std::vector<PromptResult>& healthy, const Tolerances& tolerances);

// The damage that only integer arithmetic can have, for the second step to see: activations that lost the
// low one of their two terms. What is left is what a8 computes, so a8 must not pass for a16.
MutationResult try_lost_terms(const ModelSpec& spec, const TensorSource& source, EngineOptions options,
                              const std::vector<PromptResult>& healthy);

}  // namespace lapidary
