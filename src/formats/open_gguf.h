// A GGUF file, or the first of a split set, as a checkpoint.
#pragma once

#include <filesystem>

#include "formats/checkpoint.h"

namespace lapidary {

// Siblings of a split set are found by their names (NAME-00001-of-00003.gguf) and must agree with the counts
// in their metadata.
Checkpoint open_gguf(const std::filesystem::path& path);

}  // namespace lapidary
