// Large arrays are pages of their own.
#include "base/array/aligned.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>

namespace modelet {
namespace {

bool is_mapped(const void* page) {
  unsigned char resident = 0;
  return ::mincore(const_cast<void*>(page), 1, &resident) == 0 || errno != ENOMEM;
}

TEST(AlignedVector, IsAligned) {
  for (const size_t bytes :
       {size_t{1}, size_t{100}, kLargeArray - 1, kLargeArray, kLargeArray + 1, 5 * kLargeArray + 12345}) {
    const AlignedVector<uint8_t> values(bytes, 7);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(values.data()) % (bytes < kLargeArray ? kCacheLine : kLargeArray),
              0u)
        << bytes;
    EXPECT_EQ(std::ranges::count(values, 7), static_cast<ptrdiff_t>(bytes));
  }
}

TEST(AlignedVector, ALargeOneLeavesNothingBehind) {
  const uint8_t *first = nullptr, *last = nullptr;
  const size_t before = bytes_in_pages();
  {
    const AlignedVector<uint8_t> values(3 * kLargeArray + 1);
    first = values.data();
    last = first + 3 * kLargeArray;  // a page of which one byte is used
    ASSERT_TRUE(is_mapped(first) && is_mapped(last));
    EXPECT_GT(bytes_in_pages(), before + 3 * kLargeArray);
  }
  EXPECT_FALSE(is_mapped(first));
  EXPECT_FALSE(is_mapped(last));
  EXPECT_EQ(bytes_in_pages(), before);
}

TEST(AlignedVector, TooLargeIsBadAlloc) {
  for (const size_t bytes : {std::numeric_limits<size_t>::max(), std::numeric_limits<size_t>::max() / 4})
    EXPECT_THROW(allocate_pages(bytes), std::bad_alloc) << bytes;
}

}  // namespace
}  // namespace modelet
