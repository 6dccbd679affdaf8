#include "verify/verify.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace lapidary {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool past_a_window(const ModelSpec& spec, const VerifyPrompt& prompt) {
  return std::any_of(spec.layers.begin(), spec.layers.end(), [&](const LayerSpec& layer) {
    return layer.attention && layer.attention->window > 0 &&
           static_cast<int64_t>(prompt.tokens.size()) > layer.attention->window;
  });
}

}  // namespace

Tolerances tolerances_of(const KvTypes& kv, Arithmetic arithmetic) {
  if (kv == KvTypes(DType::f32) && arithmetic == Arithmetic::f32) {
    return {.hidden = 2e-4, .kv = 2e-4, .logits = 2e-4, .mean_kl = 1e-6};
  }
  // Activations, or keys and values, keep fewer bits. What that does to the answers is a cost, bounded by its
  // mean divergence; single values are stated. (An expert chosen by a hair may change a whole row.)
  if (arithmetic == Arithmetic::a8) return {.mean_kl = 1.5e-2};
  if (kv.keys == DType::i8) return {.mean_kl = 5e-2};  // one loud dimension takes the bits of a whole key
  const auto keeps_eight_bits = [](DType type) { return type == DType::bf16 || type == DType::i8; };
  if (keeps_eight_bits(kv.keys) || keeps_eight_bits(kv.values)) return {.mean_kl = 1e-2};
  return {.mean_kl = 1e-4};
}

PromptResult verify_prompt(Engine& engine, Reference& reference, const VerifyPrompt& prompt, int64_t n_decode,
                           const Tolerances& tolerances) {
  PromptResult result;
  const double start = now();
  const Trace got = trace_engine(engine, prompt.tokens, n_decode);
  const double between = now();
  result.expected = trace_reference(engine.spec(), reference, prompt.tokens, got.decoded);
  result.engine_seconds = between - start;
  result.reference_seconds = now() - between;
  result.comparison = compare(engine.spec(), got, result.expected);
  result.failure = first_failure(result.comparison, tolerances);
  return result;
}

MutationResult try_mutation(const Mutation& mutation, const ModelSpec& spec, const TensorSource& source,
                            const EngineOptions& options, const std::vector<VerifyPrompt>& prompts,
                            const std::vector<PromptResult>& healthy, const Tolerances& tolerances) {
  MutationResult result{mutation.name, MutationOutcome::not_applicable, mutation.lacks, ""};
  if (mutation.needs_long_prompt &&
      std::none_of(prompts.begin(), prompts.end(), [&](const auto& p) { return past_a_window(spec, p); })) {
    result.where = "no prompt is longer than a window: " + mutation.lacks;
    return result;
  }
  const std::optional<Mutant> mutant = mutation.apply(spec, source);
  if (!mutant) return result;
  result.where = mutant->where;
  result.outcome = MutationOutcome::caught;
  try {
    Engine engine(mutant->spec, *mutant->tensors, options);
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (mutation.needs_long_prompt && !past_a_window(spec, prompts[i])) continue;
      const Trace& expected = healthy[i].expected;
      const Trace got = trace_engine(engine, prompts[i].tokens, static_cast<int64_t>(expected.decoded.size()),
                                     expected.decoded);
      result.detail = first_failure(compare(spec, got, expected), tolerances);
      if (!result.detail.empty()) return result;
    }
  } catch (
      const Error& error) {  // an engine that refuses the damage caught it too; one that lacks memory did not
    if (error.code() != ErrorCode::data && error.code() != ErrorCode::usage) throw;
    result.detail = error.what();
    return result;
  }
  result.outcome = MutationOutcome::missed;
  return result;
}

}  // namespace lapidary
