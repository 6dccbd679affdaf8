// Saved states of `lapidary run`: the cache of its session and, of a chat, the messages, in one file.
#pragma once

#include <filesystem>
#include <string>

#include "cli/run_flags.h"
#include "formats/atomic_file.h"
#include "formats/mapped_file.h"

namespace lapidary {

// REQUIRES: loaded. Streams the cache; the file appears with `file.commit()`. Error(io) leaves none.
void save_state(Runner& runner, AtomicFile& file);
void save_state(Runner& runner, const std::filesystem::path& path);

// REQUIRES: loaded. Cache and messages of the runner become those of the file. An error changes neither.
void load_state(Runner& runner, const MappedFile& file);

}  // namespace lapidary
