// Flags of sampling and what a model asks for itself.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "formats/checkpoint.h"

namespace lapidary {

struct SamplingFlags {
  std::optional<float> temperature, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // "ID=V"
};
void add_sampling_flags(CLI::App& command, SamplingFlags& flags);

// Flags first, then the generation_config.json beside the model, then greedy. Without --seed a sampling run
// draws one at random. Error(usage) naming the flag.
SamplingParams sampling_params(const SamplingFlags& flags, const Checkpoint& checkpoint);

// "greedy" or "temperature 0.8, top-k 64, top-p 0.95, seed 17".
std::string sampling_text(const SamplingParams& params);

}  // namespace lapidary
