// An owner of plain memory: zeroed, 64-byte aligned, huge pages asked for when it is large. Moves, never
// copies.
#pragma once

#include <cstddef>
#include <utility>

namespace lapidary {

class Buffer {
 public:
  Buffer() = default;
  // `reserve_only`: address space whose pages cost memory only once they are written (KV pools). Error(limit)
  // naming `what`.
  explicit Buffer(size_t bytes, const char* what, bool reserve_only = false);
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  std::byte* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lapidary
