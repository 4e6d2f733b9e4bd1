// AlignedVector<T>: a std::vector whose storage starts at a cache line, for arrays that SIMD kernels walk.
// Arrays of 2 MiB or more have their own pages, aligned to 2 MiB and huge where the kernel provides such, which go back
// to the machine when the array is destroyed. A step touches thousands of rows all over the weights; with small pages,
// translating their addresses takes most of the time of an update (docs/decisions/0002-fetch-rows-ahead.md).
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace modelet {

inline constexpr size_t kCacheLine = 64;                // bytes
inline constexpr size_t kLargeArray = size_t{2} << 20;  // bytes

// `bytes` of zeros whose address is a multiple of kLargeArray. They belong to the caller, who returns them with
// the same number. Throws std::bad_alloc.
void* allocate_pages(size_t bytes);
void free_pages(void* first, size_t bytes);
// Bytes of all that this process has from allocate_pages() now. The C library's counts do not include them.
size_t bytes_in_pages();

template <class T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}
  T* allocate(size_t n) {
    const size_t bytes = n * sizeof(T);
    return static_cast<T*>(is_large(bytes) ? allocate_pages(bytes) : ::operator new(bytes, kAlignment));
  }
  void deallocate(T* p, size_t n) {
    const size_t bytes = n * sizeof(T);
    if (is_large(bytes))
      free_pages(p, bytes);
    else
      ::operator delete(p, kAlignment);
  }
  template <class U>
  bool operator==(const AlignedAllocator<U>&) const {
    return true;
  }

 private:
  static constexpr std::align_val_t kAlignment{kCacheLine};
  static constexpr bool is_large(size_t bytes) { return bytes >= kLargeArray; }
};

template <class T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

}  // namespace modelet
