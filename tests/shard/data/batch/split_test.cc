#include "shard/data/batch/split.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "base/error.h"

namespace modelet::shard {
namespace {

TEST(Split, EveryRowIsOnOneSideExactly) {
  for (const size_t rows : {2, 3, 10, 1001})
    for (const double validation : {0.0, 0.001, 0.1, 0.5}) {
      const RowSplit split = split_rows(rows, validation, 7);
      EXPECT_TRUE(std::ranges::is_sorted(split.train));
      EXPECT_TRUE(std::ranges::is_sorted(split.validation));
      std::vector<uint32_t> both = split.train;
      both.insert(both.end(), split.validation.begin(), split.validation.end());
      std::ranges::sort(both);
      EXPECT_EQ(both, all_rows(rows));
      EXPECT_FALSE(split.train.empty());
      EXPECT_EQ(split.validation.empty(), validation == 0);
    }
  EXPECT_EQ(split_rows(1000, 0.05, 7).validation.size(), 50u);
}

TEST(Split, DependsOnTheSeed) {
  EXPECT_EQ(split_rows(1000, 0.1, 7).validation, split_rows(1000, 0.1, 7).validation);
  EXPECT_NE(split_rows(1000, 0.1, 7).validation, split_rows(1000, 0.1, 8).validation);
}

TEST(Split, IsUniform) {
  // Row 0 is held out by a fifth of 2000 seeds: five standard deviations are 89.
  int held_out = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) held_out += split_rows(10, 0.2, seed).validation[0] == 0;
  EXPECT_NEAR(held_out, 400, 89);
}

TEST(Split, LeavesSomethingToTrainOn) {
  EXPECT_THROW(split_rows(1, 0.5, 1), UsageError);
  EXPECT_THROW(split_rows(0, 0.5, 1), UsageError);
}

}  // namespace
}  // namespace modelet::shard
