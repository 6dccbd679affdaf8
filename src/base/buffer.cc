#include "base/buffer.h"

#include <sys/mman.h>

#include "base/error.h"

namespace lapidary {

Buffer::Buffer(size_t bytes, const char* what, bool reserve_only) : size_(bytes) {
  if (bytes == 0) return;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (reserve_only ? MAP_NORESERVE : 0);
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  ensure(p != MAP_FAILED, ErrorCode::limit, "{}: no room for {} bytes", what, bytes);
  constexpr size_t kHugePage = size_t{2} << 20;
  if (!reserve_only && bytes >= 2 * kHugePage)
    ::madvise(p, bytes, MADV_HUGEPAGE);  // a hint: refusal costs speed only
  data_ = static_cast<std::byte*>(p);
}

Buffer::~Buffer() {
  if (data_) ::munmap(data_, size_);
}

}  // namespace lapidary
