// An engine on a golden model, as the suites of `kv offload` use it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/harness.h"
#include "kvlab/offload/offload.h"
#include "spec/model_hash.h"
#include "support/golden_models.h"

namespace lapidary::test {

using namespace kvlab;

inline constexpr auto kSilent = [](std::string_view, int64_t, int64_t) {};

struct Lab {
  Checkpoint checkpoint;
  Engine engine;
  OffloadEngine setting;

  explicit Lab(const std::string& model, const KvTypes& types = DType::f16, int64_t keep_behind = 0,
               int64_t context = 256)
      : checkpoint(open_golden(model)),
        engine(checkpoint.spec, *checkpoint.tensors,
               {.threads = 1,
                .chunk = 64,
                .max_sequences = 3,
                .context = context,
                .kv_dtype = types,
                .keep_behind = keep_behind}),
        setting{engine, model_hash(checkpoint.spec, *checkpoint.tensors), types, keep_behind} {}

  OffloadPlan plan(int64_t length, int64_t suffix = 5) const {
    return {random_tokens(3, length, checkpoint.spec.vocab_size), suffix, 1};
  }
  size_t most() const { return most_state_bytes(setting, kRawAttachment.size()); }
  OffloadReport prove(const OffloadPlan& plan) {
    RamTier ram;
    ZstdTier zstd(std::make_unique<RamTier>(), 1, most());
    Tier* tiers[] = {&ram, &zstd};
    return prove_offload(setting, plan, tiers, kSilent);
  }
};

}  // namespace lapidary::test
