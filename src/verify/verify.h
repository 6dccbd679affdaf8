// Verification: the engine, loaded as `run` loads it, against the reference, on some prompts; and whether the
// same check sees an engine that was damaged on purpose.
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

// What the engine's numeric mode is held to; docs/numerics.md says where the numbers come from.
Tolerances tolerances_of(const KvTypes& kv, Arithmetic arithmetic);

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

}  // namespace lapidary
