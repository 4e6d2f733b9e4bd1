// Which algorithm is chosen, and whether docs/wire_format.md says so.
#include "comm/messaging/algorithm.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace modelet::comm {
namespace {

Algorithm all_reduce(size_t bytes, int ranks) { return choose(Operation::kAllReduce, bytes, ranks); }

// The smallest contribution for which an all-reduce is done by reduce-scatter.
size_t reduce_scatter_from(int ranks) {
  size_t none = 0, some = size_t{1} << 40;
  while (none + 1 < some) {
    const size_t middle = none + (some - none) / 2;
    (all_reduce(middle, ranks) == Algorithm::kReduceScatter ? some : none) = middle;
  }
  return some;
}

TEST(Algorithm, TwoRanksAlwaysTalkDirectly) {
  for (size_t bytes = 0; bytes < size_t{1} << 40; bytes = bytes * 3 + 1)
    EXPECT_EQ(all_reduce(bytes, 2), Algorithm::kDirect);
  EXPECT_EQ(choose(Operation::kBarrier, 0, 1), Algorithm::kDirect);
}

TEST(Algorithm, ABarrierOfManyIsDisseminated) {
  int first = 2;
  while (choose(Operation::kBarrier, 0, first) == Algorithm::kDirect) ++first;
  for (int ranks = first; ranks <= 64; ++ranks)
    EXPECT_NE(choose(Operation::kBarrier, 0, ranks), Algorithm::kDirect);
  EXPECT_EQ(first, 41);
  for (int ranks = 2; ranks <= 64; ++ranks)
    EXPECT_EQ(all_reduce(4, ranks), choose(Operation::kBarrier, 0, ranks)) << "one number, as for clipping";
}

// The bytes of the direct algorithm grow with n, and those of reduce-scatter do not. So for large matrices
// the latter wins, whatever the constants are.
TEST(Algorithm, LargeMatricesAreReducedByReduceScatter) {
  for (int ranks = 3; ranks <= 64; ++ranks) {
    EXPECT_EQ(all_reduce(size_t{8} << 20, ranks), Algorithm::kReduceScatter);
    EXPECT_LT(
        expected_cost(Algorithm::kReduceScatter, size_t{8} << 20, ranks) * static_cast<uint64_t>(ranks) / 2,
        expected_cost(Algorithm::kDirect, size_t{8} << 20, ranks) * 11 / 10);
  }
}

TEST(Algorithm, TheDocumentHasTheThresholds) {
  std::ifstream file(WIRE_FORMAT_MD);
  std::stringstream document;
  document << file.rdbuf();
  std::string row = "| reduce-scatter from (bytes) | never |";
  for (const int ranks : {3, 4, 8, 16, 32, 64})
    row += " " + std::to_string(reduce_scatter_from(ranks)) + " |";
  EXPECT_NE(document.str().find(row), std::string::npos) << "docs/wire_format.md has no row\n" << row;
}

}  // namespace
}  // namespace modelet::comm
