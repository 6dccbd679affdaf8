// What outsiders see of a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lapidary {

// A page of the KV cache as it lies in memory.
struct KvPageView {
  int64_t layer = 0;                 // the owner
  int64_t first = 0, positions = 0;  // positions [first, first + positions) of the sequence are in it
  int64_t room = 0;                  // positions that it has room for
  bool shared = false;               // with another sequence
  int64_t holders = 1;               // sequences that hold it
  bool sliding = false;              // of which pool
  int64_t pool_offset = 0;           // bytes from the pool's beginning
  // What lies there: per kv head keys, then values; padding included (kernels/kv_layout.h).
  std::span<const std::byte> bytes;
  int64_t pool_bytes = 0;  // what it takes of the pool: pages of a pool are as large as its largest
};

}  // namespace lapidary
