// What `score` can score with: the engine, or the reference.
#pragma once

#include <memory>

#include "cli/load.h"
#include "cli/score.h"
#include "formats/checkpoint.h"
#include "reference/reference.h"

namespace lapidary {

std::unique_ptr<ScoreExecutor> engine_executor(const Checkpoint& checkpoint, const EngineFlags& flags);
// Error(unsupported) when this build has no reference.
std::unique_ptr<ScoreExecutor> reference_executor(const Checkpoint& checkpoint, ReferenceType type,
                                                  int threads);

// The reference keeps decoded weights when they take less than half of this machine's memory.
bool reference_weights_fit(const ModelSpec& spec, ReferenceType type);

}  // namespace lapidary
