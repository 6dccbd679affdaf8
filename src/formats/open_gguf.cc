#include "formats/open_gguf.h"

#include "base/error.h"
namespace lapidary {
Checkpoint open_gguf(const std::filesystem::path& path) {
  fail(ErrorCode::unsupported, "{}", path.string());
}
}  // namespace lapidary
