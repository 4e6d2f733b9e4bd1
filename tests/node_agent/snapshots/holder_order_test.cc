#include "node_agent/snapshots/holder_order.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <utility>

namespace modelet::agent {
namespace {

TEST(HolderOrder, NamesAllOthersOnce) {
  for (uint32_t size = 1; size <= 9; ++size)
    for (uint32_t rank = 0; rank < size; ++rank) {
      const std::vector<uint32_t> order = holder_order(rank, size);
      const std::set<uint32_t> others(order.begin(), order.end());
      EXPECT_EQ(order.size(), size - 1);
      EXPECT_EQ(others.size(), size - 1);
      EXPECT_FALSE(others.contains(rank));
      EXPECT_TRUE(others.empty() || *others.rbegin() < size);
    }
}

TEST(HolderOrder, FewPairsHaveAllCopies) {
  for (uint32_t size = 2; size <= 9; ++size) {
    std::set<std::pair<uint32_t, uint32_t>> pairs;
    for (uint32_t rank = 0; rank < size; ++rank) {
      const uint32_t partner = holder_order(rank, size).front();
      pairs.insert({std::min(rank, partner), std::max(rank, partner)});
    }
    EXPECT_EQ(pairs.size(), (size + 1) / 2) << size;
  }
}

}  // namespace
}  // namespace modelet::agent
