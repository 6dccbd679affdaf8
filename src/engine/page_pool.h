// Equal pages of memory with counts of their holders: a page that several sequences share is there once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.h"

namespace lapidary {

class PagePool {
 public:
  PagePool(size_t page_bytes, int64_t max_pages, const char* name);
  int32_t take();                // with one holder; Error(limit) when none is left
  void share(int32_t page);      // one holder more
  void give_back(int32_t page);  // one holder less; free when it was the last
  int32_t holders(int32_t page) const { return holders_[static_cast<size_t>(page)]; }
  bool is_shared(int32_t page) const { return holders(page) > 1; }
  std::byte* data(int32_t page) const { return memory_.data() + static_cast<size_t>(page) * page_bytes_; }
  int64_t page_bytes() const { return static_cast<int64_t>(page_bytes_); }
  int64_t bytes_in_use() const { return in_use_ * static_cast<int64_t>(page_bytes_); }
  int64_t bytes_reserved() const { return static_cast<int64_t>(memory_.size()); }

 private:
  size_t page_bytes_;
  const char* name_;
  Buffer memory_;
  std::vector<int32_t> holders_;  // of each page; 0: free
  std::vector<int32_t> free_;
  int32_t fresh_ = 0;  // pages never used so far
  int64_t max_pages_, in_use_ = 0;
};

}  // namespace lapidary
