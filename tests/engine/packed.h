// Models packed into a file and opened again, as `lapidary pack` and `run` do it.
#pragma once

#include <filesystem>

#include "engine/pack.h"
#include "formats/artifact.h"
#include "formats/artifact_writer.h"
#include "spec/model_hash.h"

namespace lapidary::test {

inline Artifact pack_to(const std::filesystem::path& path, const Checkpoint& source, int threads = 2) {
  Team team(threads);
  ArtifactWriter writer(path, source, model_hash(source.spec, *source.tensors), {});
  pack_model(source.spec, *source.tensors, team, writer, [](int64_t, int64_t) {});
  writer.commit();
  return writer.written();
}

}  // namespace lapidary::test
