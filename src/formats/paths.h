// Questions to the file system whose answers may be that it does not tell: Error(io) naming the path then.
#pragma once

#include <filesystem>
#include <vector>

namespace lapidary {

// Links followed; false too when a folder above is missing.
bool is_there(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);
// What a folder holds, in order of names.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

}  // namespace lapidary
