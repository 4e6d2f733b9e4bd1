#include "shard/data/id_sorter.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace modelet::shard {
namespace {

// Around the lengths where the way of sorting changes; ids that are spread, repeated, all in one place, or as
// large as they may be.
TEST(IdSorter, SortsAsTheLibraryDoes) {
  IdSorter sort;
  Rng rng(1);
  for (const size_t size : {0, 1, 2, 31, 32, 33, 100, 255, 256, 257, 1000})
    for (const uint32_t bound : {1u, 2u, 50u, 255u, 256u, 100000u, 1u << 31})
      for (const uint32_t start : {0u, 1u << 30}) {
        std::vector<uint32_t> ids(size);
        for (uint32_t& id : ids) id = start + rng.below(bound);
        std::vector<uint32_t> expected = ids;
        std::sort(expected.begin(), expected.end());
        sort(ids);
        ASSERT_EQ(ids, expected) << size << " ids below " << bound << " from " << start;
      }
}

}  // namespace
}  // namespace modelet::shard
