#include "base/array/aligned.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace modelet {
namespace {

std::atomic<size_t> in_pages = 0;

size_t whole_pages(size_t bytes) {
  static const auto page = static_cast<size_t>(::getpagesize());
  return (bytes + page - 1) / page * page;
}

}  // namespace

// mmap() aligns to small pages, so more is asked for, and what lies before and behind is returned.
void* allocate_pages(size_t bytes) {
  const size_t size = whole_pages(bytes), asked = size + kLargeArray;
  if (asked < bytes) throw std::bad_alloc();
  void* const got = ::mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) throw std::bad_alloc();
  const size_t before = (kLargeArray - reinterpret_cast<uintptr_t>(got) % kLargeArray) % kLargeArray;
  std::byte* const first = static_cast<std::byte*>(got) + before;
  if (before > 0) ::munmap(got, before);
  ::munmap(first + size, asked - before - size);
  ::madvise(first, size, MADV_HUGEPAGE);
  in_pages += size;
  return first;
}

void free_pages(void* first, size_t bytes) {
  // A process may have only so many mappings, and returning a part of one may make two of it. Then at least the memory
  // goes back.
  if (::munmap(first, whole_pages(bytes)) != 0) ::madvise(first, whole_pages(bytes), MADV_DONTNEED);
  in_pages -= whole_pages(bytes);
}

size_t bytes_in_pages() { return in_pages; }

}  // namespace modelet
