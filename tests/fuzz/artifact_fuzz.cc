// Any bytes as a packed model: either an Error, or a valid spec whose every tensor is in its place and can be
// read. The first byte says whether the checksums are made right first: then the parser has to find by itself
// what is wrong.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/error.h"
#include "formats/artifact_bytes.h"
#include "spec/tensor_io.h"

namespace lapidary {
namespace {

bool inside(std::span<const std::byte> part, std::span<const std::byte> all) {
  return part.data() >= all.data() && part.data() + part.size() <= all.data() + all.size();
}

// With the right checksums for the sections as they are, and for an index that can be read at all.
std::vector<std::byte> resealed(std::vector<std::byte> bytes) {
  constexpr size_t kEnds = sizeof(ArtifactStart) + sizeof(ArtifactEnd);
  if (bytes.size() < kEnds) return bytes;
  const ArtifactEnd end = test::end_of(bytes);
  const auto room = static_cast<int64_t>(bytes.size() - sizeof end);
  if (end.index_offset < 0 || end.index_length < 0 || end.index_offset > room ||
      end.index_length != room - end.index_offset || end.index_length > (1 << 20))
    return bytes;
  Artifact artifact;
  try {
    artifact_index_from_json(test::index_of(bytes), artifact);
  } catch (const Error&) {
    return test::with_index(bytes, test::index_of(bytes));
  }
  artifact.bytes = bytes;
  for (ArtifactSection& section : artifact.sections) {
    if (section.offset < 0 || section.length < 0 || section.offset > room ||
        section.length > room - section.offset)
      continue;
    section.hash = hash128(artifact.bytes_of(section));
  }
  return test::with_index(bytes, artifact_index_to_json(artifact));
}

void check(std::span<const std::byte> bytes) {
  const auto artifact = std::make_shared<Artifact>();
  ModelSpec spec;
  std::shared_ptr<const TensorSource> tensors;
  try {
    *artifact = parse_artifact(bytes, "fuzz");
    spec = artifact_spec(*artifact);
    tensors = artifact_tensors(artifact, spec);
  } catch (const Error&) {
    return;
  }
  // What was accepted must keep its promises: an Error here is a find.
  for_each_matrix(spec, [&](const TensorInfo& info) {
    const PackedTensor packed = tensors->packed(info.slot).value();
    if (packed.shape != info.shape || !inside(packed.bytes, bytes)) std::abort();
  });
  for_each_tensor(spec, [&](const TensorInfo& info) {
    if (info.is_matrix()) return;
    const TensorData data = tensors->read(info.slot);
    if (data.view.shape != info.shape || !inside(data.view.bytes, bytes)) std::abort();
    to_floats(data.view);
  });
  try {
    verify_artifact(*artifact, [](int64_t, int64_t) {});
  } catch (const Error&) {
    return;
  }
}

}  // namespace
}  // namespace lapidary

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data + 1, size - 1));
  std::vector<std::byte> bytes(input.begin(), input.end());
  if (data[0] & 1) bytes = lapidary::resealed(std::move(bytes));
  lapidary::check(bytes);
  return 0;
}
