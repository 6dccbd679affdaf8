#include "engine/page_pool.h"

#include "base/error.h"

namespace lapidary {

PagePool::PagePool(size_t page_bytes, int64_t max_pages, const char* name)
    : page_bytes_(page_bytes),
      name_(name),
      memory_(page_bytes * static_cast<size_t>(max_pages), name, true),
      holders_(static_cast<size_t>(max_pages)),
      max_pages_(max_pages) {
  free_.reserve(static_cast<size_t>(max_pages));
}

int32_t PagePool::take() {
  int32_t page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    ensure(fresh_ < max_pages_, ErrorCode::limit, "{}: all {} pages are in use", name_, max_pages_);
    page = fresh_++;
  }
  holders_[static_cast<size_t>(page)] = 1;
  in_use_++;
  return page;
}

void PagePool::share(int32_t page) {
  holders_[static_cast<size_t>(page)]++;
}

void PagePool::give_back(int32_t page) {
  if (--holders_[static_cast<size_t>(page)] > 0) return;
  free_.push_back(page);
  in_use_--;
}

}  // namespace lapidary
