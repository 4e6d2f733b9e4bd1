// Sums and rates, with a clock that the test moves.
#include "node_agent/train/progress/run_statistics.h"

#include <gtest/gtest.h>

namespace modelet::agent {
namespace {

struct HandClock final : Clock {
  double now() const override { return seconds; }
  double seconds = 100;
};

class RunStatisticsTest : public ::testing::Test {
 protected:
  void step(double seconds, double loss, RankGrid::Totals during = {}) {
    statistics_.begin_step(totals_);
    clock_.seconds += seconds;
    totals_.bytes_sent += during.bytes_sent;
    totals_.wait_seconds += during.wait_seconds;
    statistics_.end_step(loss, 8, totals_);
  }

  HandClock clock_;
  RankGrid::Totals totals_{.bytes_sent = 77};
  RunStatistics statistics_{clock_};
};

TEST_F(RunStatisticsTest, CountsWhatHappensInSteps) {
  EXPECT_EQ(statistics_.samples_per_second(), 0);
  EXPECT_EQ(statistics_.bytes_per_step(), 0);
  EXPECT_EQ(statistics_.wait_fraction(), 0);
  statistics_.resume(50);
  step(1, 0.5, {.bytes_sent = 10, .wait_seconds = 0.5});
  clock_.seconds += 1000;    // between steps
  totals_.bytes_sent += 55;  // of a checkpoint
  step(3, 1.5, {.bytes_sent = 30, .wait_seconds = 0.5});
  EXPECT_EQ(statistics_.train_seconds(), 54);
  EXPECT_EQ(statistics_.samples_per_second(), 4);
  EXPECT_EQ(statistics_.bytes_per_step(), 20);
  EXPECT_EQ(statistics_.wait_fraction(), 0.25);
  EXPECT_EQ(statistics_.since_gathered().mean(), 1);
  statistics_.since_epoch().reset();
  EXPECT_EQ(statistics_.since_epoch().steps(), 0u);
  EXPECT_EQ(statistics_.since_gathered().steps(), 2u);
}

TEST_F(RunStatisticsTest, WhatIsLeftTakesAsLongAsItTookSoFar) {
  EXPECT_EQ(statistics_.seconds_left({10, 10, 10, 10}), 0) << "nothing is known";
  step(1, 0);
  step(3, 0);
  EXPECT_EQ(statistics_.seconds_left({10, 500, 2, 3}), 20);
  statistics_.add_evaluation(100, 50);
  statistics_.add_checkpoint(4);
  statistics_.add_checkpoint(6);
  statistics_.add_classifiers(7);
  EXPECT_EQ(statistics_.seconds_left({10, 500, 2, 3}), 20 + 250 + 10 + 21);
  EXPECT_EQ(statistics_.seconds_left({}), 0);
}

}  // namespace
}  // namespace modelet::agent
