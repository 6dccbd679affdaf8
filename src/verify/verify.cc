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

// Bounds of the mean divergence that a mode may cost, in nats.
double cost_of(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::f32: return 0;
    case Arithmetic::a16: return 1e-4;
    case Arithmetic::a8: return 1.5e-2;
  }
  fail(ErrorCode::internal, "an arithmetic without a tolerance");
}

double cost_of(DType kv) {  // keys or values alone
  switch (kv) {
    case DType::f32: return 0;
    case DType::f16: return 5e-5;
    case DType::bf16:
    case DType::i8: return 5e-3;
    default: fail(ErrorCode::internal, "a KV type without a tolerance: {}", dtype_name(kv));
  }
}

double cost_of(const KvTypes& kv) {
  // One loud dimension takes the bits of a whole key; values have none.
  const double keys = kv.keys == DType::i8 ? 5e-2 : cost_of(kv.keys);
  return keys + cost_of(kv.values);
}

}  // namespace

Tolerances tolerances_of(const KvTypes& kv, Arithmetic arithmetic) {
  if (kv == KvTypes(DType::f32) && arithmetic == Arithmetic::f32) {
    return {.hidden = 2e-4, .kv = 2e-4, .logits = 2e-4, .mean_kl = 1e-6};
  }
  // Activations, or keys and values, keep fewer bits. What that does to the answers is a cost, bounded by its
  // mean divergence; single values are stated. (An expert chosen by a hair may change a whole row.) Errors
  // that know nothing of each other add as squares do, and a divergence is a square.
  return {.mean_kl = cost_of(arithmetic) + cost_of(kv)};
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

ShippedResult verify_shipped(Engine& engine, const Trace& expected, const Tolerances& tolerances) {
  ShippedResult result;
  const double start = now();
  const Trace got =
      trace_engine(engine, expected.prompt, static_cast<int64_t>(expected.decoded.size()), expected.decoded);
  result.engine_seconds = now() - start;
  result.logits = compare_logits(engine.spec(), got, expected);
  result.failure = first_failure(result.logits, tolerances);
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

MutationResult try_lost_terms(const ModelSpec& spec, const TensorSource& source, EngineOptions options,
                              const std::vector<PromptResult>& healthy) {
  MutationResult result{"low terms of activations lost", MutationOutcome::not_applicable,
                        "the shipped mode is not a16", ""};
  if (options.arithmetic != Arithmetic::a16) return result;
  options.arithmetic = Arithmetic::a8;
  options.kv_dtype = DType::f32;  // its cost would hide what is to be seen
  Engine engine(spec, source, options);
  if (engine.arithmetic() != Arithmetic::a8) {
    result.where = "no quantised weights";
    return result;
  }
  result.where = "shipped mode: a8 judged as a16";
  result.outcome = MutationOutcome::caught;
  const Tolerances tolerances = tolerances_of(DType::f32, Arithmetic::a16);
  for (const PromptResult& prompt : healthy) {
    result.detail = verify_shipped(engine, prompt.expected, tolerances).failure;
    if (!result.detail.empty()) return result;
  }
  result.outcome = MutationOutcome::missed;
  return result;
}

}  // namespace lapidary
