// AlignedVector<T>: a std::vector whose storage starts at a cache line, for arrays that SIMD kernels walk.
// Large arrays request huge pages from the kernel, and work without them too. A step touches thousands of
// rows all over the weights; with small pages, translating their addresses takes most of the time of an
// update (docs/decisions/0002-fetch-rows-ahead.md).
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <vector>

namespace modelet {

inline constexpr size_t kCacheLine = 64;  // bytes

template <class T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(size_t n) {
    void* memory = ::operator new(n * sizeof(T), alignment(n));
    if (alignment(n) == kHugePage) ::madvise(memory, n * sizeof(T), MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* p, size_t n) { ::operator delete(p, alignment(n)); }
  template <class U>
  bool operator==(const AlignedAllocator<U>&) const {
    return true;
  }

 private:
  static constexpr std::align_val_t kHugePage{size_t{2} << 20};
  static constexpr std::align_val_t alignment(size_t n) {
    return n * sizeof(T) >= static_cast<size_t>(kHugePage) ? kHugePage : std::align_val_t(kCacheLine);
  }
};

template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

}  // namespace modelet
