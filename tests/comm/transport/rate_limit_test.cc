#include "comm/transport/rate_limit.h"

#include <gtest/gtest.h>

namespace modelet::comm {
namespace {

TEST(RateLimit, BytesBeyondTheRateWait) {
  RateLimit limit(1000);
  EXPECT_DOUBLE_EQ(limit.take(100, 50), 0);    // uses what was saved up
  EXPECT_DOUBLE_EQ(limit.take(500, 50), 0.5);  // has left at 50.5
  EXPECT_DOUBLE_EQ(limit.take(500, 50.5), 0.5);
  EXPECT_DOUBLE_EQ(limit.take(0, 51), 0);
  EXPECT_EQ(limit.total(), 1100u);
}

TEST(RateLimit, APauseSavesUpATenthOfASecond) {
  RateLimit limit(1000);
  limit.take(1, 50);
  EXPECT_DOUBLE_EQ(limit.take(1100, 1000), 1);
}

TEST(RateLimit, WithoutALimitBytesAreCounted) {
  RateLimit limit;
  EXPECT_EQ(limit.take(uint64_t{1} << 40, 0), 0);
  limit.arrived(7);
  EXPECT_EQ(limit.total(), uint64_t{1} << 40);
  EXPECT_EQ(limit.total_arrived(), 7u);
}

}  // namespace
}  // namespace modelet::comm
