#include "engine/allocation_count.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>
#include <vector>

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

#if defined(__SANITIZE_ADDRESS__)

#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // seen when only one of a pair is inlined
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size > 0 ? size : 1);
}
void* operator new(size_t size) {
  if (void* p = operator new(size, std::nothrow)) return p;
  throw std::bad_alloc();
}
void* operator new[](size_t size) {
  return operator new(size);
}
void* operator new[](size_t size, const std::nothrow_t& nothrow) noexcept {
  return operator new(size, nothrow);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p, size_t) noexcept {
  std::free(p);
}

#else

// glibc's own entries stay behind these; operator new ends here as well.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* p, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size);
}
void* realloc(void* p, size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(p, size);
}
void* memalign(size_t alignment, size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  return memalign(alignment, size);
}
int posix_memalign(void** p, size_t alignment, size_t size) {
  *p = memalign(alignment, size);
  return *p != nullptr ? 0 : ENOMEM;
}
}

#endif

namespace lapidary {

int64_t allocation_count() {
  return allocations.load();
}

namespace {

int64_t counted(const std::function<void()>& f) {
  const int64_t before = allocation_count();
  f();
  return allocation_count() - before;
}

// A test that finds no allocation is worth as much as the counter.
TEST(AllocationCount, SeesEveryKind) {
  volatile size_t n = 100;  // keeps the compiler from leaving out what nobody looks at
  EXPECT_EQ(counted([] {}), 0);
  EXPECT_EQ(counted([&] { std::vector<int> v(n); }), 1);
  EXPECT_EQ(counted([&] { delete[] new (std::nothrow) char[n]; }), 1);
#if !defined(__SANITIZE_ADDRESS__)
  struct alignas(64) Line {
    char bytes[64];
  };
  EXPECT_EQ(counted([&] { std::vector<Line> v(n); }), 1);
  EXPECT_EQ(counted([&] { std::free(std::aligned_alloc(64, 64 * n)); }), 1);
  EXPECT_EQ(counted([&] { std::free(std::calloc(n, 2)); }), 1);
#endif
  EXPECT_GE(counted([&] { std::thread([&] { std::vector<int> v(n); }).join(); }), 1);
}

}  // namespace
}  // namespace lapidary
