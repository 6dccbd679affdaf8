#include "formats/paths.h"

#include <algorithm>

#include "base/error.h"
#include "formats/atomic_file.h"

namespace lapidary {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  return type_at(path) != fs::file_type::not_found;
}

bool is_folder(const fs::path& path) {
  return type_at(path) == fs::file_type::directory;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    out.push_back(it->path());
  if (error) fail(ErrorCode::io, "{}: cannot look into the folder: {}", folder.string(), error.message());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace lapidary
