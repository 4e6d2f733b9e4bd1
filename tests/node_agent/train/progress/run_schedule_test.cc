#include "node_agent/train/progress/run_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace modelet::agent {
namespace {

class RunScheduleTest : public ::testing::Test {
 protected:
  RunScheduleTest() {
    job_.experiment.data.train = "private:clinic";
    job_.experiment.cluster.replicas = 4;
    job_.experiment.cluster.epoch_steps = 40;
    job_.experiment.train.epochs = 2;
    job_.experiment.exchange.local_steps = 16;
    job_.size = 4;
  }
  TrainJob job_;
};

TEST_F(RunScheduleTest, RoundsEndWithEpochsToo) {
  EXPECT_EQ(rounds_to_come(job_, 0, 100), 6u) << "16, 32, 40, 48, 64, 80";
  EXPECT_EQ(rounds_to_come(job_, 40, 100), 3u);
  EXPECT_EQ(rounds_to_come(job_, 80, 100), 0u);
  EXPECT_EQ(rounds_to_come(job_, 0, 3), 4u) << "it counts no further";
  job_.snapshots = {.enabled = true, .every_steps = 24};
  EXPECT_EQ(rounds_to_come(job_, 0, 100), 8u) << "and 24, 72; 48 is one already";
  job_.experiment.train.epochs = 1'000'000'000;
  EXPECT_EQ(rounds_to_come(job_, 0, 100), 101u);
}

TEST_F(RunScheduleTest, AnOwnerCountsItsOwnRounds) {
  job_.experiment.cluster.owners_per_round = 3;
  job_.experiment.train.epochs = 100;
  const uint64_t rounds = 300;
  uint64_t sum = 0;
  for (job_.rank = 0; job_.rank < 4; ++job_.rank) {
    const uint64_t own = rounds_to_come(job_, 0, 1000);
    EXPECT_NEAR(static_cast<double>(own), 225, 5 * std::sqrt(300 * 0.75 * 0.25));
    sum += own;
  }
  EXPECT_EQ(sum, 3 * rounds);
}

}  // namespace
}  // namespace modelet::agent
